"""Whether what a parser made of a text can be right: by what holds for every parser, and by the family's grammar.

A case is all that a parser is given. Where a text knows which of its words are tokens, the same text is judged with
the first character of every word that only looks like a token exchanged for one that means nothing: both must hold
the same calls in the same places.
"""

from __future__ import annotations

import json
import re
import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, NamedTuple

from strands_sglang.tool_parsers import FailedCall, ParsedTurn, SampledText, ToolCall, ToolParser
from support.tool_parsers.grammars import SCHEMAS, Call, Grammar, NotACall, Schemas
from support.tool_parsers.mutations import pick, turn

KINDS = ("crash", "wrong_call", "wrong_failure", "missed_call", "hang")
"""What can be found: an exception; a call that is none or says something else; a failure that is not exact; a
well-formed call that was not read; an input that takes too long."""

LONGEST_DETAIL = 400
CANARY = "canary"
"""A tool that is only ever called inside of other calls."""
_NEUTRAL = 0xE000


class Finding(NamedTuple):
    """What is wrong with a parser."""

    kind: str
    """One of `KINDS`."""
    words: str
    """What was seen, for people."""


class Case(NamedTuple):
    """One input."""

    text: str
    reasoning_open: bool = False
    with_schemas: bool = True
    controls: tuple[str, ...] = ()
    """Words that are tokens to the tokenizer."""
    sampled: tuple[int, ...] | None = None
    """Where in the text one of them was really sampled; None: nothing is known about tokens."""

    @property
    def given(self) -> str:
        """The text as the parser gets it."""
        if self.sampled is None:
            return self.text
        return SampledText(self.text, frozenset(self.sampled), lambda marker: _offsets(self.controls, marker))

    @property
    def schemas(self) -> Schemas:
        return SCHEMAS if self.with_schemas else {}

    def save(self, path: Path, parser: str) -> None:
        """Write a case to a file that `load` reads."""
        path.write_text(json.dumps({"parser": parser, **self._asdict()}, indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> tuple[str, Case]:
        """Read a case from a file, and the name of the parser it is for."""
        read = json.loads(path.read_text())
        sampled = read["sampled"]
        case = Case(
            *(read["text"], read["reasoning_open"], read["with_schemas"], tuple(read["controls"])),
            None if sampled is None else tuple(sampled),
        )
        return read["parser"], case


def judge(parser: ToolParser, grammar: Grammar, case: Case) -> Finding | None:
    """Let a parser read a text, and return what is wrong with the outcome."""
    text = case.given
    try:
        read = parser.parse(text, reasoning_open=case.reasoning_open, schemas=case.schemas)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Finding("crash", f"{type(error).__name__} in {where.name}, line {where.lineno}: {str(error)[:200]}")
    found: list[ToolCall | FailedCall] = [*read.calls, *read.failures]
    if not found and case.sampled is None:
        return _unspoken(case, found, parser, grammar)
    return (
        _places(case.text, found, parser, case)
        or _details(read)
        or (_said(read.calls, grammar, case) if case.sampled is None else _tokens(read, parser, grammar, case))
        or _unspoken(case, found, parser, grammar)
    )


def judge_written(parser: ToolParser, text: str, calls: Sequence[Call]) -> Finding | None:
    """Let a parser read a well-formed turn, and return what it missed."""
    try:
        read = parser.parse(text, schemas=SCHEMAS)
    except Exception as error:
        return Finding("crash", f"{type(error).__name__}: {error}")
    if read.failures:
        return Finding("missed_call", f"well-formed, yet: {read.failures[0].detail}")
    said = [Call(call.name, call.arguments) for call in read.calls]
    return None if repr(said) == repr(list(calls)) else Finding("missed_call", f"wrote {calls!r}, read {said!r}")


def judge_smuggled(parser: ToolParser, grammar: Grammar, dice: Random) -> tuple[Case, Finding | None]:
    """Put a whole call inside another, as data does that nobody escaped: it must not be run."""
    text, _ = turn(dice, grammar)
    inner = grammar.write([Call(CANARY, {})], dice)
    canaries = parser.parse(inner).calls
    calls = parser.parse(text, schemas=SCHEMAS).calls
    if not calls or not canaries:  # `judge_written` tells
        return Case(text), None
    outer = pick(dice, calls)
    head = max([len(word) for word in grammar.words if outer.raw.startswith(word)], default=1)
    head = outer.raw.index(grammar.data) + len(grammar.data) if grammar.data else head
    at = outer.start + head + int(dice.random() * (len(outer.raw) - head))
    is_whole = "<|end|>" not in inner and dice.random() < 0.5  # a marker that ends the outer call ends it
    case = Case(text[:at] + (inner if is_whole else canaries[0].raw) + text[at:])
    return case, judge(parser, grammar, case)


def _places(text: str, found: list[ToolCall | FailedCall], parser: ToolParser, case: Case) -> Finding | None:
    """Whether each item is exactly where it says, behind the reasoning and behind the one before it."""
    at = _reasoning_end(text, parser, case)
    for item in sorted(found, key=lambda one: one.start):
        kind = "wrong_call" if isinstance(item, ToolCall) else "wrong_failure"
        if item.start < at:
            return Finding(kind, f"{item.raw!r} begins at {item.start}, inside what ends at {at}")
        if not item.raw or text[item.start : item.start + len(item.raw)] != item.raw:
            return Finding(kind, f"{item.raw!r} does not stand at {item.start}")
        at = item.start + len(item.raw)
    for items in ([one for one in found if isinstance(one, kind)] for kind in (ToolCall, FailedCall)):
        if items != sorted(items, key=lambda one: one.start):
            return Finding("wrong_call", "the calls are not in the order of the text")
    return None


def _reasoning_end(text: str, parser: ToolParser, case: Case) -> int:
    """Return where the reasoning of a turn ends at the earliest, whichever of its marks are tokens."""
    opening, closing = parser.reasoning_markers
    if case.sampled is not None or not (case.reasoning_open or re.match(rf"\s*{re.escape(opening)}", text)):
        return 0
    end = text.find(closing)
    return end if end >= 0 else len(text) + 1


def _unspoken(case: Case, found: list[ToolCall | FailedCall], parser: ToolParser, grammar: Grammar) -> Finding | None:
    """Return a finding if text after the reasoning begins like a call, but is neither a call nor a failed call."""
    if case.sampled is not None or (grammar.framed and found) or (grammar.channel and grammar.channel in case.text):
        return None
    rest = _reasoning_end(case.text, parser, case)
    spans = [(one.start, one.start + len(one.raw)) for one in found]
    later_reasoning = ".*?".join(re.escape(marker) for marker in parser.reasoning_markers)
    spans += [match.span() for match in re.finditer(later_reasoning, case.text, re.DOTALL)]
    for opening in grammar.openings:
        at = case.text.find(opening, rest)
        while at >= 0:
            if not any(start <= at < end for start, end in spans):
                return Finding("missed_call", f"{opening} at {at} is part of no call and of no failure")
            at = case.text.find(opening, at + 1)
    return None


def _details(read: ParsedTurn) -> Finding | None:
    for failure in read.failures:
        detail = failure.detail
        try:
            detail.encode()
        except UnicodeEncodeError:
            return Finding("wrong_failure", f"the detail is not UTF-8: {detail!r}")
        if not detail.endswith(".") or len(detail) >= LONGEST_DETAIL:
            return Finding("wrong_failure", f"the detail has {len(detail)} characters or no full stop: {detail!r}")
    return None


def _said(calls: Sequence[ToolCall], grammar: Grammar, case: Case) -> Finding | None:
    """Whether each call is one under the grammar and says what the parser took it to say, types included."""
    for call in calls:
        if call.name == CANARY:
            return Finding("wrong_call", f"a call inside another call was read: {call.raw!r}")
        try:
            said = grammar.read(call.raw, case.schemas)
        except NotACall as reason:
            return Finding(
                "wrong_call", f"{call.raw!r} is no call ({reason}), read as {call.name!r} {call.arguments!r}"
            )
        if not grammar.placed(case.text[: call.start], call.raw, case.text[call.start + len(call.raw) :]):
            return Finding("wrong_call", f"{call.raw!r} stands where no call can")
        if said.name != call.name or repr(said.arguments) != repr(call.arguments):
            return Finding("wrong_call", f"{call.raw!r} says {said!r}, read as {call.name!r} {call.arguments!r}")
    return None


def _tokens(read: ParsedTurn, parser: ToolParser, grammar: Grammar, case: Case) -> Finding | None:
    """Whether the same is found where words that only look like tokens do not even look like them."""
    neutral, back = neutralised(case)
    try:
        other = parser.parse(neutral.text, reasoning_open=case.reasoning_open, schemas=case.schemas)
    except Exception as error:
        return Finding("crash", f"{type(error).__name__} without tokens: {error}")
    names = [word for call in other.calls for word in (call.name, *call.arguments)]
    names += [failure.name for failure in other.failures if failure.name]
    if any(chr(neutral) in name for name in names for neutral in back):
        return None  # a name can hold what means nothing, and cannot hold a bracket
    for ours, theirs, kind in (
        (read.calls, other.calls, "wrong_call"),
        (read.failures, other.failures, "wrong_failure"),
    ):
        if [(one.start, len(one.raw)) for one in ours] != [(one.start, len(one.raw)) for one in theirs]:
            words = f"with tokens {ours!r}, without the words that are none {theirs!r}"
            return Finding(kind, words[:1000])
    for call, same in zip(read.calls, other.calls, strict=True):
        if call.name != same.name.translate(back) or repr(call.arguments) != repr(_restored(same.arguments, back)):
            return Finding("wrong_call", f"with tokens {call!r}, without the words that are none {same!r}"[:1000])
    return _said(other.calls, grammar, neutral)


def neutralised(case: Case) -> tuple[Case, dict[int, int]]:
    """Return a case without tokens that means the same, and how to get its text back."""
    back: dict[int, int] = {}
    places = frozenset(case.sampled or ())

    def replace(found: re.Match[str]) -> str:
        word = found[0]
        if found.start() in places:
            return word
        neutral = _NEUTRAL + ord(word[0]) % 0x1000
        back[neutral] = ord(word[0])
        return chr(neutral) + word[1:]

    text = _pattern(case.controls).sub(replace, case.text) if case.controls else case.text
    return case._replace(text=text, sampled=None), back


def _restored(value: Any, back: dict[int, int]) -> Any:
    if isinstance(value, str):
        return value.translate(back)
    if isinstance(value, dict):
        return {_restored(key, back): _restored(inner, back) for key, inner in value.items()}
    return [_restored(inner, back) for inner in value] if isinstance(value, list) else value


@lru_cache(maxsize=1000)
def _pattern(controls: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(word) for word in sorted(controls, key=len, reverse=True)))


@lru_cache(maxsize=10_000)
def _offsets(controls: tuple[str, ...], marker: str) -> tuple[int, ...]:
    return tuple(found.start() for found in _pattern(controls).finditer(marker)) if controls else ()


def occurrences(text: str, controls: tuple[str, ...]) -> list[int]:
    """Return where in a text one of some words stands."""
    return [found.start() for found in _pattern(controls).finditer(text)] if controls else []


class Hang(BaseException):
    """An input took too long; no parser can swallow this."""


@contextmanager
def watched(seconds: float) -> Iterator[None]:
    """End what takes more than some seconds of the processor with a `Hang`; in the main thread only."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def shrunk(case: Case, holds: Any, tries: int = 3000) -> Case:
    """Return a smaller case of which the same holds: pieces are left out as long as that works."""
    size = max(1, len(case.text) // 2)
    while size and tries > 0:
        at = 0
        while at < len(case.text) and tries > 0:
            tries -= 1
            smaller = _without(case, at, at + size)
            if holds(smaller):
                case = smaller
            else:
                at += size
        size //= 2
    return case


def _without(case: Case, start: int, end: int) -> Case:
    text = case.text[:start] + case.text[end:]
    if case.sampled is None:
        return case._replace(text=text)
    moved = {place - (end - start) if place >= end else place for place in case.sampled if not start <= place < end}
    return case._replace(text=text, sampled=tuple(sorted(moved & set(occurrences(text, case.controls)))))
