"""From a sampled turn to the content blocks the framework keeps, and to the events that make it build them.

Invariant: the message the framework builds from the events is the one predicted here, block for block, so that the
turn is found again by content.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from strands_sglang.tool_parsers import ParsedTurn

Block = dict[str, Any]
"""A content block, as the framework keeps it."""
Event = dict[str, Any]
"""A stream event, as the framework reads it."""


def blocks_of(parsed: ParsedTurn, call_ids: Sequence[str], *, cut: bool, raw: str) -> list[Block]:
    """Return the content blocks of a turn.

    Args:
        parsed: The turn, taken apart.
        call_ids: An id for each of its calls.
        cut: Whether the turn was cut by its budget. No call of such a turn is run: the framework would replace each
            by a sentence of its own, and message and tokens would part; they stay in the text as they were written.
        raw: The turn's text behind its reasoning, calls included.

    Returns:
        Reasoning, text and calls, in this order; none of them blank. Newlines in front of the text are left out, as
        they are around calls, so that what a live stream shows does not depend on what is yet to come.
    """
    blocks: list[Block] = []
    if parsed.reasoning and parsed.reasoning.strip():
        blocks.append({"reasoningContent": {"reasoningText": {"text": parsed.reasoning}}})
    text = (raw if cut and parsed.calls else parsed.text).lstrip("\n")
    if text.strip():
        blocks.append({"text": text})
    if not cut:
        for call, call_id in zip(parsed.calls, call_ids, strict=True):
            blocks.append({"toolUse": {"toolUseId": call_id, "name": call.name, "input": call.arguments}})
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
