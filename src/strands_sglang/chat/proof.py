"""The proof: a template's bridge tried on every probe.

For each probe, the tokens of the conversation so far, ended as a model ends its turn, plus what the bridge appends must
equal the tokens of one rendering of the whole conversation. One probe that differs refuses the step, and shows where.

Invariant: `proved` means that every probe gave equal tokens; there is no other way to get it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.content import TemplateMessage
from strands_sglang.chat.probes import SYSTEM, TOOLS, WORD, Probe, probes
from strands_sglang.chat.shape import Step, behind_words
from strands_sglang.chat.verdict import Soundness, Trouble, Verdict
from strands_sglang.chat.witness import witness
from strands_sglang.errors import TemplateRefusedError

_NO_CALLS = Verdict(Trouble.LACKS, "the template refuses tool calls or writes nothing for them")


def prove(bridge: Bridge, digest: str = "") -> Soundness:
    """Try the bridge of a template on every probe."""
    template = bridge.template
    verdicts: dict[tuple[Step, bool], Verdict] = {}
    for reasoning in {False, template.writes_reasoning}:
        for step in (Step.TOOL, Step.USER, Step.USER_AFTER_TOOL):
            verdicts[step, reasoning] = _verdict(bridge, step, reasoning)
        verdicts[Step.ANSWER, reasoning] = _answer_verdict(bridge, reasoning)
    parallel = _verdict(bridge, Step.TOOL, template.writes_reasoning, calls=3)
    return Soundness(digest, verdicts, parallel, _preamble_free(bridge), template.writes_reasoning)


def _verdict(bridge: Bridge, step: Step, reasoning: bool, calls: int = 1) -> Verdict:
    if step is not Step.USER and not bridge.template.calls:
        return _NO_CALLS
    verdict = Verdict(Trouble.LACKS, "the template writes nothing of such turns")
    for probe in _probes(bridge, step, reasoning, calls):
        tried = _try(bridge, probe)
        if tried is None:
            continue
        verdict = tried
        if not verdict.proved:
            break
    return verdict


def _probes(bridge: Bridge, step: Step, reasoning: bool, calls: int = 1) -> Iterator[Probe]:
    """Yield the probes of a step that can come up with the template at all."""
    system = _takes(bridge, [SYSTEM, {"role": "user", "content": "x"}])
    return probes(step, reasoning, calls, tools=bridge.template.calls, system=system)


def _takes(bridge: Bridge, messages: list[TemplateMessage]) -> bool:
    try:
        bridge.template.render(messages, tools=TOOLS)
    except TemplateRefusedError:
        return False
    return True


def _try(bridge: Bridge, probe: Probe) -> Verdict | None:
    """Try one probe; None when the template does not take its beginning, or drops its last turn."""
    try:
        before = bridge.template.render(probe.before, tools=TOOLS, generate=False).text
        whole = bridge.template.render([*probe.before, *probe.new], tools=TOOLS).text
    except TemplateRefusedError as error:
        return Verdict(Trouble.REFUSES, error.template_message) if _takes(bridge, probe.before[:-1]) else None
    text = _ended(bridge, probe, before)
    if text is None:
        return None
    if not whole.startswith(text):
        return Verdict(Trouble.REWRITES, witness(text, whole))
    branch = bridge.encoder.encode(text)
    ended_by = branch[-1] if branch[-1] in bridge.encoder.control else None
    piece = bridge.extend(probe.shape, ended_by, probe.new, TOOLS)
    if piece is None:
        return Verdict(Trouble.LACKS, "what the template writes behind an assistant turn could not be told apart")
    extension = bridge.encode(piece)
    joined, official = branch + extension.closing + extension.context, bridge.encoder.encode(whole)
    if joined != official:
        return Verdict(Trouble.TOKENS, witness(text + piece.closing + piece.context, whole, tokens=True))
    return Verdict()


def _ended(bridge: Bridge, probe: Probe, before: str) -> str | None:
    """Return the text of a conversation as a model leaves it: up to its end-of-turn token."""
    at = behind_words(before, WORD, probe.words)
    if at is None:
        return None
    joint = bridge.joint(probe.shape, probe.new[0]["role"])
    if joint is None:
        return before
    behind = list(bridge.encoder.control.find(before, at))
    if joint.end_of_turn is None:
        return before[: behind[joint.own - 1].end if joint.own and len(behind) >= joint.own else at]
    usual = [token for token in behind if token.id == joint.zone[joint.end_of_turn]]
    last = usual[:1] or behind[-1:]
    return before[: last[0].end if last else at]


def _answer_verdict(bridge: Bridge, reasoning: bool) -> Verdict:
    """Say whether a run of calls stays as it was once its answer stands behind it."""
    if not bridge.template.calls:
        return _NO_CALLS
    for probe in _probes(bridge, Step.TOOL, reasoning):
        answer: TemplateMessage = {"role": "assistant", "content": "The answer is 87."}
        if reasoning:
            answer["reasoning_content"] = "The tool returned 87."
        try:
            before = bridge.template.render([*probe.before, *probe.new], tools=TOOLS, generate=False).text
            whole = bridge.template.render([*probe.before, *probe.new, answer], tools=TOOLS, generate=False).text
        except TemplateRefusedError as error:
            return Verdict(Trouble.REFUSES, error.template_message)
        if not whole.startswith(before):
            return Verdict(Trouble.REWRITES, witness(before, whole))
    return Verdict()


def _preamble_free(bridge: Bridge) -> bool:
    for step in (Step.TOOL, Step.USER, Step.USER_AFTER_TOOL):
        for probe in _probes(bridge, step, bridge.template.writes_reasoning):
            with_preamble = bridge.extend(probe.shape, None, probe.new, TOOLS)
            without = bridge.extend(replace(probe.shape, system=None), None, probe.new, None)
            if with_preamble is None and without is None:
                continue
            if with_preamble is None or without is None:
                return False
            if (with_preamble.closing, with_preamble.context) != (without.closing, without.context):
                return False
    return True


def guarded(bridge: Bridge) -> bool:
    """Say whether data made of control-token text brings no control token. Makes a second tokenizer: takes a second."""
    control = bridge.encoder.control
    text = " ".join(list(control.ids)[:200])
    plain, hostile = (
        bridge.encode(bridge.open([{"role": "user", "content": content}])).context for content in ("x", text)
    )
    return control.count(plain) == control.count(hostile) and text in bridge.encoder.decode(hostile)
