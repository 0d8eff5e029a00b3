"""What every family's parser is: a sampled turn in, `ParsedTurn` out.

To add a family: one file, one subclass, its `scan`. `SampledText` finds markers, `JsonReader` reads JSON where it
stands, `CallFault` says what is wrong.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

from strands_sglang.tool_parsers.parsed import FailedCall, Found, ParsedTurn, ToolCall
from strands_sglang.tool_parsers.reasoning import ReasoningSplit, outside_reasoning, split_reasoning
from strands_sglang.tool_parsers.sampled import SampledText

Schemas: TypeAlias = Mapping[str, Mapping[str, Any]]
"""JSON schema of the parameters of each tool on offer, by the tool's name; empty when not known."""


class ToolParser(ABC):
    """Takes a sampled turn apart. Has no state: one object serves any number of turns and threads at once."""

    name: ClassVar[str]
    """The family, as users write it."""
    reasoning_markers: ClassVar[tuple[str, str]] = ("<think>", "</think>")
    """What opens and closes reasoning; a prompt that ends with the first has opened it."""
    call_markers: ClassVar[tuple[str, ...]] = ()
    """Texts that a call may begin with; a live stream holds its text back from there on. A single character counts only
    at the beginning of the turn's text."""
    shows_text: ClassVar[bool] = True
    """Whether text before a call's marker is text for certain, and may be shown while the turn is sampled."""
    markers: ClassVar[tuple[str, ...]] = ()
    """Every word the format is made of. A turn whose last token is one of them was cut there: it did not end."""
    endings: ClassVar[tuple[str, ...]] = ()
    """Those of the markers that do end a turn, and are part of its words all the same."""

    def parse(self, text: str, *, reasoning_open: bool = False, schemas: Schemas | None = None) -> ParsedTurn:
        """Take one turn apart; raises on no text.

        Args:
            text: The sampled turn, decoded, without its end-of-turn token and with every other special token visible.
                A `SampledText` knows which markers are tokens.
            reasoning_open: The prompt had already opened the reasoning, so the turn begins inside it.
            schemas: JSON schema of the parameters of each tool, by its name, for formats that write every value as
                bare text (`123`: a number or a string?); None when not known.

        Returns:
            The reasoning, the text, the calls and the failed calls.
        """
        sampled = SampledText.of(text)
        split = split_reasoning(sampled, reasoning_open, *self.reasoning_markers)
        found = outside_reasoning(
            sampled,
            split.rest_start,
            lambda seen: self.scan(seen, split.rest_start, schemas or {}),
            *self.reasoning_markers,
        )
        return assemble(sampled, split, found)

    def scan(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[Found]:
        """Yield the calls, failed calls and frames of a turn in the order of the text, none overlapping another.

        Args:
            text: The whole turn.
            at: Where its reasoning ends; nothing before is a call.
            schemas: See `parse`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define scan, or parse")


def assemble(text: str, split: ReasoningSplit, found: Iterable[Found]) -> ParsedTurn:
    """Put a turn together from its parts.

    Args:
        text: The whole turn.
        split: Its reasoning, cut off.
        found: The calls, failed calls and frames behind the reasoning, in the order of the text.

    Returns:
        The turn. Its text is what stands behind the reasoning; where calls, good or failed, were taken out of it, the
        newlines around them go too, blank pieces are dropped and the others joined with a newline.
    """
    calls: list[ToolCall] = []
    failures: list[FailedCall] = []
    pieces: list[str] = []
    at = split.rest_start
    for item in found:
        if isinstance(item, FailedCall):
            failures.append(item)
        elif isinstance(item, ToolCall):
            calls.append(item)
        pieces.append(text[at : item.start])
        at = item.start + len(item.raw)
    remains = split.rest
    if pieces:
        pieces.append(text[at:])
        remains = "\n".join(piece.strip("\n") for piece in pieces if piece.strip())
    return ParsedTurn(split.reasoning, remains, tuple(calls), tuple(failures), split.closed, split.rest_start)
