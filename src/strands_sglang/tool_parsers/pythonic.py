"""Calls written as Python, which Llama 4 and Llama 3.2 write, and Gemma 3 when a prompt asks for it.

    [get_weather(city="Paris", days=3), now()]
    <|python_start|>[now()]<|python_end|>

Without markers, only its shape tells such a list from prose. So the list must be the whole turn behind the reasoning,
up to white space, and it is an attempt at a call only if it begins with a bracket, a name and a parenthesis: a link
(`[text](url)`) and a JSON list are text. With markers, text may stand before and behind them.

A list is one literal: if it is broken anywhere, none of it is a call, and everything from its beginning to the end of
the turn is one failed call. What comes later decides what came before: `[f(a=1) for a in range(3)]` and
`[f(a=1) if x else g()]` begin with a perfect call and do not mean it, and Python itself refuses all of a list for one
keyword that stands twice. Nor is it certain where a broken list ends: its strings may hold brackets and markers.

Arguments have names (`f(1)` is broken), and so has each tool: Python identifiers, joined by dots. `get-weather(...)`
means a subtraction to Python, and is a broken call here.

Invariant: a turn is a list of well-formed calls, or holds one failed call, or is text. The calls of a list share out
its text: the first has the opening bracket and marker, each other one the comma before it, and the last what closes
the list, so that nothing of it remains for the reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar

from typing_extensions import override

from strands_sglang.tool_parsers.base import Schemas, ToolParser
from strands_sglang.tool_parsers.fault import CallFault
from strands_sglang.tool_parsers.parsed import FailedCall, ParseFailure, ToolCall
from strands_sglang.tool_parsers.sampled import SampledText
from strands_sglang.tool_parsers.strict_python import PythonReader, skip_blanks

_OPENING = "<|python_start|>"
_CLOSING = "<|python_end|>"

_ATTEMPT = re.compile(r"\s*(?=\[\s*[^\W\d][\w.-]*\()")
_NAME = re.compile(r"[\w.-]*")


class PythonicToolParser(ToolParser):
    """Strict parser of `[f(a=1), g()]`, with `<|python_start|>` and `<|python_end|>` around it or without."""

    name: ClassVar[str] = "pythonic"
    call_markers: ClassVar[tuple[str, ...]] = ("[", _OPENING)
    markers: ClassVar[tuple[str, ...]] = (_OPENING, _CLOSING)

    @override
    def scan(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[ToolCall | FailedCall]:
        """Yield the calls of a list, or the failed call it is; see `ToolParser.scan`. Python has types of its own."""
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
    """A list of calls, as far as it was read."""

    def __init__(self, text: SampledText, start: int, opening: str) -> None:
        self._text, self._start, self._opening = text, start, opening
        self._reader = PythonReader(text)
        self._calls: list[tuple[str, dict[str, Any], int]] = []
        self._only: str | None = None  # the tool that is called, as long as it is the only one
        self.end = len(text)
        """Where the list ends, its closing marker included; the end of the text when it is broken."""

    def read(self) -> list[ToolCall | FailedCall]:
        """Return all calls of the list, or the one failed call that it is."""
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
        """Read the list; return where its closing bracket ends."""
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
                raise _fault("Behind a call there must be , or ]", at)
        return at + 1

    def _closed(self, past: int) -> int:
        """Return where the list ends whose closing bracket ends at `past`."""
        text = self._text
        at = skip_blanks(text, past)
        if self._opening:
            if text.marks(_CLOSING, at):
                return at + len(_CLOSING)
            if at == len(text) or text.mark(_CLOSING, at) < 0:
                words = f"The list of calls has no {_CLOSING} behind it"
                raise CallFault(ParseFailure.UNCLOSED, words, past=past)
            words = f"Between a list of calls and {_CLOSING} there must be nothing else"
            raise CallFault(ParseFailure.TRAILING_TEXT, words, past=past, at=at)
        if text[at:].strip():
            words = "Behind a list of calls there must be nothing else"
            raise CallFault(ParseFailure.TRAILING_TEXT, words, past=past, at=at)
        return past

    def _failed(self, fault: CallFault) -> FailedCall:
        """Return the failed call: all of the text from where the list begins."""
        if fault.failure is ParseFailure.INVALID_LITERAL and self._reader.was_cut(fault):
            fault = CallFault(ParseFailure.UNCLOSED, "The turn ended in the middle of a list of calls", past=self.end)
        return fault.failed(self._text, self._start, len(self._text), self._only)


def _name(text: str, at: int) -> tuple[str, int]:
    """Read the name of a tool; return it, and where its arguments begin."""
    found = _NAME.match(text, at)
    assert found is not None  # matches everywhere
    name = found[0]
    if found.end() == len(text):
        raise _fault("The list of calls is not finished", found.end())
    if not name.isidentifier() and not all(part.isidentifier() for part in name.split(".")):
        words = "The name of a tool must be a Python identifier, or several joined by dots"
        raise CallFault(ParseFailure.MISSING_NAME, words, past=at, at=at)
    if not text.startswith("(", found.end()):
        words = "The name of a tool must be followed by its arguments in parentheses, as in name(key=value)"
        raise CallFault(ParseFailure.BAD_ARGUMENTS, words, past=at, at=at)
    return name, found.end() + 1


def _fault(words: str, at: int) -> CallFault:
    return CallFault(ParseFailure.INVALID_LITERAL, words, past=at, at=at)
