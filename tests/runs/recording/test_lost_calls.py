"""LostCalls: a failed call is lost until the same call is answered."""

from __future__ import annotations

import pytest

from strands_sglang import errors
from strands_sglang.errors import EngineUnreachableError
from strands_sglang.runs.recording.replay_log import LostCalls, got_no_tokens


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
def test_got_no_tokens(name: str, lost: bool) -> None:
    assert got_no_tokens(getattr(errors, name)("away")) is lost


def test_call_is_lost_until_answered_inside_the_same_tool_calls() -> None:
    calls, error = LostCalls(), EngineUnreachableError("away")
    calls.add("a", (), errors.ContextOverflowError("too long"))
    assert calls.first is None
    calls.add("a", ("outer", "inner"), error)
    calls.answered("a", ("outer",))
    calls.answered("b", ("outer", "inner"))
    assert calls.first is error and calls.inside_of("outer") is error and calls.inside_of("inner") is error
    assert calls.inside_of("other") is None
    calls.answered("a", ("outer", "inner"))
    assert calls.first is None and calls.inside_of("outer") is None
