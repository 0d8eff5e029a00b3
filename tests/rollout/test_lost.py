"""Calls that got no tokens: lost until they are answered, wherever they were made."""

from __future__ import annotations

import pytest

from strands_sglang import errors
from strands_sglang.errors import EngineUnreachableError
from strands_sglang.rollout.lost import LostCalls, got_no_tokens


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("EngineUnreachableError", True),
        ("EngineBusyError", True),
        ("DeadlineExceededError", True),
        ("CountMismatchError", True),
        ("RequestRejectedError", False),
        ("ContextOverflowError", False),
        ("CallCancelledError", False),
        ("TokenBudgetError", False),
    ],
)
def test_what_counts_as_no_tokens(name: str, lost: bool) -> None:
    assert got_no_tokens(getattr(errors, name)("away")) is lost


def test_lost_until_it_is_answered_at_the_same_place() -> None:
    calls, error = LostCalls(), EngineUnreachableError("away")
    calls.note("a", (), errors.ContextOverflowError("too long"))
    assert calls.first is None
    calls.note("a", ("outer", "inner"), error)
    calls.answered("a", ("outer",))
    calls.answered("b", ("outer", "inner"))
    assert calls.first is error and calls.inside_of("outer") is error and calls.inside_of("inner") is error
    assert calls.inside_of("other") is None
    calls.answered("a", ("outer", "inner"))
    assert calls.first is None and calls.inside_of("outer") is None
