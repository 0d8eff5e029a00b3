"""The harmony format of gpt-oss: a turn is a sequence of messages, each on a channel.

    <|channel|>analysis<|message|>I need the weather.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>

There is no newline between messages. The prompt ends with `<|start|>assistant`, so the first message begins after that.
A header names a channel; a recipient (` to=functions.NAME`), before the channel, as the chat template writes it, or
after it, as the models write it; and optionally a content type, such as ` json` or ` <|constrain|>json`.

- `analysis` without a recipient is reasoning. Only `<|end|>` ends it: a call inside of it is a draft.
- `final` is text, and so is `commentary` without a recipient. `<|end|>` or the end of the turn ends it.
- `commentary` to `functions.NAME` is a call. Its content is one JSON object, and `<|call|>` ends it. So is `analysis`
  to `functions.NAME`: the models address tools there almost as often. The content is read as JSON whatever the content
  type is (`json`, `code`).

Every other message to a tool is a failed call: another recipient, or two (MISSING_NAME); no channel, another channel,
or a message inside an unfinished one (MISPLACED); another end (UNCLOSED). So is a message that ends with `<|call|>` and
has no recipient. Other messages with a malformed header are text, unchanged, as is a turn without any header. Pieces of
text are joined with newlines, and so are pieces of reasoning.

Invariant: the JSON decides where the content of a call ends, so a marker inside a string is part of the string. After a
malformed call, the turn continues after the next marker that ends a message, never at a `<|start|>` before it.
"""

from __future__ import annotations

import re
from typing import ClassVar, NamedTuple

from typing_extensions import override

from strands_sglang.tool_parsers._json import JsonReader, as_arguments, skip_space
from strands_sglang.tool_parsers.base import Schemas, ToolParser
from strands_sglang.tool_parsers.parsed import (
    CallFault,
    FailedCall,
    Mark,
    Markers,
    ParsedTurn,
    ParseFailure,
    SampledText,
    ToolCall,
)

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_END, _CALL, _RETURN = "<|end|>", "<|call|>", "<|return|>"
_ANALYSIS = f"{_CHANNEL}analysis{_MESSAGE}"

_ALL = Markers(_START, _CHANNEL, _CONSTRAIN, _MESSAGE, _END, _CALL, _RETURN)
_ENDS = Markers(_END, _CALL, _RETURN)
_STOPS = Markers(_END, _CALL, _RETURN, _START)
_CHANNELS = ("analysis", "commentary", "final")

_ROLE = re.compile(r"assistant(?: to=\S+)?")
_KIND = re.compile(r"(\w+)(?: to=\S+)?(?: (\w*))?")
_RECIPIENT = re.compile(r"\sto=(\S*)")
_FUNCTION = re.compile(r"functions\.([\w.-]+)")


class HarmonyToolParser(ToolParser):
    """Strict parser of messages on channels; messages to `functions.NAME` are calls."""

    name: ClassVar[str] = "harmony"
    reasoning_markers: ClassVar[tuple[str, str]] = (_ANALYSIS, _END)
    call_markers: ClassVar[tuple[str, ...]] = (_START, _CHANNEL, " to=functions.")
    shows_text: ClassVar[bool] = False  # only the end of a message shows what it is
    markers: ClassVar[tuple[str, ...]] = (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, _END, _CALL)
    endings: ClassVar[tuple[str, ...]] = (_CALL,)

    @override
    def parse(self, text: str, *, reasoning_open: bool = False, schemas: Schemas | None = None) -> ParsedTurn:
        turn = _Turn(SampledText.of(text))
        turn.read(reasoning_open)
        return turn.parsed()


class _Header(NamedTuple):
    channel: str | None
    recipients: set[str]
    """The recipients; a call has exactly one, a message to the user none."""
    was_cut: bool
    stop: Mark | None
    """The marker that ends the header: `<|message|>` in a valid one; None if the text ends there."""


class _Turn:
    def __init__(self, text: SampledText) -> None:
        self._text = text
        self._reader = JsonReader(text)
        self._reasoning: list[str] = []
        self._pieces: list[str] = []
        self._calls: list[ToolCall] = []
        self._failures: list[FailedCall] = []
        self._closed = True
        self._rest_start = 0
        self._unended = False  # whether another message began before the last one ended

    def parsed(self) -> ParsedTurn:
        reasoning = "\n".join(piece.strip("\n") for piece in self._reasoning) if self._reasoning else None
        pieces = self._pieces
        if len(pieces) != 1 or self._calls or self._failures:
            pieces = [piece.strip("\n") for piece in pieces if piece.strip()]
        calls, failures = tuple(self._calls), tuple(self._failures)
        return ParsedTurn(reasoning, "\n".join(pieces), calls, failures, self._closed, self._rest_start)

    def read(self, reasoning_open: bool) -> None:
        text = self._text
        at = len(text) - len(text.lstrip())
        if reasoning_open:
            at = self._reason(at + len(_ANALYSIS) if text.marks(_ANALYSIS, at) else 0)
        elif not text.marks(_START, at) and not text.marks(_CHANNEL, at):
            at = 0
        is_first = not reasoning_open
        while at < len(text):
            at, is_first = skip_space(text, self._message(at, is_first)), False
            while marker := next((end for end in (_END, _CALL, _RETURN) if text.marks(end, at)), ""):
                at = skip_space(text, at + len(marker))  # ends nothing

    def _message(self, start: int, is_first: bool) -> int:
        text, header = self._text, _header(self._text, start, is_first)
        if header.recipients:
            unended, self._unended = self._unended, False
            return self._call(start, header, unended)
        begin, stop = start, header.stop
        if stop is not None and stop.marker == _MESSAGE:
            if header.channel == "analysis":
                return self._reason(stop.end)
            begin = stop.end if header.channel in _CHANNELS else start
            stop = _STOPS.next(text, stop.end)
        self._unended = stop is not None and stop.marker == _START
        if stop is not None and stop.marker == _CALL:
            message = f"A message that ends with {_CALL} must name a tool, as in {_CHANNEL}commentary to=functions.NAME"
            fault = CallFault(ParseFailure.MISSING_NAME, message, past=stop.end)
            self._failures.append(fault.failed(text, start, stop.end))
        elif not header.was_cut:
            self._pieces.append(text[begin : stop.start if stop is not None else len(text)])
        return len(text) if stop is None else stop.start if self._unended else stop.end

    def _reason(self, at: int) -> int:
        is_leading = not (self._pieces or self._calls or self._failures)
        end = self._text.mark(_END, at)
        self._closed = end >= 0
        self._reasoning.append(self._text[at : end if self._closed else len(self._text)])
        past = end + len(_END) if self._closed else len(self._text)
        self._unended, self._rest_start = False, past if is_leading else self._rest_start
        return past

    def _call(self, start: int, header: _Header, unended: bool) -> int:
        text = self._text
        name, value, invalid = None, None, None
        past = len(text) if header.stop is None else header.stop.start
        if header.stop is not None and header.stop.marker == _MESSAGE:
            try:
                value, past = self._reader.read(header.stop.end)
            except CallFault as fault:
                past, invalid = fault.past, fault
        try:
            name = _name(header, past)
            _check(header, unended, past)
            if invalid is not None:
                raise invalid
            arguments = as_arguments(value, past)
            end = _end(text, past)
        except CallFault as fault:
            failed = self._failed(start, name, fault)
            self._failures.append(failed)
            return start + len(failed.raw)
        self._calls.append(ToolCall(name=name, arguments=arguments, raw=text[start:end], start=start))
        return end

    def _failed(self, start: int, name: str | None, fault: CallFault) -> FailedCall:
        mark = _ENDS.next(self._text, fault.past)
        if mark is None and fault.failure is ParseFailure.INVALID_JSON and self._reader.was_cut(fault):
            message = f"The turn ended in the middle of the JSON of a tool call, before {_CALL}"
            fault = CallFault(ParseFailure.UNCLOSED, message, past=len(self._text))
        return fault.failed(self._text, start, len(self._text) if mark is None else mark.end, name)


def _header(text: SampledText, start: int, is_first: bool) -> _Header:
    """The header of the first message begins in the prompt."""
    begins = text.marks(_START, start)
    mark = _ALL.next(text, start + len(_START) if begins else start)
    markers, pieces = [""], [text[start + len(_START) * begins : len(text) if mark is None else mark.start]]
    while mark is not None and mark.marker in (_CHANNEL, _CONSTRAIN):
        at = mark.end
        markers.append(mark.marker)
        mark = _ALL.next(text, at)
        pieces.append(text[at : len(text) if mark is None else mark.start])
    is_ours = (begins or is_first) and _ROLE.fullmatch(pieces[0] if begins else f"assistant{pieces[0]}") is not None
    recipients = {name for piece in pieces[1:] for name in _RECIPIENT.findall(piece)}
    # Text without any header may contain the same letters.
    if begins or is_ours or len(pieces) > 1 or (mark is not None and mark.marker == _MESSAGE):
        recipients.update(_RECIPIENT.findall(pieces[0]))
    channel = None
    kind = _KIND.fullmatch(pieces[1]) if is_ours and markers[1:] in ([_CHANNEL], [_CHANNEL, _CONSTRAIN]) else None
    # A content type follows a blank or its marker, or both; never one of each.
    if kind is not None and (kind[2] != "" if len(pieces) == 2 else not kind[2] and pieces[2].isidentifier()):
        channel = kind[1]
    is_partial = is_ours and any(known.startswith("".join(pieces[1:])) for known in _CHANNELS)
    return _Header(channel, recipients, mark is None and (is_partial or bool(recipients)), mark)


def _name(header: _Header, past: int) -> str:
    if header.was_cut:
        raise CallFault(ParseFailure.UNCLOSED, "The turn ended in the header of a tool call", past=past)
    found = _FUNCTION.fullmatch("".join(header.recipients)) if len(header.recipients) == 1 else None
    if found is None:
        message = "A tool call must name one tool in its header, as in to=functions.NAME"
        raise CallFault(ParseFailure.MISSING_NAME, message, past=past)
    return found[1]


def _check(header: _Header, unended: bool, past: int) -> None:
    kind, message = ParseFailure.MISPLACED, ""
    if unended:
        message = f"A tool call must not begin inside another message: {_END} must come before it"
    elif header.channel is None:
        message = f"The header of a tool call must be {_START}assistant{_CHANNEL}commentary to=functions.NAME"
    elif header.channel not in ("commentary", "analysis"):
        message = f"A tool call must go to the channel commentary, not to {ascii(header.channel)[:40]}"
    else:
        kind = ParseFailure.BAD_ARGUMENTS
        if header.stop is None or header.stop.marker != _MESSAGE:
            message = f"The tool call has no {_MESSAGE}, and so no arguments"
    if message:
        raise CallFault(kind, message, past=past)


def _end(text: SampledText, past: int) -> int:
    at = skip_space(text, past)
    mark = _STOPS.next(text, at)
    if mark is None:
        raise CallFault(ParseFailure.UNCLOSED, f"The tool call has no {_CALL}", past=past)
    if mark.start > at:
        message = f"Between the JSON object of a tool call and {_CALL} there must be nothing else"
        raise CallFault(ParseFailure.TRAILING_TEXT, message, past=past, at=at)
    if mark.marker != _CALL:
        message = f"A tool call must end with {_CALL}, not with {mark.marker}"
        raise CallFault(ParseFailure.UNCLOSED, message, past=past, at=at)
    return mark.end
