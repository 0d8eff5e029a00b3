"""The proof: a template's bridge tried on every probe.

For each probe, the tokens of the conversation so far, ended as a model ends its turn, plus what the bridge appends must
equal the tokens of one rendering of the whole conversation. One probe that differs refuses the step, and shows where.

Invariant: `proved` means that every probe gave equal tokens; there is no other way to get it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.content import TemplateMessage
from strands_sglang.chat.probes import SYSTEM, TOOLS, WORD, Probe, probes
from strands_sglang.chat.shape import Shape, Step, behind_words
from strands_sglang.chat.verdict import DROPS_REASONING, Soundness, Trouble, Verdict
from strands_sglang.chat.witness import witness
from strands_sglang.errors import TemplateRefusedError

_NO_CALLS = Verdict(Trouble.LACKS, "the template refuses tool calls or writes nothing for them")


def prove(bridge: Bridge, digest: str = "") -> Soundness:
    """Try the bridge of a template on every probe with tools on offer, and on those of an agent without any."""
    template = bridge.template
    verdicts: dict[tuple[Step, bool], Verdict] = {}
    without_tools: dict[bool, Verdict] = {}
    for reasoning in {False, template.writes_reasoning}:
        for step in Step:
            verdicts[step, reasoning] = judge(bridge, step, reasoning)
        without_tools[reasoning] = judge(bridge, Step.USER, reasoning, tools=False)
    parallel = judge(bridge, Step.TOOL, template.writes_reasoning, calls=3)
    return Soundness(digest, verdicts, parallel, template.writes_reasoning, without_tools)


def judge(
    bridge: Bridge, step: Step, reasoning: bool, *, tools: bool = True, like: Shape | None = None, calls: int = 1
) -> Verdict:
    """Try one step on its probes.

    Args:
        bridge: The template's bridge.
        step: What is appended, and behind what.
        reasoning: Whether assistant turns have reasoning.
        tools: Whether tools are on offer.
        like: Only conversations of this shape, and the plainest ones, are tried; None: all are.
        calls: Calls of the last turn, for steps behind calls.
    """
    if reasoning and not bridge.template.writes_reasoning:
        return DROPS_REASONING
    if step is not Step.USER and not bridge.template.calls:
        return _NO_CALLS
    offered = TOOLS if tools else None
    verdict = Verdict(Trouble.LACKS, "the template writes nothing of such turns")
    for probe in _probes(bridge, step, reasoning, offered, like, calls):
        tried = _try_answer(bridge, probe, offered) if step is Step.ANSWER else _try(bridge, probe, offered)
        if tried is None:
            continue
        verdict = tried
        if not verdict.proved:
            break
    return verdict


def _probes(bridge: Bridge, step: Step, reasoning: bool, tools: Any, like: Shape | None, calls: int) -> Iterator[Probe]:
    """Yield the probes of a step that can come up with the template at all."""
    system = like is None or like.system is not None
    system = system and _takes(bridge, [SYSTEM, {"role": "user", "content": "x"}], tools)
    asked = Step.TOOL if step is Step.ANSWER else step
    for probe in probes(asked, reasoning, calls, tools=bridge.template.calls, system=system):
        if like is None or (
            (probe.shape.system is not None) == system and probe.shape.course in (like.course, Shape().course)
        ):
            yield probe


def _takes(bridge: Bridge, messages: list[TemplateMessage], tools: Any) -> bool:
    try:
        bridge.template.render(messages, tools=tools)
    except TemplateRefusedError:
        return False
    return True


def _try(bridge: Bridge, probe: Probe, tools: Any) -> Verdict | None:
    """Try one probe; None when the template does not take its beginning, or drops its last turn."""
    render = bridge.template.render
    try:
        before = render(probe.before, tools=tools, generate=False).text
        whole = render([*probe.before, *probe.new], tools=tools).text
    except TemplateRefusedError as error:
        refused = Verdict(Trouble.REFUSES, error.template_message)
        return refused if _takes(bridge, probe.before[:-1], tools) else None
    text = _ended(bridge, probe, before)
    if text is None:
        return None
    prompt = render(probe.before[:-1], tools=tools).text
    if not whole.startswith(prompt):
        # A model went on from the prompt: whatever it sampled, history is not what stood before it.
        return Verdict(Trouble.REWRITES, witness(prompt, whole))
    if not whole.startswith(text):
        return Verdict(Trouble.REWRITES, witness(text, whole))
    branch = bridge.encoder.encode(text)
    ended_by = branch[-1] if branch[-1] in bridge.encoder.control else None
    piece = bridge.extend(probe.shape, ended_by, probe.new, tools)
    if piece is None:
        return Verdict(Trouble.LACKS, "what the template writes behind an assistant turn could not be told apart")
    extension = bridge.encode(piece)
    joined, official = branch + extension.closing + extension.context, bridge.encoder.encode(whole)
    if joined != official:
        return Verdict(Trouble.TOKENS, witness(text + piece.closing + piece.context, whole, tokens=True))
    return Verdict()


def _try_answer(bridge: Bridge, probe: Probe, tools: Any) -> Verdict:
    """Say whether a run of calls stays as it was once its answer stands behind it."""
    answer: TemplateMessage = {"role": "assistant", "content": "The answer is 87."}
    if probe.reasoning:
        answer["reasoning_content"] = "The tool returned 87."
    try:
        before = bridge.template.render([*probe.before, *probe.new], tools=tools, generate=False).text
        whole = bridge.template.render([*probe.before, *probe.new, answer], tools=tools, generate=False).text
    except TemplateRefusedError as error:
        return Verdict(Trouble.REFUSES, error.template_message)
    return Verdict() if whole.startswith(before) else Verdict(Trouble.REWRITES, witness(before, whole))


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


def guarded(bridge: Bridge) -> bool:
    """Say whether data made of control-token text brings no control token. Makes a second tokenizer: takes a second."""
    control = bridge.encoder.control
    text = " ".join(list(control.ids)[:200])
    plain, hostile = (
        bridge.encode(bridge.open([{"role": "user", "content": content}])).context for content in ("x", text)
    )
    return control.count(plain) == control.count(hostile) and text in bridge.encoder.decode(hostile)
