"""Where the reasoning of a turn ends.

Invariant: reasoning stands only at the beginning of a turn, and whatever stands in it is never a call. The same
markers anywhere later, for example inside an argument, are plain text.
"""

from __future__ import annotations

from typing import NamedTuple

from strands_sglang.tool_parsers.sampled import SampledText


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
