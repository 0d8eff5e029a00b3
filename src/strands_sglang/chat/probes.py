"""Conversations to try a template on: what soundness is asked about.

A probe is a conversation that ends with an assistant turn, and messages appended to it. They vary what templates have
been seen to look at: calls, reasoning, depth of a run of calls, earlier exchanges, empty and odd contents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from strands_sglang.chat.content import TemplateMessage
from strands_sglang.chat.shape import Shape, Step

WORD = "xQzWordqZx"
"""Ends each probe's last assistant turn, so that its end can be found in the rendered text."""

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
"""The system prompt of the probes."""

_CONTENTS = ("87", "", "Grüße 🙂 中文\nنعم", "  a\n\nb  \n", '{"a": [1, true]}', "<b>&amp;</b> \\n", "x" * 300)
_QUESTIONS = ("Now subtract 7.", "Grüße 🙂 中文\nنعم", "a\n\nb", '{"a": [1, true]}')


@dataclass(frozen=True, slots=True)
class Probe:
    """A conversation, and what is appended to it."""

    step: Step
    """What is asked about."""
    reasoning: bool
    """Whether its assistant turns have reasoning."""
    before: list[TemplateMessage]
    """The conversation, ending with an assistant turn whose last word is `WORD`."""
    new: list[TemplateMessage]
    """What is appended."""
    shape: Shape
    """The shape of `before`."""
    words: int
    """How often `WORD` is in the last turn."""


def assistant(text: str, reasoning: bool, calls: int = 0, serial: int = 0, word: str = "12*7+3") -> TemplateMessage:
    """Return an assistant turn."""
    message: TemplateMessage = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = "I should use the calculator tool."
    if calls:
        message["tool_calls"] = [
            {
                "type": "function",
                "id": call_id(serial, number),
                "function": {"name": "calculator", "arguments": {"expression": word}},
            }
            for number in range(calls)
        ]
    return message


def call_id(serial: int, number: int) -> str:
    """Return the id of a call: nine letters and digits, which every template takes."""
    return f"call{serial:03d}{number:02d}"


def results(contents: list[str], serial: int) -> list[TemplateMessage]:
    """Return the results of one turn's calls."""
    return [
        {"role": "tool", "tool_call_id": call_id(serial, number), "name": "calculator", "content": content}
        for number, content in enumerate(contents)
    ]


def _histories(reasoning: bool, calls: bool, system: bool) -> Iterator[tuple[list[TemplateMessage], Shape]]:
    """Yield beginnings of conversations that a turn can follow, and their shapes."""
    question: TemplateMessage = {"role": "user", "content": "What is 12*7+3?"}
    first_of_all = [SYSTEM] if system else []
    plain = Shape(reasoning=reasoning, bare=not reasoning, system=SYSTEM["content"] if system else None)
    yield [*first_of_all, question], plain
    yield [question], replace(plain, system=None)
    hello = [*first_of_all, {"role": "user", "content": "Hello."}]
    greeted = [*hello, assistant("Hello!", reasoning), question]
    yield greeted, replace(plain, exchanges=True)
    yield [*greeted, assistant("Fine.", reasoning), question], replace(plain, exchanges=True)
    if not calls:
        return
    first, second = ([assistant("", reasoning, 1, serial), *results([str(serial)], serial)] for serial in (1, 2))
    yield [*first_of_all, question, *first], replace(plain, tool_rounds=True)
    yield [*first_of_all, question, *first, *second], replace(plain, tool_rounds=True)
    yield [*greeted, *first], replace(plain, exchanges=True, tool_rounds=True)
    used = [*hello, *first, assistant("Hello!", reasoning), question]
    yield used, replace(plain, exchanges=True, earlier_rounds=True)
    yield [*used, *second], replace(plain, exchanges=True, earlier_rounds=True, tool_rounds=True)


def probes(step: Step, reasoning: bool, calls: int = 1, *, tools: bool = True, system: bool = True) -> Iterator[Probe]:
    """Yield the probes of a step.

    Args:
        step: TOOL, USER or USER_AFTER_TOOL.
        reasoning: Whether assistant turns have reasoning.
        calls: Calls of the last turn, for steps behind calls.
        tools: Whether the template writes calls at all.
        system: Whether it takes a system prompt.
    """
    for number, (history, shape) in enumerate(_histories(reasoning, tools, system)):
        # Odd contents are tried behind the first beginning, odd beginnings with two contents: a template that looks
        # at both at once has not been seen, and the product of all would take many seconds.
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
