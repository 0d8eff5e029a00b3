"""The format of FunctionGemma and of Gemma 4: one grammar with different markers.

    <start_function_call>call:f{city:<escape>Paris<escape>,days:3,units:[<escape>C<escape>]}<end_function_call>
    <|tool_call>call:f{city:<|"|>Paris<|"|>,days:3,nested:{deep:true,none:null}}<tool_call|>

Accepted is what the chat templates write: strings are verbatim between two string marks, without escapes; keys are bare
at every depth; `true`, `false` and numbers are JSON's. The templates wrote `None` before they wrote `null`, so both are
accepted; a bare word cannot be a string, so neither is ambiguous. The templates sort keys and write no whitespace;
models do not always, so JSON whitespace is allowed between values. Everything else is malformed, including what models
sometimes write: quoted keys and strings, `key=value`, a trailing comma.

A marker between two string marks is part of the string, also in a malformed call: strings after the error are skipped
when its closing marker is searched for, and a string without a second mark extends to the end of the turn. Text in a
thought channel is never a call, also where such a channel opens in the middle of a turn.

Invariant: the markers and string marks of a call are those of one model. A key occurs once in its object, has no blank
at its end, and contains none of the grammar's own characters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple

from typing_extensions import override

from strands_sglang.tool_parsers._containers import ContainerReader, invalid_literal
from strands_sglang.tool_parsers._json import MAX_DIGITS, float_problem, skip_space
from strands_sglang.tool_parsers.base import Schemas, ToolParser
from strands_sglang.tool_parsers.parsed import CallFault, FailedCall, Markers, ParseFailure, SampledText, ToolCall


class _Dialect(NamedTuple):
    opening: str
    closing: str
    string: str
    ends: Markers


_FUNCTION_GEMMA = ("<start_function_call>", "<end_function_call>", "<escape>")
_GEMMA_4 = ("<|tool_call>", "<tool_call|>", '<|"|>')
_DIALECTS = {markers[0]: _Dialect(*markers, Markers(*markers[1:])) for markers in (_FUNCTION_GEMMA, _GEMMA_4)}
_THOUGHT, _THOUGHT_END = "<|channel>", "<channel|>"
_BEGINNINGS = Markers(*_DIALECTS, _THOUGHT)

_HEAD = re.compile(r"(?:call:([^\s{}\[\],<>\"']*))?")
_KEY = re.compile(r"[^{}\[\],:<>=\"'`\x00-\x1f\ud800-\udfff]*")
_SCALAR = re.compile(
    r"(?:(-?(?:0|[1-9][0-9]*)(\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)?)|(true|false|null|None))"
    r"(?=[ \t\n\r,\]}]|\Z)[ \t\n\r]*([,\]}]?)[ \t\n\r]*"
)
_BLANKS = re.compile(r"[ \t\n\r]*")
_AFTER = re.compile(r"[ \t\n\r]*([,\]}]?)[ \t\n\r]*")
_CUT = re.compile(r"[ \t\n\r]*|-|-?[0-9.]+(?:[eE][+-]?)?|t(?:ru?)?|f(?:a(?:ls?)?)?|n(?:ul?)?|N(?:on?)?")

_CONSTANTS = {"true": True, "false": False, "null": None, "None": None}
_SURROGATE = re.compile("[\ud800-\udfff]")
_fault = partial(invalid_literal, "The arguments are")


class GemmaToolParser(ToolParser):
    """Strict parser of `call:NAME{key:value}` between the markers of FunctionGemma or of Gemma 4."""

    name: ClassVar[str] = "gemma"
    reasoning_markers: ClassVar[tuple[str, str]] = (f"{_THOUGHT}thought", _THOUGHT_END)
    call_markers: ClassVar[tuple[str, ...]] = tuple(_DIALECTS)
    markers: ClassVar[tuple[str, ...]] = (*_FUNCTION_GEMMA, *_GEMMA_4, _THOUGHT, _THOUGHT_END)

    @override
    def scan(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[ToolCall | FailedCall]:
        own = {opening for opening in _DIALECTS if text.has_token(opening)}
        while (mark := _BEGINNINGS.next(text, at)) is not None:
            if own and mark.marker in _DIALECTS and mark.marker not in own:
                at = mark.end  # a marker of the other model is plain text here
                continue
            if mark.marker == _THOUGHT:
                end = text.mark(_THOUGHT_END, mark.end)
                if end < 0:
                    return
                at = end + len(_THOUGHT_END)
                continue
            found = _Call(text, mark.start, _DIALECTS[mark.marker]).read()
            yield found
            at = found.start + len(found.raw)


class _Call(ContainerReader):
    subject: ClassVar[str] = "The arguments are"
    blanks: ClassVar[re.Pattern[str]] = _BLANKS
    after: ClassVar[re.Pattern[str]] = _AFTER
    _text: SampledText

    def __init__(self, text: SampledText, start: int, dialect: _Dialect) -> None:
        super().__init__(text)
        self._start, self._dialect = start, dialect

    def read(self) -> ToolCall | FailedCall:
        name = None
        try:
            name, at = self._head(self._start + len(self._dialect.opening))
            arguments, past = self._container("}", at)
            end = self._end(past)
        except CallFault as fault:
            return self._failed(fault, name)
        return ToolCall(name=name, arguments=arguments, raw=self._text[self._start : end], start=self._start)

    def _head(self, at: int) -> tuple[str, int]:
        text = self._text
        at = skip_space(text, at)
        found = _HEAD.match(text, at)
        assert found is not None  # matches everywhere
        if found.end() == len(text) or (len(text) - at < 5 and "call:".startswith(text[at:])):
            raise _fault("the text ends before the arguments", len(text))
        if not found[1]:
            message = f"After {self._dialect.opening} there must be call:NAME{{, with the name of a tool"
            raise CallFault(ParseFailure.MISSING_NAME, message, past=at, at=at)
        if not text.startswith("{", found.end()):
            message = "The name of a tool must be followed by its arguments in braces, as in call:NAME{key:value}"
            raise CallFault(ParseFailure.BAD_ARGUMENTS, message, past=found.end(), at=found.end())
        return found[1], found.end() + 1

    def _key(self, keys: dict[str, None], closing: str, at: int) -> int:
        found = _KEY.match(self._text, at)
        assert found is not None  # matches everywhere
        key, end = found[0], found.end()
        if end == len(self._text):
            raise _fault("expecting a key and :", end)
        if not key or key != key.strip() or not self._text.startswith(":", end):
            raise _fault("expecting a bare key followed by :", at)
        if key in keys:
            message = f"The key {ascii(key)[:60]} occurs twice in one object"
            raise CallFault(ParseFailure.DUPLICATE_KEY, message, past=at, at=at)
        keys[key] = None
        return skip_space(self._text, end + 1)

    def _value(self, at: int) -> tuple[Any, str, int, int]:
        found = _SCALAR.match(self._text, at)
        if found is None:
            string, past = self._string(at)
            return string, *self._after(past)
        digits, real, word, separator = found.groups()
        value = _number(digits, real is None, at) if word is None else _CONSTANTS[word]
        return value, separator, found.start(4), found.end()

    def _string(self, at: int) -> tuple[str, int]:
        text, mark = self._text, self._dialect.string
        if not text.marks(mark, at):
            raise _fault(f"expecting a value; a string is written between {mark} and {mark}", at)
        end = text.mark(mark, at + len(mark))
        if end < 0:
            raise _fault(f"a string has no closing {mark}", len(text))
        string = text[at + len(mark) : end]
        if not string.isascii() and _SURROGATE.search(string):
            message = "A string contains a lone surrogate"
            raise CallFault(ParseFailure.INVALID_LITERAL, message, past=end + len(mark), at=at)
        return string, end + len(mark)

    def _end(self, past: int) -> int:
        text, closing = self._text, self._dialect.closing
        at = skip_space(text, past)
        if text.marks(closing, at):
            return at + len(closing)
        if any(text.marks(opening, at) for opening in _DIALECTS):
            message = f"Another tool call begins before {closing} closes this one"
            raise CallFault(ParseFailure.UNCLOSED, message, past=past, at=at)
        if text.mark(closing, at) < 0:
            raise CallFault(ParseFailure.UNCLOSED, f"The tool call has no {closing}", past=past)
        message = f"Between the arguments of a tool call and {closing} there must be nothing else"
        raise CallFault(ParseFailure.TRAILING_TEXT, message, past=past, at=at)

    def _failed(self, fault: CallFault, name: str | None) -> FailedCall:
        text, string = self._text, self._dialect.string
        mark = self._dialect.ends.next(text, fault.past)
        while mark is not None and mark.marker == string:
            end = text.mark(string, mark.end)
            mark = self._dialect.ends.next(text, end + len(string)) if end >= 0 else None
        if mark is not None:
            return fault.failed(text, self._start, mark.end, name)
        if fault.failure is ParseFailure.INVALID_LITERAL and fault.at is not None:
            rest = text[fault.at : fault.at + len(string)]
            if _CUT.fullmatch(text, fault.at) or (rest != string and string.startswith(rest)):
                message = f"The turn ended in the middle of a tool call, before {self._dialect.closing}"
                fault = CallFault(ParseFailure.UNCLOSED, message, past=len(text))
        return fault.failed(text, self._start, len(text), name)


def _number(digits: str, whole: bool, at: int) -> int | float:
    value: int | float = math.inf
    if len(digits) <= MAX_DIGITS:
        try:
            value = int(digits) if whole else float(digits)
        except ValueError:  # this process has a lower limit
            pass
    if isinstance(value, float) and (fault := float_problem(value, digits)):
        raise _fault(f"the number {digits[:20]}{'…' * (len(digits) > 20)} is {fault}, or too long", at)
    return value
