"""JSON in a turn that may have been cut, and in which markers may stand inside strings.

Invariant: a string that is open when the turn ends reaches to the end of the turn. Markers in it are part of it, so
nothing behind its beginning is ever taken for another call.
"""

from __future__ import annotations

from typing import Any

from strands_sglang.tool_parsers.fault import CallFault
from strands_sglang.tool_parsers.parsed import ParseFailure
from strands_sglang.tool_parsers.sampled import SampledText
from strands_sglang.tool_parsers.strict_json import JsonReader


class TurnJson:
    """Reads the JSON of a turn."""

    def __init__(self, text: SampledText) -> None:
        self._text = text
        self._reader = JsonReader(text)

    def read(self, at: int, closing: str | None = None) -> tuple[Any, int]:
        """Read the value that begins at `at`, or behind whitespace there.

        Args:
            at: Where to begin.
            closing: The marker that ends such a call or begins the next; None when the format has none.

        Returns:
            The value, and where it ends.

        Raises:
            CallFault: There is no such value, or none that can be used as it stands; `UNCLOSED` when the turn ends in
                the middle of it and no closing marker is to be seen.
        """
        try:
            return self._reader.read(at)
        except CallFault as fault:
            if not self._reader.was_cut(fault):
                raise
            if closing is not None and self._text.mark(closing, fault.past) >= 0:
                raise CallFault(fault.failure, fault.words, past=len(self._text), at=fault.at) from None
            words = "The turn ended in the middle of the JSON of a tool call"
            raise CallFault(ParseFailure.UNCLOSED, words, past=len(self._text)) from None

    def pass_over(self, at: int, stop: int) -> int:
        """Return where the object ends that is the first to begin in a part of a broken call.

        Args:
            at: Where the part begins.
            stop: Where it ends: at what looks like a marker, and may yet be inside a string of the object.

        Returns:
            The place up to which the object could be read; `at` when there is none, or no string in it. Only from
            there on markers are markers.
        """
        begin = self._text.find("{", at, stop)
        if begin < 0 or self._text.find('"', begin, stop) < 0:
            return at
        try:
            return self._reader.read(begin)[1]
        except CallFault as fault:
            return len(self._text) if self._reader.was_cut(fault) else fault.past


def is_whole(fault: CallFault, at: int) -> bool:
    """Return whether the value that was read at `at` is whole, and only unusable; then it ends at `fault.past`."""
    return fault.at is None and fault.past > at and fault.failure is not ParseFailure.UNCLOSED
