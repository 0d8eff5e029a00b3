"""From a sampled turn to the content blocks the framework keeps, and to the events that make it build them.

Invariant: the message the framework builds from the events is the one predicted here, block for block, so that the
turn is found again by content.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from strands_sglang.chat.failed_call import failed_use
from strands_sglang.tool_parsers import FailedCall, ParsedTurn, ToolCall

Block = dict[str, Any]
"""A content block, as the framework keeps it."""
Event = dict[str, Any]
"""A stream event, as the framework reads it."""

_FAILURES = 16
"""Failed calls of one turn that are answered one by one."""


def shown_calls(parsed: ParsedTurn) -> list[ToolCall | FailedCall]:
    """Return the calls and failed calls that become blocks, in the order of the text.

    A broken model can write thousands of broken calls; only the first of them are answered one by one.
    """
    both: list[ToolCall | FailedCall] = [*parsed.calls, *parsed.failures[:_FAILURES]]
    return sorted(both, key=lambda call: call.start)


def blocks_of(
    parsed: ParsedTurn,
    calls: Sequence[ToolCall | FailedCall],
    call_ids: Sequence[str],
    *,
    cut: bool,
    raw: str,
    ends: bool = False,
) -> list[Block]:
    """Return the content blocks of a turn.

    Args:
        parsed: The turn, taken apart.
        calls: Its calls and failed calls that become blocks.
        call_ids: An id for each of them.
        cut: Whether the turn was cut by its budget. No call of such a turn is run: the framework would replace each
            by a sentence of its own, and message and tokens would part; they stay in the text as they were written.
        raw: The turn's text behind its reasoning, calls included.
        ends: Whether the agent is to stop behind a failed call.

    Returns:
        Reasoning, text and calls, in this order; none of them blank. Newlines in front of the text are left out, as
        they are around calls, so that what a live stream shows does not depend on what is yet to come.
    """
    blocks: list[Block] = []
    if parsed.reasoning and parsed.reasoning.strip():
        blocks.append({"reasoningContent": {"reasoningText": {"text": parsed.reasoning}}})
    text = (raw if cut and calls else parsed.text).lstrip("\n")
    if text.strip():
        blocks.append({"text": text})
    if cut:
        return blocks
    more, last = len(parsed.failures) - _FAILURES, parsed.failures[:_FAILURES][-1:]
    for call, call_id in zip(calls, call_ids, strict=True):
        if isinstance(call, ToolCall):
            use = {"toolUseId": call_id, "name": call.name, "input": call.arguments}
        else:
            use = failed_use(call, call_id, more=max(0, more) if (call,) == last else 0, ends=ends)
        blocks.append({"toolUse": use})
    return blocks


def block_events(block: Block) -> Iterator[Event]:
    """Yield the events of one block."""
    start: dict[str, Any] = {}
    if "toolUse" in block:
        use = block["toolUse"]
        start = {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"]}}
        delta: dict[str, Any] = {"toolUse": {"input": json.dumps(use["input"], ensure_ascii=False)}}
    elif "reasoningContent" in block:
        delta = {"reasoningContent": {"text": block["reasoningContent"]["reasoningText"]["text"]}}
    else:
        delta = {"text": block["text"]}
    yield {"contentBlockStart": {"start": start}}
    yield {"contentBlockDelta": {"delta": delta}}
    yield {"contentBlockStop": {}}


def closing_events(stop_reason: str, usage: dict[str, int], metrics: dict[str, Any]) -> Iterator[Event]:
    """Yield the events that end a message."""
    yield {"messageStop": {"stopReason": stop_reason}}
    yield {"metadata": {"usage": usage, "metrics": metrics}}
