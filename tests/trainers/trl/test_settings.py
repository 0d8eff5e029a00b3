"""A trainer's arguments as sampling parameters and limits."""

from __future__ import annotations

from typing import Any

import pytest

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import Limits
from strands_sglang.trainers.trl.rollout import check_trainer, limits_within, sampling_of
from support.trainers.trl_doubles import Trainer, arguments


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"temperature": 1.0}),
        ({"temperature": 0.7, "top_p": 0.9}, {"temperature": 0.7, "top_p": 0.9}),
        ({"top_k": 20, "min_p": 0.1}, {"temperature": 1.0, "top_k": 20, "min_p": 0.1}),
        ({"top_k": -1, "top_p": None}, {"temperature": 1.0}),
        ({"repetition_penalty": 1.1}, {"temperature": 1.0, "repetition_penalty": 1.1}),
    ],
)
def test_sampling_parameters_of_the_trainer(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sampling_of(arguments(**given), {}) == expected


def test_other_parameters_are_kept() -> None:
    more = {"stop": ["\n"], "temperature": 1.0, "top_k": -1}
    assert sampling_of(arguments(), more) == {"stop": ["\n"], "temperature": 1.0, "top_k": -1}
    assert more == {"stop": ["\n"], "temperature": 1.0, "top_k": -1}


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"])
def test_parameter_given_twice_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"got {name}=0.5 and"):
        sampling_of(arguments(), {name: 0.5})


@pytest.mark.parametrize(
    ("limits", "longest", "response"),
    [
        (Limits(), 256, 256),
        (Limits(max_response_tokens=100), 256, 100),
        (Limits(max_response_tokens=500), 256, 256),
        (Limits(), None, None),
    ],
)
def test_smaller_limit_applies(limits: Limits, longest: int | None, response: int | None) -> None:
    assert limits_within(limits, longest).max_response_tokens == response


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tools": [print]}, "must have no tools"),
        ({"environment_factories": {None: object}}, "environment_factory"),
        ({"args": arguments(generation_kwargs={"stop": "x"})}, "generation_kwargs must be empty"),
    ],
)
def test_invalid_arguments_are_refused(changed: dict[str, Any], words: str) -> None:
    check_trainer(Trainer())
    with pytest.raises(ConfigurationError, match=words):
        check_trainer(Trainer(**changed))
