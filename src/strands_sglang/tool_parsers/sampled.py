"""A sampled turn as text that knows which of its words are tokens.

Most formats mark a call with tokens of their own (`<tool_call>` is one token to Qwen3). The same letters can also be
sampled one by one, as when a model quotes a web page that talks about tool calls. That is text, whatever it looks
like: data never becomes control.

Invariant: where the tokenizer has a marker as a token, only that token is the marker; where it has none, its letters
are. A plain `str` comes from no tokenizer, so the letters count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import NamedTuple

_NOTHING = "\ufffd"


class SampledText(str):
    """A decoded turn, and where in it the tokenizer's control tokens were sampled."""

    _tokens: Collection[int] | None
    _parts: Callable[[str], Collection[int]] | None

    def __new__(
        cls,
        text: str,
        tokens: Collection[int] | None = None,
        parts: Callable[[str], Collection[int]] | None = None,
    ) -> SampledText:
        """Make one.

        Args:
            text: The turn.
            tokens: Offset of each control token that was sampled, in characters; None when that is not known.
            parts: Gives the offset of each control token inside a marker, as the tokenizer would split it.
        """
        made = super().__new__(cls, text)
        made._tokens, made._parts = tokens, parts
        return made

    @classmethod
    def of(cls, text: str) -> SampledText:
        """Return a text as it is if it is one already; else one in which the letters count."""
        return text if isinstance(text, SampledText) else cls(text)

    def has_token(self, marker: str) -> bool:
        """Return whether the tokenizer is known to have a marker, or a part of it, as a token."""
        return self._parts is not None and bool(self._parts(marker))

    def marks(self, marker: str, at: int) -> bool:
        """Return whether a marker stands at an offset."""
        return self.startswith(marker, at) and self._sampled(marker, at)

    def mark(self, marker: str, at: int) -> int:
        """Return the offset of the next marker at or behind an offset; -1 when there is none."""
        found = self.find(marker, at)
        while found >= 0 and not self._sampled(marker, found):
            found = self.find(marker, found + 1)
        return found

    def without(self, start: int, end: int) -> SampledText:
        """Return the text, as long as it is, with nothing but a sign that means nothing from `start` to `end`."""
        text = f"{self[:start]}{_NOTHING * (end - start)}{self[end:]}"
        tokens = None if self._tokens is None else {at for at in self._tokens if not start <= at < end}
        return SampledText(text, tokens, self._parts)

    def _sampled(self, marker: str, at: int) -> bool:
        if self._tokens is None or self._parts is None:
            return True
        return all(at + offset in self._tokens for offset in self._parts(marker))


class Mark(NamedTuple):
    """A marker in a text."""

    marker: str
    """Which one."""
    start: int
    """Offset of its first character."""
    end: int
    """Offset behind its last character."""


class Markers:
    """Several markers, looked for at once: looking for each on its own would read a text as often as there are."""

    def __init__(self, *markers: str) -> None:
        longest_first = sorted(markers, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def next(self, text: SampledText, at: int) -> Mark | None:
        """Return the next of the markers at or behind an offset; None when there is none."""
        found = self._pattern.search(text, at)
        while found is not None and not text.marks(found[0], found.start()):
            found = self._pattern.search(text, found.start() + 1)
        return None if found is None else Mark(found[0], found.start(), found.end())
