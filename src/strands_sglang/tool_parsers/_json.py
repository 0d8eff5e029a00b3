"""Strict JSON inside sampled text, read in place; and a call written as one JSON object.

Invariant: a value that is read can be written as JSON and encoded as UTF-8 again, is unambiguous, equals what was
written (apart from the usual rounding of a float), and is the same on every machine: the limits are this module's, not
the interpreter's. Reading many values of one text, valid or not, takes time proportional to the text.
"""

from __future__ import annotations

import json
import math
import re
import sys
from decimal import Decimal
from functools import partial
from typing import Any

from strands_sglang.tool_parsers.parsed import CallFault, ParseFailure, SampledText, quoted

MAX_DEPTH = 100
"""Levels of nesting in JSON, far below what the interpreter or a later deep copy can handle."""
MAX_DIGITS = 4300
"""Digits of a number: Python's own default for reading and writing integers."""

_ROUNDING = Decimal("1e-15")
_SPACE = re.compile(r"[ \t\n\r]*")
_CUT = re.compile(r"[ \t\n\r]*|-|\.|[eE][+-]?|t(ru?)?|f(a(ls?)?)?|n(ul?)?|u[0-9a-fA-F]{0,4}")

_SURROGATE = re.compile("[\ud800-\udfff]")

_Problems = list[tuple[ParseFailure, str]]


def skip_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # matches everywhere


def float_problem(value: float, digits: str) -> str | None:
    """Why a float differs from the number in `digits`; None if it is equal, apart from the usual rounding."""
    if math.isinf(value):
        return "too large"
    if abs(value) >= sys.float_info.min:
        return None
    # Below the smallest normal float, digits are lost.
    mantissa = re.split("[eE]", digits, maxsplit=1)[0]
    if value == 0.0:
        return "too small" if any(digit in mantissa for digit in "123456789") else None
    exact = Decimal(digits)
    if exact == Decimal(repr(value)) or abs(exact - Decimal(value)) <= abs(exact) * _ROUNDING:
        return None
    return "too small"


class JsonReader:
    """Reads JSON values inside a text.

    Example:
        >>> JsonReader('CALL: {"a": 1} done').read(5)
        ({'a': 1}, 14)
    """

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
        """Return the value at `at`, or after whitespace there, and the offset at which it ends."""
        self._problems.clear()
        at = skip_space(self._text, at)
        try:
            value, end = self._decoder.raw_decode(self._text, at)
        except json.JSONDecodeError as error:
            reason = error.msg.removesuffix(" at").removesuffix(" starting").rstrip(": ")
            message = f"The JSON is not valid: {reason[:1].lower()}{reason[1:]}"
            raise CallFault(ParseFailure.INVALID_JSON, message, past=error.pos, at=error.pos) from None
        except RecursionError:
            raise CallFault(ParseFailure.INVALID_JSON, _TOO_DEEP, past=at) from None
        _check(self._problems, value)
        if self._problems:
            failure, message = self._problems[0]
            raise CallFault(failure, message, past=end)
        return value, end

    def was_cut(self, fault: CallFault) -> bool:
        if fault.at is None:
            return False
        return "unterminated string" in fault.message or _CUT.fullmatch(self._text, fault.at) is not None


class _Text(str):
    """The decoder's error counts the lines before it each time, and that count is not used."""

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
                problems.append((ParseFailure.DUPLICATE_KEY, f"The key {quoted(key)} occurs twice in one JSON object"))
                break
            left.remove(key)
    return made


def _constant(problems: _Problems, word: str) -> None:
    problems.append((ParseFailure.INVALID_JSON, f"The JSON is not valid: {word} is not a JSON value"))


def _float(problems: _Problems, digits: str) -> float:
    value = float(digits)
    if fault := float_problem(value, digits):
        problems.append((ParseFailure.INVALID_JSON, f"The number {quoted(digits)} in the JSON is {fault}"))
    return value


def _int(problems: _Problems, digits: str) -> int:
    if len(digits) <= MAX_DIGITS:
        try:
            return int(digits)
        except ValueError:  # this process has a lower limit
            pass
    problems.append((ParseFailure.INVALID_JSON, f"A number in the JSON has {len(digits)} digits, which is too many"))
    return 0


def _check(problems: _Problems, value: Any) -> None:
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
                message = f"The JSON string {quoted(string)} contains a lone surrogate"
                problems.append((ParseFailure.INVALID_JSON, message))
                return
        if depth == MAX_DEPTH and any(isinstance(item, (dict, list)) for item in level):
            problems.append((ParseFailure.INVALID_JSON, _TOO_DEEP))
            return
        level = below
        depth += 1


class TurnJson:
    """Reads the JSON of a turn that may be cut off, and in which markers may be inside strings.

    A string that is open when the turn ends reaches to the end of the turn. Markers in it are part of it, so nothing
    after its beginning is taken for another call.
    """

    def __init__(self, text: SampledText) -> None:
        self._text = text
        self._reader = JsonReader(text)

    def read(self, at: int, closing: str | None = None) -> tuple[Any, int]:
        """Return the value at `at`, or after whitespace there, and the offset at which it ends.

        `closing`: the marker that ends such a call or begins the next. `UNCLOSED` is raised only if there is none.
        """
        try:
            return self._reader.read(at)
        except CallFault as fault:
            if not self._reader.was_cut(fault):
                raise
            if closing is not None and self._text.mark(closing, fault.past) >= 0:
                raise CallFault(fault.failure, fault.message, past=len(self._text), at=fault.at) from None
            message = "The turn ended in the middle of the JSON of a tool call"
            raise CallFault(ParseFailure.UNCLOSED, message, past=len(self._text)) from None

    def pass_over(self, at: int, stop: int) -> int:
        """Return where the first object in a part of a malformed call ends.

        The part ends at `stop`, an apparent marker, which may be inside a string of the object. `at` is returned if
        there is no object, or no string in it. Only markers after the returned offset count.
        """
        begin = self._text.find("{", at, stop)
        if begin < 0 or self._text.find('"', begin, stop) < 0:
            return at
        try:
            return self._reader.read(begin)[1]
        except CallFault as fault:
            return len(self._text) if self._reader.was_cut(fault) else fault.past


def is_whole(fault: CallFault, at: int) -> bool:
    """Return whether the value at `at` is complete and merely unusable; it then ends at `fault.past`."""
    return fault.at is None and fault.past > at and fault.failure is not ParseFailure.UNCLOSED


def name_of(value: Any, past: int) -> str:
    """Return the name of the tool that a JSON value, which ends at offset `past`, calls; raise CallFault without one.

    Example:
        >>> name_of({"name": "add", "arguments": {}}, past=30)
        'add'
    """
    if not isinstance(value, dict):
        message = f"A tool call must be a JSON object, not {kind_of(value)}"
        raise CallFault(ParseFailure.NOT_AN_OBJECT, message, past=past)
    if "name" not in value:
        raise CallFault(ParseFailure.MISSING_NAME, 'The tool call has no key "name"', past=past)
    name = value["name"]
    if not isinstance(name, str) or not name.strip():
        kind = "a blank one" if isinstance(name, str) else kind_of(name)
        message = f'The "name" of a tool call must be a string that names a tool, not {kind}'
        raise CallFault(ParseFailure.MISSING_NAME, message, past=past)
    return name


def arguments_of(value: dict[str, Any], past: int, key: str = "arguments") -> dict[str, Any]:
    """Return the arguments of a call, which ends at offset `past`; raise CallFault if they are not an object.

    Example:
        >>> arguments_of({"name": "add", "arguments": {"a": 1}}, past=37)
        {'a': 1}
    """
    if key not in value:
        message = f'The tool call has no key "{key}"; a call without arguments needs "{key}": {{}}'
        raise CallFault(ParseFailure.BAD_ARGUMENTS, message, past=past)
    return as_arguments(value[key], past, f'"{key}"')


def as_arguments(value: Any, past: int, what: str = "arguments") -> dict[str, Any]:
    if not isinstance(value, dict):
        message = f"The {what} of a tool call must be a JSON object, not {kind_of(value)}"
        raise CallFault(ParseFailure.BAD_ARGUMENTS, message, past=past)
    return value


def kind_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "a number"
