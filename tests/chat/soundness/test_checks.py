"""Checks can fail: templates that are each wrong in one way, and results compared with brute force.

Brute force knows where a turn ends because it wrote the template. It tries many more conversations than the proof does,
longer and with other contents, and compares the tokens a model leaves plus what the bridge appends with one rendering.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from jinja2 import TemplateError

from attack.awkward import AWKWARD
from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.conversation_shape import Step, opening_shape
from strands_sglang.chat.messages import TemplateMessage
from strands_sglang.chat.soundness import FailureReason, sound_bridge
from strands_sglang.chat.soundness.checks import check_long_conversation
from strands_sglang.chat.template import PROBE_TIME, ChatTemplate
from strands_sglang.chat.tokenization import Encoder
from support.clock import set_clock
from support.families import tokenizer

CHATML = """\
HEAD
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{{ '<|im_start|>assistant\n' + THOUGHT + (message.content or '') }}
{%- for call in message.tool_calls or [] -%}
{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}
{%- endfor -%}
END
{%- elif message.role == 'tool' -%}
{{ '<|im_start|>tool\n' }}RESULT{{ message.content + '<|im_end|>\n' }}
{%- else -%}
{{ '<|im_start|>' + message.role + '\n' }}QUESTION{{ message.content + '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""


def chatml(**parts: str) -> str:
    """Return the template above with parts of it replaced."""
    usual = {"HEAD": "", "THOUGHT": "''", "END": "{{ '<|im_end|>\n' }}", "RESULT": "", "QUESTION": ""}
    source = CHATML
    for name, part in {**usual, **parts}.items():
        source = source.replace(name, part)
    return source


@dataclass(frozen=True)
class Case:
    """A template, and the steps that are exact with it."""

    name: str
    source: str
    exact: tuple[Step, ...]
    failure: FailureReason | None = None
    """Failure of the first step that is not exact."""
    end: str | None = "<|im_end|>"
    """The token that ends a turn; None: the next header."""
    family: str = "qwen2.5"
    reasoning: bool = False
    """Whether the turns have reasoning."""


_ALL = (Step.TOOL, Step.USER, Step.USER_AFTER_TOOL)
_COUNT = "{%- set counted = namespace(n=0) -%}{%- for m in messages[:loop.index0] if COND -%}"
_COUNTED = "{%- set counted.n = counted.n + 1 -%}{%- endfor -%}{{ '#' ~ counted.n ~ ': ' }}"
_BEFORE_TOOL = "loop.nextitem is defined and loop.nextitem.role == 'tool'"
_ALTERNATE = """\
{%- for message in messages if message.role != 'system' -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('roles must alternate') }}
{%- endif -%}
{%- endfor -%}"""
_TWO_IN_A_ROW = """\
{%- for message in messages -%}
{%- if loop.previtem is defined and loop.previtem.role in ('tool', 'user') and message.role == 'user' -%}
{{ raise_exception('roles must alternate') }}
{%- endif -%}
{%- endfor -%}"""
_THOUGHT = "('[' + message.reasoning_content + '] ' if message.reasoning_content and COND else '')"
_NO_SYSTEM = "{%- if messages[0].role == 'system' -%}{{ raise_exception('no system prompt') }}{%- endif -%}"
_PHI = """\
{%- for message in messages -%}{{ '<|' + message.role + '|>\n' + message.content + '<|end|>\n' }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\n' }}{%- endif -%}"""

CASES = [
    Case("as it should be", chatml(), _ALL),
    Case(
        "results numbered by all messages",
        chatml(RESULT="{{ '#' ~ loop.index ~ ': ' }}"),
        (Step.USER,),
        FailureReason.TOKENS,
    ),
    Case(
        "results numbered by all results",
        chatml(RESULT=_COUNT.replace("COND", "m.role == 'tool'") + _COUNTED),
        (Step.USER,),
        FailureReason.TOKENS,
    ),
    Case(
        "questions numbered by exchanges",
        chatml(QUESTION=_COUNT.replace("COND", "m.role == 'user'") + _COUNTED),
        (Step.TOOL,),
        FailureReason.TOKENS,
    ),
    Case(
        "results called by the name of their tool",
        chatml(RESULT="{{ message.name + ' ' + message.tool_call_id + ': ' }}"),
        _ALL,
    ),
    Case(
        "a token is added to the turn before when a result follows",
        chatml(END="{%- if " + _BEFORE_TOOL + " -%}<|fim_pad|>{%- endif -%}{{ '<|im_end|>\n' }}"),
        (Step.USER,),
        FailureReason.REWRITES,
    ),
    Case(
        "words are added to the turn before when a result follows",
        chatml(END="{%- if " + _BEFORE_TOOL + " -%}{{ ' (waiting)' }}{%- endif -%}{{ '<|im_end|>\n' }}"),
        (Step.USER,),
        FailureReason.REWRITES,
    ),
    Case(
        "a token is written behind the turn before when a result follows: no part of that turn",
        chatml(END="{{ '<|im_end|>\n' }}{%- if " + _BEFORE_TOOL + " -%}<|fim_pad|>{%- endif -%}"),
        _ALL,
    ),
    Case("the time in front", chatml(HEAD="{{ strftime_now('%H:%M:%S.%f') }}"), _ALL),
    Case("the time in every result", chatml(RESULT="{{ strftime_now('%H:%M:%S.%f ') }}"), _ALL),
    Case(
        "no end of turn but a newline: calls end with their own marker, an answer with nothing",
        chatml(END="{{ '\n' }}"),
        (Step.TOOL, Step.USER_AFTER_TOOL),
        FailureReason.LACKS,
        end=None,
    ),
    Case("no end of turn, the next header right behind", chatml(END=""), _ALL, end=None),
    Case(
        "no end of turn, and calls in plain text",
        chatml(END="").replace("'<tool_call>'", "'CALL '").replace("'</tool_call>'", "' END'"),
        (Step.USER,),
        FailureReason.LACKS,
        end=None,
    ),
    Case(
        "roles must alternate, results apart", chatml(HEAD=_TWO_IN_A_ROW), (Step.TOOL, Step.USER), FailureReason.REFUSES
    ),
    Case(
        "roles must alternate, and there is no other role", chatml(HEAD=_ALTERNATE), (Step.USER,), FailureReason.REFUSES
    ),
    Case("thoughts are kept", chatml(THOUGHT=_THOUGHT.replace("COND", "true")), _ALL, reasoning=True),
    Case(
        "thoughts are kept in the last turn only",
        chatml(THOUGHT=_THOUGHT.replace("COND", "loop.last")),
        (),
        FailureReason.REWRITES,
        reasoning=True,
    ),
    Case("there is no system prompt", chatml(HEAD=_NO_SYSTEM), _ALL),
    Case(
        "the last turn ends otherwise",
        chatml(END="{%- if loop.last -%}<|endoftext|>{%- else -%}{{ '<|im_end|>\n' }}{%- endif -%}"),
        (),
        FailureReason.REWRITES,
        end="<|endoftext|>",
    ),
    Case(
        "only the last four messages are shown",
        chatml().replace("in messages -", "in messages[-4:] -"),
        (),
        FailureReason.REWRITES,
    ),
    Case(
        "an end of turn that swallows the newline behind it",
        _PHI,
        (Step.USER,),
        FailureReason.LACKS,
        "<|end|>",
        "phi-4-mini",
    ),
]


# --- brute force -----------------------------------------------------------------------------------------------------

_RESULTS = ("7", "", "Grüße 🙂\n\n", '{"a": 1}', "  x ", "é\u0301", "long " * 50)
_ENDS = ("x", ".", ")", "!?", "。", "🙂", "5", "```")


def _turn(text: str, serial: int, calls: int = 0) -> TemplateMessage:
    message: TemplateMessage = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {
                "type": "function",
                "id": f"call{serial:03d}{at:02d}",
                "function": {"name": f"tool{at}", "arguments": {"a": text}},
            }
            for at in range(calls)
        ]
        message["content"] = ""
    return message


def _results(serial: int, calls: int, content: str) -> list[TemplateMessage]:
    return [
        {"role": "tool", "name": f"tool{at}", "tool_call_id": f"call{serial:03d}{at:02d}", "content": content}
        for at in range(calls)
    ]


def _conversations(
    step: Step, tools: bool
) -> Iterator[tuple[list[TemplateMessage], TemplateMessage, list[TemplateMessage]]]:
    """Yield a conversation, an assistant turn, and what is appended."""
    question: TemplateMessage = {"role": "user", "content": "How much?"}
    number = 0
    for system in ([], [{"role": "system", "content": "Be brief."}]):
        for exchanges in (0, 1, 3):
            for rounds in (0, 1, 2, 4) if tools else (0,):
                before = [*system]
                for serial in range(exchanges):
                    before += [question, _turn(f"Answer {serial}.", serial)]
                before.append(question)
                for serial in range(rounds):
                    before += [_turn("1", serial, 1), *_results(serial, 1, "2")]
                for calls in (1, 2) if step is not Step.USER else (0,):
                    number += 1
                    turn = _turn(f"Well{_ENDS[number % len(_ENDS)]}", 50, calls)
                    content = _RESULTS[number % len(_RESULTS)]
                    new = _results(50, calls, content)
                    if step is not Step.TOOL:
                        new.append({"role": "user", "content": content})
                    yield before, turn, new


def _thinking(messages: list[TemplateMessage]) -> list[TemplateMessage]:
    return [
        {**message, "reasoning_content": "Hm."} if message["role"] == "assistant" else message for message in messages
    ]


def _exact(case: Case, bridge: Bridge, step: Step) -> bool:
    """Return whether every conversation continues exactly, compared with transformers."""
    tok, tools = tokenizer(case.family), None

    def rendered(messages: list[TemplateMessage], generate: bool) -> str:
        return str(
            tok.apply_chat_template(
                messages, tools=tools, chat_template=case.source, add_generation_prompt=generate, tokenize=False
            )
        )

    def encoded(text: str) -> array[int]:
        return array("i", tok(text, add_special_tokens=False)["input_ids"])

    for before, turn, new in _conversations(step, bridge.template.writes_calls):
        if case.reasoning:
            *before, turn = _thinking([*before, turn])
        try:
            rendered(before, True)
        except TemplateError:
            continue  # no such conversation is possible
        try:
            left, whole = rendered([*before, turn], False), rendered([*before, turn, *new], True)
        except TemplateError:
            return False
        if turn.get("tool_calls") and "tool0" not in left:
            return False
        left = left.rstrip("\n") if case.end is None else left[: left.rindex(case.end) + len(case.end)]
        ids = encoded(left)
        calls = tuple((call["function"]["name"], call["id"]) for call in turn.get("tool_calls", ()))
        shape = opening_shape(before).with_reply(calls, case.reasoning)
        piece = bridge.extend(shape, ids[-1] if ids[-1] in bridge.encoder.control else None, new, tools)
        if piece is None:
            return False
        extension = bridge.encode(piece)
        if ids + extension.closing + extension.context != encoded(whole):
            return False
    return True


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_result_equals_brute_force(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, PROBE_TIME)
    bridge, sound = sound_bridge(tokenizer(case.family), chat_template=case.source)
    for step in _ALL:
        verdict = sound.results[step, case.reasoning]
        exact = _exact(case, bridge, step)
        assert exact == (step in case.exact), f"brute force, {step.value}"
        assert verdict.proved == exact, f"{step.value}: {verdict}"
        assert verdict.proved == (verdict.failure is None) and verdict.proved != bool(verdict.detail)
    if case.failure is not None:
        first = next(sound.results[step, case.reasoning] for step in _ALL if step not in case.exact)
        assert first.failure is case.failure, first


# --- a long conversation ---------------------------------------------------------------------------------------------


def differing_steps(
    source: str | None, family: str = "qwen2.5", *, reasoning: bool = False, no_reasoning: bool = True, **given: Any
) -> set[Step]:
    tok = tokenizer(family)
    encoder = Encoder(tok)
    bridge = Bridge(ChatTemplate(tok, encoder.control, source), encoder)
    kinds: dict[str, Any] = {"reasoning": reasoning, "no_reasoning": no_reasoning, **given}
    return set(check_long_conversation(bridge, tools=True, system=True, **kinds))


@pytest.mark.parametrize("family", ["qwen2.5", "llama-3.1", "deepseek-v3.1"])
def test_templates_that_do_not_depend_on_position(family: str) -> None:
    assert differing_steps(None, family) == set()


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("user messages are numbered", {Step.USER}),
        ("results are numbered", {Step.TOOL}),
        ("brief from the fifth user message on", {Step.USER, Step.TOOL}),
        ("every fourth result repeats the tools", {Step.TOOL}),
        ("turns left, of twelve", {Step.USER, Step.TOOL}),
    ],
)
def test_templates_that_depend_on_position(name: str, steps: set[Step]) -> None:
    assert differing_steps(AWKWARD[name]) == differing_steps(AWKWARD[name], proved=False) == steps


def test_template_that_drops_earlier_reasoning() -> None:
    """Which matters for proved steps only: what it writes after a turn does not depend on it."""
    source = AWKWARD["reasoning of the last three turns"]
    for proved in (True, False):
        found = differing_steps(source, reasoning=True, no_reasoning=False, proved=proved)
        assert found == ({Step.USER, Step.TOOL} if proved else set())


def test_first_turn_without_reasoning_is_checked() -> None:
    """Turns without reasoning that a template rewrites once any turn has reasoning."""
    found = differing_steps(AWKWARD["empty reasoning once any turn reasons"], reasoning=True, no_reasoning=True)
    assert found == {Step.USER, Step.TOOL}
