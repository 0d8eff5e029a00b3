"""Errors keep their fields over a pickle, and the tree stays as drawn."""

from __future__ import annotations

import pickle

import pytest

from strands_sglang import errors


@pytest.mark.parametrize(
    "error",
    [
        errors.RequestRejectedError("m", status=400, server_message="w"),
        errors.ContextOverflowError("m", status=400, server_message="w", requested_tokens=5, limit_tokens=4),
        errors.EngineUnavailableError("m", attempts=61, status=503),
        errors.DeadlineExceededError("m", seconds=2.0),
        errors.CountMismatchError("m"),
    ],
)
def test_errors_survive_pickling(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == "m" and vars(copy) == vars(error)


def test_the_drawn_tree_is_the_tree() -> None:
    assert errors.__doc__ is not None
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    drawn = {word for word in errors.__doc__.replace("(", " ").replace(")", " ").split() if word.endswith("Error")}
    assert classes == drawn - {"ValueError", "TimeoutError"}
    assert issubclass(errors.DeadlineExceededError, TimeoutError)
    assert issubclass(errors.ConfigurationError, ValueError)


def test_the_agent_loop_retries_none_of_the_errors() -> None:
    from strands.types.exceptions import ModelThrottledException

    raised = [value for value in vars(errors).values() if isinstance(value, type)]
    assert not any(issubclass(kind, ModelThrottledException) for kind in raised)
