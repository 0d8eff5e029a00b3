"""Miles' form of a generate function: its input with the rollout state, and samples with a routing key."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from runs.test_pause import InterruptingEngine
from strands_sglang.errors import ConfigurationError
from strands_sglang.trainers.slime import SampleGroup, miles_rollout, slime_rollout
from support.rollout.scripts import PromptEngine, steps
from support.trainers.slime_mirror import State, Status
from support.trainers.slime_validation import validate_sample
from trainers.slime.test_generate import SAMPLING, arguments, build, sample, score


def miles_sample() -> SimpleNamespace:
    """Return a sample with Miles' fields: a routing key, no session id, nothing about top-p."""
    fields = {name: value for name, value in vars(sample()).items() if name != "session_id" and "top_p" not in name}
    return SimpleNamespace(**fields, routing_key=None)


def miles_input(state: Any, **changed: Any) -> SimpleNamespace:
    given = {"state": state, "args": arguments(), "sample": miles_sample(), "sampling_params": dict(SAMPLING)}
    return SimpleNamespace(**{**given, "evaluation": False, **changed})


async def test_episode_is_paused_by_the_flag_of_the_input() -> None:
    state = State()
    engine = InterruptingEngine(PromptEngine(steps(2)), {1: 4}.get)
    engine.pause = state.raised
    generate = miles_rollout(build, reward=score, client=engine, tokenizer=engine.inner.tokenizer)
    assert list(inspect.signature(generate).parameters) == ["input"], "Miles decides by the parameter's name"
    given = miles_input(state)
    output = await generate(given)
    paused = output.samples
    assert paused.status is Status.ABORTED and engine.late == 0
    key = paused.routing_key
    assert key
    state.aborted = False
    done = (await generate(miles_input(state, sample=paused))).samples
    assert done.status is Status.COMPLETED and done.reward == 1.0 and done.routing_key == key
    assert not hasattr(done, "session_id")
    validate_sample(done)


async def test_branches_and_evaluation() -> None:
    engine = PromptEngine(steps(1))
    generate = miles_rollout(build, reward=score, client=engine, tokenizer=engine.tokenizer, branches="all")
    assert isinstance((await generate(miles_input(State()))).samples, SampleGroup)
    assert not isinstance((await generate(miles_input(State(), evaluation=True))).samples, list)


async def test_output_has_miles_type_if_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("miles.rollout.base_types")
    module.GenerateFnOutput = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    engine = PromptEngine(steps(1))
    generate = miles_rollout(build, reward=score, client=engine, tokenizer=engine.tokenizer)
    output = await generate(miles_input(State()))
    assert type(output) is SimpleNamespace and output.samples.status is Status.COMPLETED


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (SimpleNamespace(), "args, sample, sampling_params, state"),
        (miles_input(SimpleNamespace()), "state.aborted"),
        (arguments(), "sample, sampling_params, state"),
    ],
)
async def test_other_input_is_refused(given: Any, missing: str) -> None:
    generate = miles_rollout(build, reward=score, client=PromptEngine(steps(1)))
    with pytest.raises(ConfigurationError, match=rf"must be Miles' GenerateFnInput .* without .*{missing}"):
        await generate(given)


async def test_slime_rollout_refuses_samples_of_miles() -> None:
    """It could not detect an abort of Miles."""
    engine = PromptEngine(steps(1))
    generate = slime_rollout(build, reward=score, client=engine, tokenizer=engine.tokenizer)
    with pytest.raises(ConfigurationError, match="use miles_rollout"):
        await generate(arguments(), miles_sample(), dict(SAMPLING))


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="'main' or 'all'"):
        miles_rollout(build, branches="some")
