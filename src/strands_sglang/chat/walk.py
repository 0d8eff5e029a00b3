"""A long conversation, walked step by step: does a template still do what the short probes showed?

Some templates count: they number messages, change their words after so many turns, shorten what is long ago. Short
conversations do not show it. The walk has many turns, texts of many lengths and questions asked twice; at each step,
what the template wrote before must stand, and what it writes next must be what it writes behind a stand-in.

Invariant: a step that is not in the result was exact at every place of the walk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.content import TemplateMessage
from strands_sglang.chat.probes import SYSTEM, TOOLS, assistant, results
from strands_sglang.chat.shape import Step, opening_shape, step_of
from strands_sglang.chat.witness import witness
from strands_sglang.errors import TemplateRefusedError

_ROUNDS = (0, 1, 0, 3, 0, 2, 5, 1)
"""Rounds of calls before each answer of the walk."""
_TEXTS = ("87", "y" * 400, "Now subtract 7.", "a\n\nb", "z" * 2000, "87")
_QUESTION = "What is 12*7+3?"


def walk(bridge: Bridge, *, reasoning: bool, bare: bool, tools: bool, system: bool) -> dict[Step, str]:
    """Walk a long conversation.

    Args:
        bridge: The template's bridge.
        reasoning: Whether some assistant turns have reasoning.
        bare: Whether some have none.
        tools: Whether tools are on offer.
        system: Whether there is a system prompt.

    Returns:
        The steps that were not exact everywhere, with where it was first seen.
    """
    offered = TOOLS if tools else None
    history: list[TemplateMessage] = [{"role": "user", "content": _QUESTION}]
    if system:
        history.insert(0, SYSTEM)
    calls = tools and bridge.template.calls
    failed: dict[Step, str] = {}
    for turn, new in _turns(reasoning, bare or not reasoning, calls):
        step = step_of(new)
        if step not in failed:
            try:
                found = _differs(bridge, history, turn, new, offered)
            except TemplateRefusedError as error:
                found = error.template_message
            if found is not None:
                failed[step] = found
        history += [turn, *new]
    return failed


def _turns(reasoning: bool, bare: bool, calls: bool) -> Iterator[tuple[TemplateMessage, list[TemplateMessage]]]:
    """Yield assistant turns, and what is said behind each."""
    serial = 0
    for number, rounds in enumerate(_ROUNDS):
        for _ in range(rounds if calls else 0):
            serial += 1
            thinks = reasoning and (not bare or serial % 2 == 0)
            yield assistant("", thinks, 1, serial), results([_TEXTS[serial % len(_TEXTS)]], serial)
        question = _QUESTION if number % 3 == 0 else _TEXTS[number % len(_TEXTS)]
        thinks = reasoning and (not bare or number % 2 == 0)
        yield assistant(f"Answer {number}.", thinks), [{"role": "user", "content": question}]


def _differs(
    bridge: Bridge, history: list[TemplateMessage], turn: TemplateMessage, new: list[TemplateMessage], tools: Any
) -> str | None:
    """Return where one step of the walk is not exact; None when it is."""
    prompt = bridge.template.render(history, tools=tools).text
    whole = bridge.template.render([*history, turn, *new], tools=tools).text
    if not whole.startswith(prompt):
        return witness(prompt, whole)
    names = tuple((call["function"]["name"], call["id"]) for call in turn.get("tool_calls", ()))
    shape = opening_shape(history).ending(names, "reasoning_content" in turn)
    joint = bridge.joint(shape, new[0]["role"])
    ended_by = None if joint is None or joint.end_of_turn is None else joint.zone[joint.end_of_turn]
    stood_in = bridge.extend(shape, ended_by, new, tools)
    real = bridge.extend_real(shape, [*history, turn], ended_by, new, tools)
    if stood_in is None or real is None:
        return "what the template writes behind an assistant turn could not be told apart"
    if stood_in.written != real.written:
        return witness(stood_in.written, real.written)
    return None if whole.endswith(real.written) else witness(real.written, whole[-len(real.written) :])
