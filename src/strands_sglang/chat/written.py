"""Which control tokens of a rendered text its template wrote.

The template is rendered with a mark in place of each control token it names (`ControlTokens.marked`), so its own are
known by their marks, and every other literal in the text has come from data, whatever the template did with that:
glued its own words to it, cut it, took words out of it. Some templates put literals together from pieces (`<|` and a
role and `|>`); those are told to `settled` by name, and data must have no part in them (`Escapes.escape`).

Invariant: in a settled text, every literal of a control token was written by the template.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from strands_sglang.chat.control import ControlTokens, Occurrence
from strands_sglang.chat.escapes import Escapes


def strays(control: ControlTokens, text: str, written: Sequence[Occurrence]) -> list[str]:
    """Return the literals in a text that are not, or not wholly, what the template wrote, in order.

    Args:
        control: The tokenizer's control tokens.
        text: A rendered text, without marks.
        written: The control tokens that had a mark in it, in order.
    """
    found = list(control.find(text))
    if found == written:
        return []
    own = _Own(written)
    return [control.texts[token.id] for token in found if own.outside(token) is not None]


def settled(
    control: ControlTokens, text: str, written: Sequence[Occurrence], escapes: Escapes, composed: Collection[str] = ()
) -> str:
    """Return a text in which only the template's own literals are left.

    Args:
        control: The tokenizer's control tokens.
        text: A rendered text, without marks.
        written: The control tokens that had a mark in it, in order.
        escapes: Keeps what is taken out.
        composed: Further literals that are the template's own wherever they stand outside of a mark.

    Returns:
        The text, as long as it was: one character of each other literal is a stand-in now.
    """
    own = _Own(written)
    pieces: list[str] = []
    at = done = 0
    while (token := next(control.find(text, at), None)) is not None:
        place = own.outside(token)
        if place is None or (control.texts[token.id] in composed and not own.touches(token)):
            at = token.end
            continue
        if place > token.start:
            # A token of the template's, and data behind it, make a longer one.
            text = f"{text[:place]}{escapes.single(text[place])}{text[place + 1 :]}"
            continue
        pieces += (text[done:place], escapes.single(text[place]))
        at = done = place + 1
    pieces.append(text[done:])
    return "".join(pieces)


class _Own:
    """Where a template's control tokens stand in a text. Asked from left to right."""

    def __init__(self, written: Sequence[Occurrence]) -> None:
        self._written = written
        self._next = 0

    def outside(self, token: Occurrence) -> int | None:
        """Return the first place of a token that is in none of them; None when all of it is."""
        self._pass(token.start)
        at, number = token.start, self._next
        while at < token.end and number < len(self._written) and self._written[number].start <= at:
            at = self._written[number].end
            number += 1
        return at if at < token.end else None

    def touches(self, token: Occurrence) -> bool:
        """Return whether any of a token is in them."""
        self._pass(token.start)
        return self._next < len(self._written) and self._written[self._next].start < token.end

    def _pass(self, at: int) -> None:
        while self._next < len(self._written) and self._written[self._next].end <= at:
            self._next += 1
