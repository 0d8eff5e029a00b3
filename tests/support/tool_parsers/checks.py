"""What the tests of tool parsers share: how a turn is held against its text, and how a format's texts are written."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st

from strands_sglang.tool_parsers.base import ToolParser
from strands_sglang.tool_parsers.parsed import FailedCall, ParsedTurn, ParseFailure, ToolCall
from support.tool_parsers.grammars import GRAMMARS, Schemas

LONGEST = 300
"""Characters of a detail, which are 300 where none of those it shows has to be written as `\\U0001f600`."""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


TYPED: Schemas = {
    "f": {
        "type": "object",
        "properties": {
            **{key: {"type": "string"} for key in ("s", "path", "text")},
            **{"n": {"type": "integer"}, "o": {"type": "object"}, "a": {"type": "array"}},
        },
    }
}
"""A tool for the formats that write values bare."""


def same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def rows(outcome: Any, *texts: str) -> list[Any]:
    """Return rows of a table: texts that all have one outcome, which is a tuple if it fills several columns."""
    return [(text, *(outcome if isinstance(outcome, tuple) else (outcome,))) for text in texts]


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


@dataclass(frozen=True)
class Format:
    """One family's parser, and the grammar that says a second time what a call of it is.

    Tables of cases write `{WORD}` for what each family writes in its own way.
    """

    parser: ToolParser
    schemas: Schemas = field(default_factory=dict, kw_only=True)
    escapes: bool = field(default=False, kw_only=True)
    """Whether a detail may be longer where it shows characters that are not printable."""

    @property
    def name(self) -> str:
        return self.parser.name

    @property
    def words(self) -> Mapping[str, str]:
        """What to write for the words of a table."""
        return {}

    def fill(self, text: str) -> str:
        words = self.words
        return re.sub(r"\{([A-Z_]{2,})\}", lambda match: words[match[1]], text) if words else text

    def parse(self, text: str, *, reasoning_open: bool = False, schemas: Schemas | None = None) -> ParsedTurn:
        """Parse a text, and compare each call with what the grammar reads."""
        schemas = self.schemas if schemas is None else schemas
        turn = self.parser.parse(text, reasoning_open=reasoning_open, schemas=schemas)
        check_turn(text, turn, escapes=self.escapes)
        grammar = GRAMMARS[self.name]
        for call in turn.calls if type(text) is str else ():  # the grammar knows nothing of tokens
            said = grammar.read(call.raw, schemas)
            assert (said.name, repr(said.arguments)) == (call.name, repr(call.arguments))
            assert grammar.placed(text[: call.start], call.raw, text[call.start + len(call.raw) :])
        return turn

    def found(self, text: str) -> tuple[list[str], list[tuple[ParseFailure, str]], str]:
        """Return the names of the calls of a turn, kind and text of its failures, and what remains for the reader."""
        turn = self.parse(text)
        return [call.name for call in turn.calls], [(item.failure, item.raw) for item in turn.failures], turn.text

    def failed(self, text: str, schemas: Schemas | None = None) -> FailedCall:
        """Return the one failed call of a text that has no call."""
        turn = self.parse(text, schemas=schemas)
        assert turn.calls == () and len(turn.failures) == 1
        return turn.failures[0]

    def check_malformed(self, raw: str, failure: ParseFailure, call: str) -> None:
        """Assert that a malformed call fails as a whole, and that a call between two of them is read."""
        turn = self.parse(f"a{raw}b{call}c{raw}")
        assert [item.failure for item in turn.failures] == [failure, failure]
        assert [item.raw for item in turn.failures] == [raw, raw]
        assert [item.start for item in turn.failures] == [1, len(f"a{raw}b{call}c")]
        assert [one.raw for one in turn.calls] == [call]
        assert turn.text == "a\nb\nc"


class Conformance:
    """The tests that every family has: a test module derives `Test...` from it and gives the family's cases.

    Properties that need no cases of a family are in test_conformance.py.
    """

    forms: ClassVar[list[Any]]
    """The formats that the cases are for; most modules test one."""
    remaining: ClassVar[list[tuple[str, str]]] = []
    """Texts, and what of them remains for the reader."""
    details: ClassVar[list[Any]] = []
    """Texts with one failed call and no other, a part of its detail, and its name if that is checked."""

    def test_remaining_text(self, form: Format, case: tuple[str, str]) -> None:
        text, remains = map(form.fill, case)
        assert form.parse(text).text == remains

    def test_detail_has_error_and_position(self, form: Format, case: tuple[Any, ...]) -> None:
        text, detail, *name = case
        failure = form.failed(form.fill(text))
        assert form.fill(detail) in failure.detail and (not name or failure.name == name[0])


TABLES = {
    Conformance.test_remaining_text.__name__: "remaining",
    Conformance.test_detail_has_error_and_position.__name__: "details",
}


def conformance_cases(metafunc: pytest.Metafunc) -> None:
    """Parametrise the tests of a `Conformance` with the cases of its family."""
    if metafunc.cls is None or not issubclass(metafunc.cls, Conformance) or "case" not in metafunc.fixturenames:
        return
    cases = getattr(metafunc.cls, TABLES[metafunc.function.__name__])
    pairs = [
        pytest.param(form, case, id=f"{form.name}-{shown(case if isinstance(case, str) else case[0])}")
        for form in metafunc.cls.forms
        for case in cases
    ]
    metafunc.parametrize(("form", "case"), pairs)
