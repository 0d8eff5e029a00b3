"""Lists and objects of values inside sampled text, read in place: `ContainerReader`.

Formats that are not JSON write a list and an object as JSON does, and differ in their keys, their values, and whether a
comma may come last.

Invariant: reading is not recursive, and takes time proportional to the text.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from strands_sglang.tool_parsers._json import MAX_DEPTH
from strands_sglang.tool_parsers.parsed import CallFault, ParseFailure


class ContainerReader:
    """A format defines how its keys and values are read."""

    subject: ClassVar[str]
    """What is read, with its verb: the beginning of an error message."""
    blanks: ClassVar[re.Pattern[str]]
    after: ClassVar[re.Pattern[str]]
    """What may follow a value: a comma or a closing bracket, and blanks around it."""
    last_comma: ClassVar[bool] = False
    """Whether a comma may come last."""

    def __init__(self, text: str) -> None:
        self._text = text

    def _key(self, keys: dict[str, None], closing: str, at: int) -> int:
        """Read a key of an object that ends with `closing`, add it to `keys`, and return where its value begins."""
        raise NotImplementedError

    def _value(self, at: int) -> tuple[Any, str, int, int]:
        """Return a value that is no list and no object, and what follows it (`_after`)."""
        raise NotImplementedError

    def _after(self, at: int) -> tuple[str, int, int]:
        """Return the comma or the bracket after a value ("" if there is neither), where it is, and what follows it."""
        found = self.after.match(self._text, at)
        assert found is not None  # matches everywhere
        return found[1], found.start(1), found.end()

    def _container(self, closing: str, at: int) -> tuple[Any, int]:
        """Return the list or object whose content begins at `at`, and the offset after its closing bracket."""
        text = self._text
        keys: dict[str, None] = {}  # in order; empty in a list
        values: list[Any] = []
        around: list[tuple[dict[str, None], list[Any], str]] = []
        stop = at = self._past_blanks(at)
        while True:
            # After an opening bracket, where `at` is `stop`: the end, or a value; after a comma: another value.
            if text.startswith(closing, at) and (self.last_comma or at == stop):
                stop = at
            else:
                if closing != "]":
                    at = self._key(keys, closing, at)
                opening = text[at : at + 1]
                if opening == "[" or opening == "{":
                    around.append((keys, values, closing))
                    if len(around) == MAX_DEPTH:
                        message = f"{self.subject} nested more than {MAX_DEPTH} levels deep"
                        raise CallFault(ParseFailure.INVALID_LITERAL, message, past=at)
                    keys, values, closing = {}, [], "]" if opening == "[" else "}"
                    stop = at = self._past_blanks(at + 1)
                    continue
                value, separator, stop, at = self._value(at)
                values.append(value)
                if separator == ",":
                    continue
                self._check_closed(separator, closing, stop)
            # The container that ends at `stop` is a value of the enclosing one, which may end as well.
            while True:
                value = values if closing == "]" else dict(zip(keys, values, strict=True))
                if not around:
                    return value, stop + 1
                keys, values, closing = around.pop()
                values.append(value)
                separator, stop, at = self._after(stop + 1)
                if separator == ",":
                    break
                self._check_closed(separator, closing, stop)

    def _past_blanks(self, at: int) -> int:
        return self.blanks.match(self._text, at).end()  # type: ignore[union-attr]  # matches everywhere

    def _check_closed(self, separator: str, closing: str, at: int) -> None:
        if separator != closing:
            raise invalid_literal(self.subject, f"expecting , or {closing}", at)


def invalid_literal(subject: str, message: str, at: int) -> CallFault:
    """Return the fault of a value that is not written as its format requires."""
    return CallFault(ParseFailure.INVALID_LITERAL, f"{subject} not valid: {message}", past=at, at=at)
