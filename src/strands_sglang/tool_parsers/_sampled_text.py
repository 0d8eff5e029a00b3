"""A sampled turn as text, with a record of which of its markers were sampled as tokens.

Most formats mark a call with tokens of their own: `<tool_call>` is one token to Qwen3. The same letters can also be
sampled one by one, for example when a model quotes a web page about tool calls. Those letters are text, because data
must never become control.

Invariant: if the tokenizer has a marker as a token, only that token is the marker. If it has none, the letters are. A
plain `str` comes from no tokenizer, so its letters count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import NamedTuple

_NOTHING = "\ufffd"


class SampledText(str):
    """A decoded turn, with the offsets of the control tokens in it.

    Example:
        >>> quoted = SampledText("<tool_call>", tokens=(), parts=lambda marker: [0])
        >>> quoted.mark("<tool_call>", 0), SampledText("<tool_call>").mark("<tool_call>", 0)
        (-1, 0)
    """

    _tokens: Collection[int] | None
    _parts: Callable[[str], Collection[int]] | None

    def __new__(
        cls,
        text: str,
        tokens: Collection[int] | None = None,
        parts: Callable[[str], Collection[int]] | None = None,
    ) -> SampledText:
        """`tokens`: offset of each sampled control token, in characters; None if unknown.

        `parts` returns the offset of each control token inside a marker, as the tokenizer splits it.
        """
        made = super().__new__(cls, text)
        made._tokens, made._parts = tokens, parts
        return made

    @classmethod
    def of(cls, text: str) -> SampledText:
        """Letters count as markers in a plain string."""
        return text if isinstance(text, SampledText) else cls(text)

    def has_token(self, marker: str) -> bool:
        """Whether the tokenizer is known to have a marker, or a part of it, as a token."""
        return self._parts is not None and bool(self._parts(marker))

    def marks(self, marker: str, at: int) -> bool:
        return self.startswith(marker, at) and self._sampled(marker, at)

    def mark(self, marker: str, at: int) -> int:
        found = self.find(marker, at)
        while found >= 0 and not self._sampled(marker, found):
            found = self.find(marker, found + 1)
        return found

    def without(self, start: int, end: int) -> SampledText:
        """Return the text at the same length, with placeholder characters from `start` to `end`."""
        text = f"{self[:start]}{_NOTHING * (end - start)}{self[end:]}"
        tokens = None if self._tokens is None else {at for at in self._tokens if not start <= at < end}
        return SampledText(text, tokens, self._parts)

    def _sampled(self, marker: str, at: int) -> bool:
        if self._tokens is None or self._parts is None:
            return True
        return all(at + offset in self._tokens for offset in self._parts(marker))


class Mark(NamedTuple):
    marker: str
    start: int
    end: int


class Markers:
    """Searched for in one pass over the text."""

    def __init__(self, *markers: str) -> None:
        longest_first = sorted(markers, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def next(self, text: SampledText, at: int) -> Mark | None:
        found = self._pattern.search(text, at)
        while found is not None and not text.marks(found[0], found.start()):
            found = self._pattern.search(text, found.start() + 1)
        return None if found is None else Mark(found[0], found.start(), found.end())
