"""What the tests of tool parsers share: how a turn is held against its text, and how a format's texts are written."""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from strands_sglang.tool_parsers.base import ToolParser
from strands_sglang.tool_parsers.parsed import FailedCall, ParsedTurn, ParseFailure, ToolCall

LONGEST = 300
"""Characters of a detail, which are 300 where none of those it shows has to be written as `\\U0001f600`."""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({key for key, _ in pairs}) == len(pairs)
    return dict(pairs)


def same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def shown(value: Any) -> str | None:
    """Return the id of a case."""
    return value[:60].encode("unicode_escape").decode() if isinstance(value, str) else None


def check_turn(text: str, turn: ParsedTurn, *, escapes: bool = False) -> None:
    """Hold against its text what is the same in a turn of any format.

    Args:
        text: The text.
        turn: What was read of it.
        escapes: A detail may be longer where it shows characters that are not printable.
    """
    both: list[ToolCall | FailedCall] = [*turn.calls, *turn.failures]
    end = 0
    for item in sorted(both, key=lambda item: item.start):
        assert item.raw and item.start >= end and text[item.start :].startswith(item.raw)
        end = item.start + len(item.raw)
    for call in turn.calls:
        assert call.name.strip()
        assert json.dumps(call.arguments, allow_nan=False, ensure_ascii=False).encode() is not None
    for failed in turn.failures:
        assert failed.detail.endswith(".") and failed.detail.encode() is not None
        assert len(failed.detail) < LONGEST or (escapes and not failed.raw.isprintable())
    if not turn.reasoning_closed:
        assert not both and turn.text == ""


SECONDS = 10.0
"""Processor time within which a megabyte is read, whatever it is. It takes about one second; by work that grew with the
square of the length it would be minutes."""


def least_seconds(work: Callable[[], object]) -> float:
    """Return the processor's time of the least of a few runs: the rest is the machine's."""
    least = float("inf")
    for _ in range(3):
        begun = time.process_time()
        work()
        least = min(least, time.process_time() - begun)
        if least < SECONDS / 2:
            break
    return least


def megabyte(unit: str, before: str = "") -> str:
    """Return a megabyte of one text again and again."""
    return (before + unit * (1_000_000 // len(unit) + 1))[:1_000_000]


@dataclass(frozen=True)
class Format(ABC):
    """How one family writes its calls, for tests that several families share.

    Tables of such tests write `{WORD}` for what each family writes in its own way.
    """

    name: str
    parser: ToolParser

    @property
    @abstractmethod
    def words(self) -> Mapping[str, str]:
        """What to write for the words of a table."""

    @abstractmethod
    def check_call(self, text: str, call: ToolCall) -> None:
        """Hold a call against its text, in other ways than the parser's own."""

    def fill(self, text: str) -> str:
        words = self.words
        return re.sub(r"\{([A-Z_]{2,})\}", lambda match: words[match[1]], text)

    def parse(self, text: str, *, reasoning_open: bool = False) -> ParsedTurn:
        turn = self.parser.parse(text, reasoning_open=reasoning_open)
        check_turn(text, turn)
        for call in turn.calls:
            self.check_call(text, call)
        return turn

    def found(self, text: str) -> tuple[list[str], list[tuple[ParseFailure, str]], str]:
        """Return the names of the calls of a turn, kind and text of its failures, and what remains for the reader."""
        turn = self.parse(text)
        return [call.name for call in turn.calls], [(item.failure, item.raw) for item in turn.failures], turn.text

    def failed(self, text: str) -> FailedCall:
        """Return the one failed call of a text that has no call."""
        turn = self.parse(text)
        assert turn.calls == () and len(turn.failures) == 1
        return turn.failures[0]

    def cpu_seconds(self, text: str) -> float:
        return least_seconds(lambda: self.parser.parse(text))
