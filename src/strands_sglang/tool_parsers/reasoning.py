"""Where the reasoning of a turn is.

The reasoning of a turn stands at its beginning. Some models open another block later; that stays text for the reader,
but what is drafted in it is no call. The markers inside a call, in an argument for example, are plain text.

Invariant: whatever stands in reasoning, wherever that opens, is never a call. Where a later block is not closed, a call
behind its opening is a failed one (`MISPLACED`): the model may have meant it, and is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from strands_sglang.tool_parsers.fault import CallFault
from strands_sglang.tool_parsers.parsed import FailedCall, Found, Frame, ParseFailure
from strands_sglang.tool_parsers.sampled import SampledText

_MAX_BLOCKS = 16
"""Later blocks of one turn whose drafts are passed over; what begins as a call behind those is a failed one."""


class ReasoningSplit(NamedTuple):
    """A turn, cut behind its reasoning."""

    reasoning: str | None
    """The reasoning, newlines around it taken off; None when there is no reasoning block, "" when it is empty."""
    rest: str
    """What follows: exactly `text[rest_start:]`."""
    rest_start: int
    """Where `rest` begins in the text, in characters; behind the newlines that follow the reasoning."""
    closed: bool
    """False: reasoning was opened and never closed; then `rest` is empty."""


def split_reasoning(
    text: str, reasoning_open: bool, opening: str = "<think>", closing: str = "</think>"
) -> ReasoningSplit:
    """Cut a turn behind its reasoning.

    Args:
        text: The sampled turn.
        reasoning_open: The prompt had already opened the reasoning, so the turn begins inside it. A model that opens
            it once more is tolerated.
        opening: The marker that begins reasoning; whitespace may stand before it.
        closing: The marker that ends it; the first one counts.

    Returns:
        The two parts. Without any reasoning, the rest is the text as it is.
    """
    text = SampledText.of(text)
    start = len(text) - len(text.lstrip())
    opened = text.marks(opening, start)
    if not opened and not reasoning_open:
        return ReasoningSplit(None, text, 0, True)
    begin = start + len(opening) if opened else 0
    end = text.mark(closing, begin)
    if end < 0:
        return ReasoningSplit(text[begin:].strip("\n"), "", len(text), False)
    rest = text[end + len(closing) :].lstrip("\n")
    return ReasoningSplit(text[begin:end].strip("\n"), rest, len(text) - len(rest), True)


def outside_reasoning(
    text: SampledText, at: int, scan: Callable[[SampledText], Iterable[Found]], opening: str, closing: str
) -> list[Found]:
    """Return what a scan finds in a turn outside of the reasoning that opens behind the turn's beginning.

    Args:
        text: The sampled turn.
        at: Where the reasoning at its beginning ends.
        scan: Finds calls, failed calls and frames in the turn, in the order of the text.
        opening: The marker that begins reasoning.
        closing: The marker that ends it.
    """
    found = list(scan(text))
    if not found or text.mark(opening, at) < 0:
        return found
    seen = text
    for _ in range(_MAX_BLOCKS):
        block = _drafting(seen, at, found, opening, closing)
        if block is None:
            return [_of(text, item) for item in found]
        start, end = block
        if end < 0:
            break
        seen = seen.without(start, end)
        found = list(scan(seen))
    else:
        block = _drafting(seen, at, found, opening, closing)
        start = len(text) if block is None else block[0]
    said = f"The tool call stands behind {opening} and inside of reasoning, which holds no calls; close it first"
    kept = [_of(text, item) for item in found if item.start < start]
    for item in found:
        if item.start > start and not isinstance(item, Frame):
            end = item.start + len(item.raw)
            fault = CallFault(ParseFailure.MISPLACED, said, past=end)
            kept.append(fault.failed(text, item.start, end, item.name))
    return kept


def _drafting(text: SampledText, at: int, found: list[Found], opening: str, closing: str) -> tuple[int, int] | None:
    """Return begin and end of the first block of reasoning in which something begins as a call; end -1: it has none."""
    number = 0
    while (start := text.mark(opening, at)) >= 0:
        while number < len(found) and found[number].start + len(found[number].raw) <= start:
            number += 1
        if number == len(found):
            return None
        item = found[number]
        if item.start <= start:  # the marker stands inside a call
            at = item.start + len(item.raw)
            continue
        end = text.mark(closing, start + len(opening))
        if end < 0 or item.start < end:
            return start, end if end < 0 else end + len(closing)
        at = end + len(closing)
    return None


def _of(text: SampledText, item: Found) -> Found:
    """Return what was found in a text without its drafts as it stands in the text itself."""
    raw = text[item.start : item.start + len(item.raw)]
    if raw == item.raw:
        return item
    if isinstance(item, Frame):
        return item._replace(raw=raw)
    if isinstance(item, FailedCall):
        return replace(item, raw=raw)
    said = "Reasoning stands inside of the tool call"
    fault = CallFault(ParseFailure.MISPLACED, said, past=item.start + len(raw))
    return fault.failed(text, item.start, item.start + len(raw), item.name)
