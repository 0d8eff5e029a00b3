"""JSON inside sampled text, read strictly and in place.

Invariant: what is read can be written as JSON and encoded as UTF-8 again, means one thing only, is what was written
(no number becomes another, but for the usual rounding of a float), and is the same on every machine: limits are ours,
not those of an interpreter or of how deep its stack already is. Reading many values of one text, good and bad, takes
time in proportion to the text.
"""

from __future__ import annotations

import json
import math
import re
import sys
from decimal import Decimal
from functools import partial
from typing import Any

from strands_sglang.tool_parsers.fault import CallFault, shown
from strands_sglang.tool_parsers.parsed import ParseFailure

MAX_DEPTH = 100
"""Objects and lists inside one another; far below where an interpreter or a later deep copy gives up."""
MAX_DIGITS = 4300
"""Digits of an integer; what Python by default reads and writes."""

_ROUNDING = Decimal("1e-15")
_SPACE = re.compile(r"[ \t\n\r]*")
_CUT = re.compile(r"[ \t\n\r]*|-|\.|[eE][+-]?|t(ru?)?|f(a(ls?)?)?|n(ul?)?|u[0-9a-fA-F]{0,4}")
"""What can stand between a fault and the end of a text that was cut in the middle of a value."""

_SURROGATE = re.compile("[\ud800-\udfff]")

_Problems = list[tuple[ParseFailure, str]]


def skip_space(text: str, at: int) -> int:
    """Return where the JSON whitespace that begins at `at` ends."""
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # matches everywhere


def unheld(value: float, digits: str) -> str | None:
    """Return in words why a float is not the number that digits say; None when it is, but for the usual rounding."""
    if math.isinf(value):
        return "too large"
    if abs(value) >= sys.float_info.min:
        return None
    # Below that a float loses digits, and at last all of them.
    mantissa = re.split("[eE]", digits, maxsplit=1)[0]
    if value == 0.0:
        return "too small" if any(digit in mantissa for digit in "123456789") else None
    exact = Decimal(digits)
    if exact == Decimal(repr(value)) or abs(exact - Decimal(value)) <= abs(exact) * _ROUNDING:
        return None
    return "too small"


class JsonReader:
    """Reads JSON values that stand in a text."""

    def __init__(self, text: str) -> None:
        self._text = _Text(text)
        self._problems: _Problems = []
        self._decoder = json.JSONDecoder(
            object_pairs_hook=partial(_object, self._problems),
            parse_constant=partial(_constant, self._problems),
            parse_float=partial(_float, self._problems),
            parse_int=partial(_int, self._problems),
        )

    def read(self, at: int) -> tuple[Any, int]:
        """Read the value that begins at `at`, or behind whitespace there.

        Returns:
            The value, and where it ends.

        Raises:
            CallFault: There is no such value, or none that can be used as it stands.
        """
        self._problems.clear()
        at = skip_space(self._text, at)
        try:
            value, end = self._decoder.raw_decode(self._text, at)
        except json.JSONDecodeError as error:
            words = error.msg.removesuffix(" at").removesuffix(" starting").rstrip(": ")
            words = f"The JSON is not valid: {words[:1].lower()}{words[1:]}"
            raise CallFault(ParseFailure.INVALID_JSON, words, past=error.pos, at=error.pos) from None
        except RecursionError:
            raise CallFault(ParseFailure.INVALID_JSON, _TOO_DEEP, past=at) from None
        _check(self._problems, value)
        if self._problems:
            failure, words = self._problems[0]
            raise CallFault(failure, words, past=end)
        return value, end

    def was_cut(self, fault: CallFault) -> bool:
        """Tell whether a fault of `read` is only that the text ends in the middle of the value."""
        if fault.at is None:
            return False
        return "unterminated string" in fault.words or _CUT.fullmatch(self._text, fault.at) is not None


class _Text(str):
    """A text that has no lines: the decoder's error counts all those before it, each time, and we use none."""

    __slots__ = ()

    def count(self, *_: Any) -> int:
        return 0

    def rfind(self, *_: Any) -> int:
        return -1


_TOO_DEEP = f"The JSON is nested more than {MAX_DEPTH} levels deep"


def _object(problems: _Problems, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        left = set(made)
        for key, _ in pairs:
            if key not in left:
                problems.append((ParseFailure.DUPLICATE_KEY, f"The key {shown(key)} stands twice in one JSON object"))
                break
            left.remove(key)
    return made


def _constant(problems: _Problems, word: str) -> None:
    problems.append((ParseFailure.INVALID_JSON, f"The JSON is not valid: {word} is not a JSON value"))


def _float(problems: _Problems, digits: str) -> float:
    value = float(digits)
    if fault := unheld(value, digits):
        problems.append((ParseFailure.INVALID_JSON, f"The number {shown(digits)} in the JSON is {fault}"))
    return value


def _int(problems: _Problems, digits: str) -> int:
    if len(digits) <= MAX_DIGITS:
        try:
            return int(digits)
        except ValueError:  # the process has a lower limit of its own
            pass
    problems.append((ParseFailure.INVALID_JSON, f"A number in the JSON has {len(digits)} digits, which is too many"))
    return 0


def _check(problems: _Problems, value: Any) -> None:
    """Look for what only the whole value shows: depth, and strings that UTF-8 cannot hold."""
    level = [value]
    depth = 0
    while level:
        strings = [item for item in level if isinstance(item, str)]
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                strings.extend(item)
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        for string in strings:
            if not string.isascii() and _SURROGATE.search(string):
                words = f"The JSON string {shown(string)} holds half of a surrogate pair"
                problems.append((ParseFailure.INVALID_JSON, words))
                return
        if depth == MAX_DEPTH and any(isinstance(item, (dict, list)) for item in level):
            problems.append((ParseFailure.INVALID_JSON, _TOO_DEEP))
            return
        level = below
        depth += 1
