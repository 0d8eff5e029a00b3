"""A sampled turn as text (`SampledText`), the result of parsing it (`ParsedTurn`), and its reasoning.

Most formats mark a call with tokens of their own: `<tool_call>` is one token to Qwen3. The same letters can also be
sampled one by one, for example when a model quotes a web page about tool calls. Those letters are text, because data
must never become control.

A turn begins with its reasoning. Some models open another reasoning block later: that block stays in the text, but
drafts of calls in it are not calls. Reasoning markers inside a call, for example in an argument, are plain text.

Invariants:

- If the tokenizer has a marker as a token, only that token is the marker. If it has none, the letters are. A plain
  `str` comes from no tokenizer, so its letters count.
- `raw` of a call is exactly `text[start : start + len(raw)]` of the parsed text, and calls and failed calls never
  overlap. Nothing is repaired: `arguments` has the values that the model wrote.
- Text inside reasoning is never a call. If a later block is not closed, a call after its opening is a failed call
  (`MISPLACED`) with an error for the model, because the call may have been intended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

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
        """Whether a marker is at this position."""
        return self.startswith(marker, at) and self._sampled(marker, at)

    def mark(self, marker: str, at: int) -> int:
        """Return the position of the first marker from `at` on; -1 if there is none."""
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
    """A marker in a text."""

    marker: str
    start: int
    end: int


class Markers:
    """Several markers, searched for in one pass over a text."""

    def __init__(self, *markers: str) -> None:
        longest_first = sorted(markers, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def next(self, text: SampledText, at: int) -> Mark | None:
        """Return the first marker from `at` on."""
        found = self._pattern.search(text, at)
        while found is not None and not text.marks(found[0], found.start()):
            found = self._pattern.search(text, found.start() + 1)
        return None if found is None else Mark(found[0], found.start(), found.end())


class ParseFailure(str, Enum):
    """Why a tool call is malformed."""

    INVALID_JSON = "invalid_json"
    """Not JSON, or JSON that cannot be used as it is (NaN, numbers out of range, lone surrogates, too deep)."""
    INVALID_LITERAL = "invalid_literal"
    """The same for formats that write values in another syntax than JSON."""
    DUPLICATE_KEY = "duplicate_key"
    """A key occurs twice in one object, at any depth. Choosing one of the two values would be a guess."""
    NOT_AN_OBJECT = "not_an_object"
    """Valid JSON, but a list, a string, a number, true, false or null in place of the call's object."""
    MISSING_NAME = "missing_name"
    BAD_ARGUMENTS = "bad_arguments"
    TRAILING_TEXT = "trailing_text"
    """There is other text between the call and its closing marker."""
    UNCLOSED = "unclosed"
    """The closing marker is missing, or another call begins before it. Usually the turn was cut off."""
    MISPLACED = "misplaced"
    """Part of a call in a place where no call is allowed: without its opening marker, or on the wrong channel."""
    SCHEMA = "schema"
    """A well-formed call whose arguments violate the tool's schema; only with `arguments_checked_by="schema"`."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A well-formed call, ready to be executed."""

    name: str
    """Name of the tool as the model wrote it. The parser does not check that such a tool exists."""
    arguments: dict[str, Any]
    """The decoded arguments; `{}` only if the model wrote an empty object."""
    raw: str
    start: int
    id: str | None = None
    """The call id that the model wrote; None if the format has none."""


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A malformed call: it is counted and answered, never executed."""

    raw: str
    """The exact text from the opening marker to the closing one, or to the end of the turn if that is missing."""
    start: int
    failure: ParseFailure
    detail: str
    """The error and its position, in a sentence for the model; always encodable as UTF-8."""
    name: str | None = None
    """The tool that was meant; None if that is not certain."""


class Frame(NamedTuple):
    """Text of the format that surrounds calls and belongs to none of them; it is removed from the turn's text."""

    raw: str
    start: int


Found: TypeAlias = ToolCall | FailedCall | Frame
"""Everything that is removed from the turn's text."""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """One parsed turn."""

    reasoning: str | None
    """The reasoning without surrounding newlines; None if there is no reasoning block, "" if it is empty."""
    text: str
    calls: tuple[ToolCall, ...] = ()
    failures: tuple[FailedCall, ...] = ()
    reasoning_closed: bool = True
    """False if reasoning was opened and never closed: everything after its opening is reasoning and holds no calls."""
    rest_start: int = 0
    """Offset in the parsed text at which the turn continues after its reasoning, in characters."""


def with_failed_calls(parsed: ParsedTurn, failed: Callable[[ToolCall], FailedCall | None]) -> ParsedTurn:
    """Return a turn in which some well-formed calls are failed calls: those for which `failed` returns one."""
    calls: list[ToolCall] = []
    failures = list(parsed.failures)
    for call in parsed.calls:
        if (failure := failed(call)) is None:
            calls.append(call)
        else:
            failures.append(failure)
    if len(calls) == len(parsed.calls):
        return parsed
    failures.sort(key=lambda failure: failure.start)
    return replace(parsed, calls=tuple(calls), failures=tuple(failures))


_NEAR = 20
_LONG = 48


def quoted(text: str) -> str:
    """Return a text quoted and shortened for an error message, encodable as UTF-8."""
    written = repr(text)
    return written if len(written) <= _LONG else f"{written[:_LONG]}…"


class CallFault(Exception):
    """Raised while a call is read, and turned into a `FailedCall` before the parser returns."""

    def __init__(self, failure: ParseFailure, message: str, *, past: int, at: int | None = None) -> None:
        super().__init__(message)
        self.failure = failure
        self.message = message
        """The error, without a full stop and without the position."""
        self.past = past
        """Offset up to which the text belongs to this call, whatever it looks like."""
        self.at = at
        """None if `message` is complete without it."""

    def failed(self, text: str, start: int, end: int, name: str | None = None) -> FailedCall:
        """Return `text[start:end]` as a failed call."""
        detail = f"{self.message}."
        if self.at is not None:
            near = quoted(text[max(start, self.at - _NEAR) : min(end, self.at + _NEAR)])
            detail = f"{self.message}, at character {self.at - start} of the call, near {near}."
        return FailedCall(raw=text[start:end], start=start, failure=self.failure, detail=detail, name=name)


_MAX_BLOCKS = 16
"""Later reasoning blocks of one turn whose drafts are skipped; any call after those is a failed call."""


class ReasoningSplit(NamedTuple):
    """A turn split after its reasoning."""

    reasoning: str | None
    rest: str
    rest_start: int
    """Offset of `rest` in the text, in characters; after the newlines that follow the reasoning."""
    closed: bool
    """False if reasoning was opened and never closed; `rest` is then empty."""


def split_reasoning(
    text: str, reasoning_open: bool, opening: str = "<think>", closing: str = "</think>"
) -> ReasoningSplit:
    r"""Split a turn after its reasoning.

    With `reasoning_open` the turn begins inside the reasoning; a model that opens it again is tolerated.
    """
    text = SampledText.of(text)
    start = len(text) - len(text.lstrip())
    opened = text.marks(opening, start)
    if not opened and not reasoning_open:
        return ReasoningSplit(None, text, 0, True)
    begin = start + len(opening) if opened else 0
    end = text.mark(closing, begin)
    if end < 0:
        return ReasoningSplit(text[begin:].strip("\n"), "", len(text), False)
    rest = text[end + len(closing) :].lstrip("\n")
    return ReasoningSplit(text[begin:end].strip("\n"), rest, len(text) - len(rest), True)


def outside_reasoning(
    text: SampledText, at: int, scan: Callable[[SampledText], Iterable[Found]], opening: str, closing: str
) -> list[Found]:
    """Return the items that a scan finds in a turn outside of later reasoning blocks; `at` is where the first ends."""
    found = list(scan(text))
    if not found or text.mark(opening, at) < 0:
        return found
    seen = text
    for _ in range(_MAX_BLOCKS):
        block = _drafting(seen, at, found, opening, closing)
        if block is None:
            return [_of(text, item) for item in found]
        start, end = block
        if end < 0:
            break
        seen = seen.without(start, end)
        found = list(scan(seen))
    else:
        block = _drafting(seen, at, found, opening, closing)
        start = len(text) if block is None else block[0]
    message = (
        f"The tool call is inside the reasoning that begins with {opening}; close the reasoning before a tool call"
    )
    kept = [_of(text, item) for item in found if item.start < start]
    for item in found:
        if item.start > start and not isinstance(item, Frame):
            end = item.start + len(item.raw)
            fault = CallFault(ParseFailure.MISPLACED, message, past=end)
            kept.append(fault.failed(text, item.start, end, item.name))
    return kept


def _drafting(text: SampledText, at: int, found: list[Found], opening: str, closing: str) -> tuple[int, int] | None:
    """The end is -1 if the block is not closed."""
    number = 0
    while (start := text.mark(opening, at)) >= 0:
        while number < len(found) and found[number].start + len(found[number].raw) <= start:
            number += 1
        if number == len(found):
            return None
        item = found[number]
        if item.start <= start:  # the marker is inside a call
            at = item.start + len(item.raw)
            continue
        end = text.mark(closing, start + len(opening))
        if end < 0 or item.start < end:
            return start, end if end < 0 else end + len(closing)
        at = end + len(closing)
    return None


def _of(text: SampledText, item: Found) -> Found:
    raw = text[item.start : item.start + len(item.raw)]
    if raw == item.raw:
        return item
    if isinstance(item, Frame):
        return item._replace(raw=raw)
    if isinstance(item, FailedCall):
        return replace(item, raw=raw)
    message = "There is reasoning inside the tool call"
    fault = CallFault(ParseFailure.MISPLACED, message, past=item.start + len(raw))
    return fault.failed(text, item.start, item.start + len(raw), item.name)
