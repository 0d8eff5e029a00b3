"""A trainer's arguments for the engine."""

from __future__ import annotations

from typing import Any

import pytest

from strands_sglang.errors import ConfigurationError
from strands_sglang.rollout import Limits
from strands_sglang.trainers.trl_settings import check_trainer, limits_within, sampling_of
from trainers.trl_doubles import Trainer, arguments


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {"temperature": 1.0}),
        ({"temperature": 0.7, "top_p": 0.9}, {"temperature": 0.7, "top_p": 0.9}),
        ({"top_k": 20, "min_p": 0.1}, {"temperature": 1.0, "top_k": 20, "min_p": 0.1}),
        ({"top_k": -1, "top_p": None}, {"temperature": 1.0}),
        ({"repetition_penalty": 1.1}, {"temperature": 1.0, "repetition_penalty": 1.1}),
    ],
)
def test_the_engine_samples_as_the_trainer_says(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert sampling_of(arguments(**given), {}) == wanted


def test_further_parameters_stay_and_are_not_changed() -> None:
    more = {"stop": ["\n"], "temperature": 1.0, "top_k": -1}
    assert sampling_of(arguments(), more) == {"stop": ["\n"], "temperature": 1.0, "top_k": -1}
    assert more == {"stop": ["\n"], "temperature": 1.0, "top_k": -1}


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"])
def test_two_words_about_one_thing_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}=0.5, the trainer"):
        sampling_of(arguments(), {name: 0.5})


@pytest.mark.parametrize(
    ("limits", "longest", "response"),
    [(Limits(), 256, 256), (Limits(response=100), 256, 100), (Limits(response=500), 256, 256), (Limits(), None, None)],
)
def test_a_completion_stays_within_both_limits(limits: Limits, longest: int | None, response: int | None) -> None:
    assert limits_within(limits, longest).response == response


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tools": [print]}, "tools of its own"),
        ({"environment_factories": {None: object}}, "environment_factory"),
        ({"args": arguments(generation_kwargs={"stop": "x"})}, "sampling_params="),
    ],
)
def test_what_cannot_work_is_refused(changed: dict[str, Any], words: str) -> None:
    check_trainer(Trainer())
    with pytest.raises(ConfigurationError, match=words):
        check_trainer(Trainer(**changed))
