"""Calls written as Python, by Llama 4 and Llama 3.2, and by Gemma 3 if the prompt requests it.

    [get_weather(city="Paris", days=3), now()]
    <|python_start|>[now()]<|python_end|>

Without markers, only its form distinguishes such a list from prose. So the list must be the whole turn after the
reasoning, apart from whitespace, and it counts as an attempt at a call only if it begins with a bracket, a name and a
parenthesis: a link (`[text](url)`) and a JSON list are text. With markers, text before and after them is allowed.

A list is one literal: if any part of it is malformed, none of it is a call, and everything from its beginning to the
end of the turn is one failed call. Later text changes the meaning of earlier text: `[f(a=1) for a in range(3)]` and
`[f(a=1) if x else g()]` begin with a perfect call that is not meant, and Python refuses a whole list for one repeated
keyword. It is also unclear where a malformed list ends, because its strings may contain brackets and markers.

Arguments have names (`f(1)` is malformed). Tool names are Python identifiers, joined by dots: `get-weather(...)` is a
subtraction in Python and a malformed call here.

Invariant: a turn is a list of well-formed calls, or contains one failed call, or is text. The calls of a list divide
its text among them: the first has the opening bracket and marker, each other call the comma before it, and the last
what closes the list, so that nothing remains in the turn's text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar

from typing_extensions import override

from strands_sglang.tool_parsers._python import PythonReader, skip_blanks
from strands_sglang.tool_parsers.base import Schemas, ToolParser
from strands_sglang.tool_parsers.parsed import CallFault, FailedCall, ParseFailure, SampledText, ToolCall

_OPENING = "<|python_start|>"
_CLOSING = "<|python_end|>"

_ATTEMPT = re.compile(r"\s*(?=\[\s*[^\W\d][\w.-]*\()")
_NAME = re.compile(r"[\w.-]*")


class PythonicToolParser(ToolParser):
    """Strict parser of `[f(a=1), g()]`, with or without `<|python_start|>` and `<|python_end|>` around it."""

    name: ClassVar[str] = "pythonic"
    call_markers: ClassVar[tuple[str, ...]] = ("[", _OPENING)
    markers: ClassVar[tuple[str, ...]] = (_OPENING, _CLOSING)

    @override
    def scan(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[ToolCall | FailedCall]:
        attempt = _ATTEMPT.match(text, at)
        if attempt is not None:
            yield from _List(text, attempt.end(), "").read()
            return
        start = text.mark(_OPENING, at)
        while start >= 0:
            found = _List(text, start, _OPENING)
            yield from found.read()
            start = text.mark(_OPENING, found.end)


class _List:
    def __init__(self, text: SampledText, start: int, opening: str) -> None:
        self._text, self._start, self._opening = text, start, opening
        self._reader = PythonReader(text)
        self._calls: list[tuple[str, dict[str, Any], int]] = []
        self._only: str | None = None  # the called tool, while it is the only one
        self.end = len(text)
        """Offset at which the list ends, its closing marker included; the end of the text if it is malformed."""

    def read(self) -> list[ToolCall | FailedCall]:
        try:
            self.end = self._closed(self._read(self._start + len(self._opening)))
        except CallFault as fault:
            return [self._failed(fault)]
        found: list[ToolCall | FailedCall] = []
        at = self._start
        for number, (name, arguments, end) in enumerate(self._calls, 1):
            end = end if number < len(self._calls) else self.end
            found.append(ToolCall(name=name, arguments=arguments, raw=self._text[at:end], start=at))
            at = end
        return found

    def _read(self, at: int) -> int:
        text = self._text
        at = skip_blanks(text, at)
        if not text.startswith("[", at):
            raise _fault(
                f"Between {_OPENING} and {_CLOSING} there must be a list of calls, as in [name(key=value)]", at
            )
        separator = ","
        while separator == ",":
            at = skip_blanks(text, at + 1)
            if self._calls and text.startswith("]", at):
                break
            self._only = None
            name, at = _name(text, at)
            self._only = None if self._calls else name
            arguments, at = self._reader.read_keywords(at)
            self._calls.append((name, arguments, at))
            at = skip_blanks(text, at)
            separator = text[at : at + 1]
            if separator not in (",", "]"):
                raise _fault("After a call there must be , or ]", at)
        return at + 1

    def _closed(self, past: int) -> int:
        text = self._text
        at = skip_blanks(text, past)
        if self._opening:
            if text.marks(_CLOSING, at):
                return at + len(_CLOSING)
            if at == len(text) or text.mark(_CLOSING, at) < 0:
                message = f"The list of calls is not followed by {_CLOSING}"
                raise CallFault(ParseFailure.UNCLOSED, message, past=past)
            message = f"Between a list of calls and {_CLOSING} there must be nothing else"
            raise CallFault(ParseFailure.TRAILING_TEXT, message, past=past, at=at)
        if text[at:].strip():
            message = "After a list of calls there must be nothing else"
            raise CallFault(ParseFailure.TRAILING_TEXT, message, past=past, at=at)
        return past

    def _failed(self, fault: CallFault) -> FailedCall:
        if fault.failure is ParseFailure.INVALID_LITERAL and self._reader.was_cut(fault):
            fault = CallFault(ParseFailure.UNCLOSED, "The turn ended in the middle of a list of calls", past=self.end)
        return fault.failed(self._text, self._start, len(self._text), self._only)


def _name(text: str, at: int) -> tuple[str, int]:
    found = _NAME.match(text, at)
    assert found is not None  # matches everywhere
    name = found[0]
    if found.end() == len(text):
        raise _fault("The list of calls is not finished", found.end())
    if not name.isidentifier() and not all(part.isidentifier() for part in name.split(".")):
        message = "The name of a tool must be a Python identifier, or several joined by dots"
        raise CallFault(ParseFailure.MISSING_NAME, message, past=at, at=at)
    if not text.startswith("(", found.end()):
        message = "The name of a tool must be followed by its arguments in parentheses, as in name(key=value)"
        raise CallFault(ParseFailure.BAD_ARGUMENTS, message, past=at, at=at)
    return name, found.end() + 1


def _fault(message: str, at: int) -> CallFault:
    return CallFault(ParseFailure.INVALID_LITERAL, message, past=at, at=at)
