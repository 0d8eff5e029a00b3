"""Checks whether the bridge of a template is exact, on synthetic conversations.

A probe is a conversation that ends with an assistant turn, and messages to append to it. The tokens of the
conversation, ended as a model ends its turn, plus the tokens that the bridge appends must equal the tokens of one
rendering of the whole. A single difference refuses the step.

Some templates depend on position: they number messages, or shorten old ones; or on the number and the types of a call's
arguments. Short probes do not show this, so a long conversation is checked, too: at each step, the text written before
must be unchanged, and the text written next must equal the text written after a stand-in.

Invariant: a step is proved only if every probe gave equal tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.conversation_shape import ConversationShape, Step, offset_after, opening_shape, step_of
from strands_sglang.chat.differences import first_difference
from strands_sglang.chat.messages import TemplateMessage, function_call
from strands_sglang.chat.soundness.report import DROPS_REASONING, FailureReason, Soundness, StepResult
from strands_sglang.errors import TemplateRefusedError

WORD = "xQzWordqZx"
"""Marks the end of a probe's last assistant turn in the rendered text."""

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Work out an expression.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string", "description": "Such as 1 + 1."}},
                "required": ["expression"],
            },
        },
    }
]

SYSTEM: TemplateMessage = {"role": "system", "content": "You are a helpful agent."}

QUESTION = "What is 12*7+3?"

_LONG_ROUNDS = (0, 1, 0, 3, 0, 2, 5, 1)
_LONG_ARGUMENTS: tuple[dict[str, Any], ...] = (
    *({"expression": "12*7+3"}, {"path": "b.py", "lines": 40}, {}, {"n": 7, "deep": {"k": [1]}}),
    {"flag": True, "more": None, "words": ["x"]},
)
_LONG_TEXTS = ("87", "y" * 400, "Now subtract 7.", "a\n\nb", "z" * 2000, "87")
_CONTENTS = ("87", "", "Grüße 🙂 中文\nنعم", "  a\n\nb  \n", '{"a": [1, true]}', "<b>&amp;</b> \\n", "x" * 300)
_QUESTIONS = ("Now subtract 7.", "Grüße 🙂 中文\nنعم", "a\n\nb", '{"a": [1, true]}')


@dataclass(frozen=True, slots=True)
class Probe:
    """A conversation, and messages to append to it."""

    step: Step
    reasoning: bool
    before: list[TemplateMessage]
    """The last word of its last message, an assistant turn, is `WORD`."""
    new: list[TemplateMessage]
    shape: ConversationShape
    words: int


def assistant(text: str, reasoning: bool, calls: int = 0, serial: int = 0, word: str = "12*7+3") -> TemplateMessage:
    """Return an assistant turn; `word` is the argument of each of its calls."""
    message: TemplateMessage = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = "I should use the calculator tool."
    if calls:
        message["tool_calls"] = [
            function_call("calculator", {"expression": word}, call_id(serial, number)) for number in range(calls)
        ]
    return message


def call_id(serial: int, number: int) -> str:
    """Return the id of a call: nine letters and digits, which every template accepts."""
    return f"call{serial:03d}{number:02d}"


def results(contents: list[str], serial: int) -> list[TemplateMessage]:
    """Return the results of one turn's calls."""
    return [
        {"role": "tool", "tool_call_id": call_id(serial, number), "name": "calculator", "content": content}
        for number, content in enumerate(contents)
    ]


def _histories(
    reasoning: bool, calls: bool, system: bool, given: bool | None
) -> Iterator[tuple[list[TemplateMessage], ConversationShape]]:
    """Yield histories; `given`: the first assistant turn was not sampled, and has reasoning or not."""
    question: TemplateMessage = {"role": "user", "content": QUESTION}
    system_messages = [SYSTEM] if system else []
    content = SYSTEM["content"] if system else None
    plain = ConversationShape(reasoning=reasoning, no_reasoning=not reasoning, system=content)
    yield [*system_messages, question], plain
    yield [question], replace(plain, system=None)
    first_kind = reasoning if given is None else given
    plain = replace(plain, given=() if given is None else (given,))
    greeting = [*system_messages, {"role": "user", "content": "Hello."}]
    after_greeting = [*greeting, assistant("Hello!", first_kind), question]
    yield after_greeting, replace(plain, exchanges=True)
    yield [*after_greeting, assistant("Fine.", reasoning), question], replace(plain, exchanges=True)
    if not calls:
        return
    first = [assistant("", first_kind, 1, 1), *results(["1"], 1)]
    second = [assistant("", reasoning, 1, 2), *results(["2"], 2)]
    yield [*system_messages, question, *first], replace(plain, tool_rounds=True)
    yield [*system_messages, question, *first, *second], replace(plain, tool_rounds=True)
    yield [*after_greeting, *first], replace(plain, exchanges=True, tool_rounds=True)
    if given is not None:
        yield [*after_greeting, *second], replace(plain, exchanges=True, tool_rounds=True)
    used = [*greeting, *first, assistant("Hello!", first_kind), question]
    yield used, replace(plain, exchanges=True, earlier_rounds=True)
    yield [*used, *second], replace(plain, exchanges=True, earlier_rounds=True, tool_rounds=True)


def probes(
    step: Step,
    reasoning: bool,
    calls: int = 1,
    *,
    tools: bool = True,
    system: bool = True,
    given: bool | None = None,
) -> Iterator[Probe]:
    """Yield the probes of a step. `given`: as for `check_step`."""
    for number, (history, shape) in enumerate(_histories(reasoning, tools, system, given)):
        # All contents with the first history, the other histories with one or two contents: no known template depends
        # on both at once, and the full product would take many seconds.
        if step is Step.USER:
            for question in _QUESTIONS if number == 0 else _QUESTIONS[:1]:
                new: list[TemplateMessage] = [{"role": "user", "content": question}]
                yield Probe(step, reasoning, [*history, assistant(WORD, reasoning)], new, shape, 1)
            continue
        for text in ("", "Let me see.") if number == 0 else ("",):
            turn = assistant(text, reasoning, calls, 9, WORD)
            names = tuple((call["function"]["name"], call["id"]) for call in turn["tool_calls"])
            for content in _CONTENTS if number == 0 else _CONTENTS[:2]:
                new = results([content] * calls, 9)
                if step is Step.USER_AFTER_TOOL:
                    new.append({"role": "user", "content": "Now subtract 7."})
                yield Probe(step, reasoning, [*history, turn], new, replace(shape, calls=names), calls)


def long_conversation(
    reasoning: bool, no_reasoning: bool, calls: bool, *, plain_first: bool = False
) -> Iterator[tuple[TemplateMessage, list[TemplateMessage]]]:
    """Yield the assistant turns of a long conversation after `QUESTION`, and the messages after each."""
    serial = 0
    for number, rounds in enumerate(_LONG_ROUNDS):
        for _ in range(rounds if calls else 0):
            serial += 1
            with_reasoning = reasoning and (not no_reasoning or (serial + plain_first) % 2 == 0)
            turn = assistant("", with_reasoning, 1, serial)
            turn["tool_calls"][0]["function"]["arguments"] = _LONG_ARGUMENTS[serial % len(_LONG_ARGUMENTS)]
            yield turn, results([_LONG_TEXTS[serial % len(_LONG_TEXTS)]], serial)
        question = QUESTION if number % 3 == 0 else _LONG_TEXTS[number % len(_LONG_TEXTS)]
        with_reasoning = reasoning and (not no_reasoning or (number + plain_first) % 2 == 0)
        yield assistant(f"Answer {number}.", with_reasoning), [{"role": "user", "content": question}]


def inspected_conversations(reasoning: bool) -> list[list[TemplateMessage]]:
    """Return short conversations for `inspection`, with reasoning only if the template writes it."""
    question: TemplateMessage = {"role": "user", "content": "x"}
    made: list[list[TemplateMessage]] = []
    for with_reasoning in {False, reasoning}:
        answer = assistant("x", with_reasoning)
        if with_reasoning:
            answer["reasoning_content"] = "x"
        used = [assistant("", with_reasoning, 1, 1), *results(["x"], 1)]
        more = [assistant("x", with_reasoning, 2, 2), *results(["x", "x"], 2)]
        made += [[question], [question, answer, question], [SYSTEM, question, answer, question, answer, question]]
        made += [[question, *used], [question, *used, answer, question], [SYSTEM, question, answer, question, *more]]
        made += [[question, *used, *more, question]]
        for call in (call for turn in (*used, *more) for call in turn.get("tool_calls", ())):
            call["function"]["arguments"] = {WORD: "x"}  # no template asks for an argument of this name
    return made


_NO_BOUNDARY = "the text that the template writes after an assistant turn cannot be determined"
_NO_CALLS = StepResult(FailureReason.LACKS, "the template rejects tool calls or does not write them")


def prove(bridge: Bridge, digest: str = "") -> Soundness:
    """Check the bridge of a template on every probe, with tools and, for user messages, without."""
    template = bridge.template
    results: dict[tuple[Step, bool], StepResult] = {}
    without_tools: dict[bool, StepResult] = {}
    for reasoning in {False, template.writes_reasoning}:
        for step in Step:
            results[step, reasoning] = check_step(bridge, step, reasoning)
        without_tools[reasoning] = check_step(bridge, Step.USER, reasoning, tools=False)
    parallel = check_step(bridge, Step.TOOL, template.writes_reasoning, calls=3)
    return Soundness(digest, results, parallel, template.writes_reasoning, without_tools)


def check_step(
    bridge: Bridge,
    step: Step,
    reasoning: bool,
    *,
    tools: bool = True,
    like: ConversationShape | None = None,
    calls: int = 1,
    given: bool | None = None,
) -> StepResult:
    """Check one step on its probes.

    `like`: only on conversations of this shape and the simplest ones. `given`: on conversations whose opening has an
    assistant turn that was not sampled, with or without reasoning; None: all turns are sampled.
    """
    if reasoning and not bridge.template.writes_reasoning:
        return DROPS_REASONING
    if step is not Step.USER and not bridge.template.writes_calls:
        return _NO_CALLS
    available = TOOLS if tools else None
    result = StepResult(FailureReason.LACKS, "the template does not write such turns")
    for probe in _probes(bridge, step, reasoning, available, like, calls, given):
        check = _check_answer if step is Step.ANSWER else _check_probe
        checked = check(bridge, probe, available)
        if checked is None:
            continue
        result = checked
        if not result.proved:
            break
    return result


def _probes(
    bridge: Bridge,
    step: Step,
    reasoning: bool,
    tools: Any,
    like: ConversationShape | None,
    calls: int,
    given: bool | None,
) -> Iterator[Probe]:
    system = like is None or like.system is not None
    system = system and _accepts(bridge, [SYSTEM, {"role": "user", "content": "x"}], tools)
    probed = Step.TOOL if step is Step.ANSWER else step
    writes_calls = bridge.template.writes_calls
    for probe in probes(probed, reasoning, calls, tools=writes_calls, system=system, given=given):
        if like is None or (
            (probe.shape.system is not None) == system
            and probe.shape.history in (like.history, ConversationShape().history)
        ):
            yield probe


def _accepts(bridge: Bridge, messages: list[TemplateMessage], tools: Any) -> bool:
    try:
        bridge.template.render(messages, tools=tools)
    except TemplateRefusedError:
        return False
    return True


def _check_probe(bridge: Bridge, probe: Probe, tools: Any) -> StepResult | None:
    """Return None if the template rejects its history, or drops its last turn."""
    render = bridge.template.render
    try:
        before = render(probe.before, tools=tools, generate=False).text
        whole = render([*probe.before, *probe.new], tools=tools).text
    except TemplateRefusedError as error:
        refused = StepResult(FailureReason.REFUSES, error.template_message)
        return refused if _accepts(bridge, probe.before[:-1], tools) else None
    text = _ended(bridge, probe, before)
    if text is None:
        return None
    prompt = render(probe.before[:-1], tools=tools).text
    if not whole.startswith(prompt):
        # The turn was sampled after this prompt: history no longer contains it, whatever was sampled.
        return StepResult(FailureReason.REWRITES, first_difference(prompt, whole))
    if not whole.startswith(text):
        return StepResult(FailureReason.REWRITES, first_difference(text, whole))
    branch = bridge.encoder.encode(text)
    ended_by = bridge.encoder.control.ended_by(branch)
    appended = bridge.extend(probe.shape, ended_by, probe.new, tools)
    if appended is None:
        return StepResult(FailureReason.LACKS, _NO_BOUNDARY)
    tokens = bridge.encode(appended)
    joined, official = branch + tokens.closing + tokens.context, bridge.encoder.encode(whole)
    if joined != official:
        difference = first_difference(text + appended.closing + appended.context, whole, tokens=True)
        return StepResult(FailureReason.TOKENS, difference)
    return StepResult()


def _check_answer(bridge: Bridge, probe: Probe, tools: Any) -> StepResult:
    """A series of calls must be unchanged once its answer follows."""
    answer: TemplateMessage = {"role": "assistant", "content": "The answer is 87."}
    if probe.reasoning:
        answer["reasoning_content"] = "The tool returned 87."
    try:
        before = bridge.template.render([*probe.before, *probe.new], tools=tools, generate=False).text
        whole = bridge.template.render([*probe.before, *probe.new, answer], tools=tools, generate=False).text
    except TemplateRefusedError as error:
        return StepResult(FailureReason.REFUSES, error.template_message)
    if whole.startswith(before):
        return StepResult()
    return StepResult(FailureReason.REWRITES, first_difference(before, whole))


def _ended(bridge: Bridge, probe: Probe, before: str) -> str | None:
    at = offset_after(before, WORD, probe.words)
    if at is None:
        return None
    boundary = bridge.boundary(probe.shape, probe.new[0]["role"])
    if boundary is None:
        return before
    following = list(bridge.encoder.control.find(before, at))
    if boundary.end_of_turn is None:
        return before[: following[boundary.own - 1].end if boundary.own and len(following) >= boundary.own else at]
    usual = [token for token in following if token.id == boundary.tokens[boundary.end_of_turn]]
    last = usual[:1] or following[-1:]
    return before[: last[0].end if last else at]


def check_long_conversation(
    bridge: Bridge,
    *,
    reasoning: bool,
    no_reasoning: bool,
    tools: bool,
    system: bool,
    given: Sequence[bool] = (),
    proved: bool = True,
) -> dict[Step, str]:
    """Return the steps of a long conversation that are not exact everywhere, with the first difference of each.

    Args:
        given: The opening has such assistant turns, with or without reasoning.
        proved: Whether the template must also leave what precedes a step as it was.
    """
    calls = tools and bridge.template.writes_calls
    conversations = [(calls, False)]
    if reasoning and no_reasoning:
        # Some templates rewrite turns without reasoning once any turn has reasoning. Therefore such a turn also comes
        # first, followed by tool results and by a user message.
        conversations += [(calls, True), (False, True)]
    opening: list[TemplateMessage] = [SYSTEM] if system else []
    for kind in given:
        opening += [{"role": "user", "content": "Hello."}, assistant("Hello!", kind)]
    opening.append({"role": "user", "content": QUESTION})
    failed: dict[Step, str] = {}
    for with_calls, plain_first in conversations:
        turns = long_conversation(reasoning, no_reasoning or not reasoning, with_calls, plain_first=plain_first)
        _check_turns(bridge, opening, turns, failed, TOOLS if tools else None, proved)
    return failed


def _check_turns(
    bridge: Bridge,
    opening: list[TemplateMessage],
    turns: Iterator[tuple[TemplateMessage, list[TemplateMessage]]],
    failed: dict[Step, str],
    tools: Any,
    proved: bool,
) -> None:
    """Adds the steps that are not exact to `failed`."""
    history, shape = list(opening), opening_shape(opening)
    for turn, new in turns:
        names = tuple((call["function"]["name"], call["id"]) for call in turn.get("tool_calls", ()))
        shape = shape.with_reply(names, "reasoning_content" in turn)
        step = step_of(new)
        if step not in failed:
            try:
                found = _difference_at(bridge, shape, [*history, turn], new, tools, proved)
            except TemplateRefusedError as error:
                found = error.template_message
            if found is not None:
                failed[step] = found
        history += [turn, *new]
        shape = shape.after(new)


def _difference_at(
    bridge: Bridge,
    shape: ConversationShape,
    before: list[TemplateMessage],
    new: list[TemplateMessage],
    tools: Any,
    proved: bool,
) -> str | None:
    whole = bridge.template.render([*before, *new], tools=tools)
    if proved and not whole.text.startswith(prompt := bridge.template.render(before[:-1], tools=tools).text):
        return first_difference(prompt, whole.text)
    boundary = bridge.boundary(shape, new[0]["role"])
    ended_by = None if boundary is None or boundary.end_of_turn is None else boundary.tokens[boundary.end_of_turn]
    stand_in = bridge.extend(shape, ended_by, new, tools)
    real = bridge.extend_with_history(shape, before, ended_by, new, tools, whole)
    if stand_in is None or real is None:
        return _NO_BOUNDARY
    return None if stand_in.text == real.text else first_difference(stand_in.text, real.text)


def isolates_data(bridge: Bridge) -> bool:
    """Return whether control-token text in data produces no control token."""
    control = bridge.encoder.control
    text = " ".join(list(control.ids)[:200])
    plain, with_literals = (
        bridge.encode(bridge.open([{"role": "user", "content": content}])).context for content in ("x", text)
    )
    return control.count(plain) == control.count(with_literals) and text in bridge.encoder.decode(with_literals)
