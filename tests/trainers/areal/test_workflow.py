"""AReaL gets a valid trajectory with a version for every token, however the episode ends."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import Episode
from support.gateway.processes import build_process, multiplies
from support.rollout.agent_kinds import build
from support.rollout.scripts import PromptEngine, steps
from support.trainers.areal_mirror import Engine, GenerationHyperparameters, Stats, adapter, areal_installed

ROW = {"messages": [{"role": "user", "content": "go"}], "answer": np.int64(3), "split": "train"}
TYPES = {
    "input_ids": "int32", "loss_mask": "int32", "logprobs": "float32", "versions": "int32", "attention_mask": "bool",
    "rewards": "float32",
}  # fmt: skip


def broken(task: Any, model: Any) -> Any:
    raise RuntimeError("no such agent")


def score(episode: Episode) -> dict[str, float]:
    assert episode.task.answer == 3 and episode.task.data["split"] == "train"
    return {"reward": float(episode.text == "the end"), "accuracy": 0.5}


@pytest.fixture
def areal() -> Iterator[Stats]:
    with areal_installed() as stats:
        yield stats


def workflow(engine: PromptEngine, **settings: Any) -> Any:
    made = importlib.import_module("strands_sglang.trainers.areal").StrandsWorkflow
    gconfig = settings.pop("gconfig", GenerationHyperparameters(max_new_tokens=200, max_tokens=900))
    return made(**{"build": build, "reward": score, "gconfig": gconfig, "tokenizer": engine.tokenizer, **settings})


async def run(engine: Engine, row: Any = ROW, **settings: Any) -> dict[str, Any]:
    made = await workflow(engine.engine, **settings).arun_episode(engine, row)
    assert {name: tensor.dtype for name, tensor in made.items()} == TYPES
    plain: dict[str, Any] = {name: tensor.array for name, tensor in made.items()}
    tokens = plain["input_ids"].shape[1]
    assert all(array.shape == ((1,) if name == "rewards" else (1, tokens)) for name, array in plain.items())
    return {name: array[0] for name, array in plain.items()}


async def test_episode_is_a_trajectory(areal: Stats) -> None:
    engine = Engine(PromptEngine(steps(2)))
    row = await run(engine)
    last = engine.requests[-1]
    assert row["input_ids"][: len(last.input_ids)].tolist() == last.input_ids
    assert engine.engine.decode(row["input_ids"][len(last.input_ids) :]) == "the end<|im_end|>"
    trained = row["loss_mask"] == 1
    assert ((row["versions"] >= 0) == trained).all() and row["attention_mask"].all()
    assert ((row["logprobs"] != 0) == trained).all()
    assert sorted(set(row["versions"][trained].tolist())) == [0, 1, 2, 3], "versions change within turns"
    assert row["rewards"] == 1.0
    assert len({request.rid for request in engine.requests}) == 1, "one server for an episode"
    assert all(request.gconfig.n_samples == 1 for request in engine.requests)
    ends = {engine.engine.tokenizer.pad_token_id, engine.engine.tokenizer.eos_token_id}
    assert ends <= set(engine.requests[0].gconfig.stop_token_ids)
    (reported,) = areal.reported["rollout"]
    assert (reported["reward"], reported["num_turns"], reported["failed"], reported["accuracy"]) == (1.0, 3, 0.0, 0.5)


async def test_an_agent_may_be_a_process(areal: Stats) -> None:
    engine = Engine(PromptEngine(multiplies))
    row = await run(engine, build=build_process)
    assert len(engine.requests) >= 2 and row["loss_mask"].any() and row["rewards"] == 1.0


async def test_samples_of_a_row_are_separate_episodes(areal: Stats) -> None:
    engine = Engine(PromptEngine(steps(1)))
    flow = workflow(engine.engine)
    await asyncio.gather(*(flow.arun_episode(engine, ROW) for _ in range(4)))
    assert len({request.rid for request in engine.requests}) == 4 and len(areal.reported["rollout"]) == 4


async def test_gconfig_limits_tokens(areal: Stats) -> None:
    engine = Engine(PromptEngine(steps(50)))
    row = await run(engine, gconfig={"max_new_tokens": 100, "max_tokens": 400})
    assert 300 < len(row["input_ids"]) <= 400 and row["loss_mask"].any() and row["rewards"] == 0.0
    assert all(request.gconfig.max_new_tokens <= 100 for request in engine.requests)
    cut = await run(Engine(PromptEngine(steps(50))), gconfig=GenerationHyperparameters(max_new_tokens=4))
    assert cut["loss_mask"].sum() == 4


@pytest.mark.parametrize("row", [ROW, {"question": "no messages"}])
async def test_failed_episode_is_masked_or_rejected(areal: Stats, row: Any) -> None:
    engine = Engine(PromptEngine(steps(2)))
    made = await run(engine, row, build=broken)
    assert made["loss_mask"].tolist() == [0, 0] and made["rewards"] == 0.0 and made["versions"].tolist() == [-1, -1]
    assert areal.reported["rollout"][-1]["failed"] == 1.0
    assert await workflow(engine.engine, build=broken, failed="reject").arun_episode(engine, row) is None


async def test_tokens_are_not_trained_if_the_engine_fails(areal: Stats) -> None:
    answers = steps(9)

    def script(prompt: str, before: int) -> Any:
        return OSError("the server is gone") if "step 2" in prompt else answers(prompt, before)

    row = await run(Engine(PromptEngine(script)))
    assert len(row["input_ids"]) > 50 and not row["loss_mask"].any() and row["rewards"] == 0.0


async def test_unknown_sampling_parameter_is_refused(areal: Stats) -> None:
    engine = Engine(PromptEngine(steps(1)))
    row = await run(engine, model={"sampling_params": {"min_p": 0.1}})
    assert not engine.requests and not row["loss_mask"].any()
    await run(engine, model={"sampling_params": {"temperature": 0.5}})
    assert engine.requests[-1].gconfig.temperature == 0.5


def test_invalid_settings_are_refused(areal: Stats) -> None:
    engine = PromptEngine(steps(1))
    workflow(
        engine,
        build="trainers.areal.test_workflow.build",
        reward="trainers.areal.test_workflow.score",
        limits={"max_turns": 2},
    )
    for bad in ({"build": "nowhere.build"}, {"reward": None}, {"limits": {"max_turns": 0}}):
        with pytest.raises(ConfigurationError):
            workflow(engine, **bad)
    with pytest.raises(ValueError, match="perhaps"):
        workflow(engine, failed="perhaps")


@pytest.mark.parametrize(
    ("changed", "lost"),
    [({}, False), ({"top_p": 0.9}, True), ({"top_k": 50}, True), ({"top_p": 0.9, "greedy": True}, False)],
)
def test_kept_sets_are_recognised(changed: dict[str, Any], lost: bool) -> None:
    engine = adapter.ArealEngine(None, None, GenerationHyperparameters(**changed), None)
    assert engine.loses_kept_sets({"max_new_tokens": 9, "stop": None}) is lost
