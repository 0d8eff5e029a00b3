"""Seeds of turns: they follow from the run's seed, the episode, the prompt and its repetition, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.engine import Generation
from strands_sglang.errors import ConfigurationError, EngineUnavailableError
from strands_sglang.ledger.reader import Ledger
from strands_sglang.runs import EndReason, Task, rollout
from strands_sglang.runs.recording.seeds import TurnSeeds, turn_seed
from support.rollout.agent_kinds import build, plain
from support.rollout.scripts import PromptEngine, run, steps
from support.scripted_engine import Answer

TASKS = [Task(f"question {number}", id=f"t{number}") for number in range(4)]


def seeds_of(engine: PromptEngine) -> dict[tuple[int, ...], list[int]]:
    """Return the seeds that the engine was sent, by prompt, sorted."""
    sent: dict[tuple[int, ...], list[int]] = {}
    for call in engine.calls:
        sent.setdefault(tuple(call.ids), []).append(call.sampling["sampling_seed"])
    return {prompt: sorted(seeds) for prompt, seeds in sent.items()}


def test_every_part_counts_and_a_seed_is_one_that_the_engine_takes() -> None:
    known = turn_seed(7, "t/0", "ab", 0)
    others = [turn_seed(8, "t/0", "ab", 0), turn_seed(7, "t/1", "ab", 0), turn_seed(7, "t/0", "cd", 0)]
    assert len({known, *others, turn_seed(7, "t/0", "ab", 1)}) == 5
    assert known == turn_seed(7, "t/0", "ab", 0) == -3585674466696852287
    assert all(-(2**63) <= turn_seed(seed, "t/0", "ab", 0) < 2**63 for seed in range(-50, 50))


def test_failed_turn_gives_its_number_back() -> None:
    seeds = TurnSeeds(7, "t/0")
    with pytest.raises(RuntimeError), seeds.turn("ab") as first:
        with seeds.turn("ab") as second:  # at the same time: another number
            assert second == turn_seed(7, "t/0", "ab", 1)
        raise RuntimeError
    with seeds.turn("ab") as again, seeds.turn("ab") as third:
        assert again == first == turn_seed(7, "t/0", "ab", 0)
        assert third == turn_seed(7, "t/0", "ab", 2)


def test_seeds_of_recorded_turns_are_not_used_again() -> None:
    seeds = TurnSeeds(7, "t/0", [turn_seed(7, "t/0", "ab", 1)])
    with seeds.turn("ab") as first, seeds.turn("ab") as second, seeds.turn("cd") as other:
        assert (first, second) == (turn_seed(7, "t/0", "ab", 0), turn_seed(7, "t/0", "ab", 2))
        assert other == turn_seed(7, "t/0", "cd", 0)


class OnlySecond(PromptEngine):
    """An engine that gives its second answer, and keeps the others until it may give all."""

    all = False

    async def generate(self, *args: Any, **asked: Any) -> Generation:
        made = await super().generate(*args, **asked)
        if not (self.all or made.rid.endswith("/1")):
            await asyncio.Event().wait()
        return made


async def test_concurrent_agents_with_one_prompt_have_no_clones_after_a_resume(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def three_at_once(task: Task, model: Any) -> Any:
        async def ask() -> None:
            await plain(model).invoke_async(str(task.prompt))
            ended.set()

        async def ask_three() -> None:
            await asyncio.gather(ask(), ask(), ask())

        return ask_three

    engine = OnlySecond(steps(0))
    cut = asyncio.ensure_future(run(three_at_once, TASKS[:1], engine, tmp_path, seed=7))
    await asyncio.wait({cut, asyncio.ensure_future(ended.wait())}, return_when=asyncio.FIRST_COMPLETED)
    cut.cancel()
    await asyncio.wait({cut})
    (record,) = Ledger(tmp_path).episodes()
    assert len(record.calls) == 1 and not record.finished
    engine.all = True
    (whole,) = await run(three_at_once, TASKS[:1], engine, tmp_path, seed=7)
    assert len(whole.tree.turns) == 3 and whole.metrics.replayed_turns == 1
    used = [engine.calls[number].sampling["sampling_seed"] for number in (1, 3, 4)]
    assert len(set(used)) == 3  # the answer on record, and the two that were missing
    calls = [call.data for call in Ledger(tmp_path).episode(whole.id).calls]
    seeds = [turn_seed(7, "t0/0", call["prompt_digest"], repeat) for repeat, call in enumerate(calls)]
    assert sorted(call["seed"] for call in calls) == sorted(used) == sorted(seeds)


async def test_seeds_of_a_run_do_not_depend_on_order_or_interruption(tmp_path: Path) -> None:
    engine, other = PromptEngine(steps(2)), PromptEngine(steps(2))
    await run(build, TASKS, engine, tmp_path, seed=7, samples_per_task=3)
    await run(build, TASKS[::-1], other, seed=7, samples_per_task=3, concurrency=2, prefix_warmup=None)
    wanted = seeds_of(engine)
    assert seeds_of(other) == wanted and all(len(set(seeds)) == 3 for seeds in wanted.values())
    assert Ledger(tmp_path).run["settings"]["seed"] == 7
    different = PromptEngine(steps(2))
    await run(build, TASKS, different, seed=8, samples_per_task=3)
    assert not set(map(tuple, seeds_of(different).values())) & set(map(tuple, wanted.values()))
    with pytest.raises(ConfigurationError, match="seed 7, got 8"):  # it is part of the experiment
        await run(build, TASKS, different, tmp_path, seed=8, samples_per_task=4)


async def test_turn_that_failed_is_sampled_with_its_own_seed_by_the_resumed_run(tmp_path: Path) -> None:
    away = asyncio.Event()

    def script(prompt: str, before: int) -> Answer:
        if prompt.count("<tool_response>") == 1 and not away.is_set():
            return EngineUnavailableError("away")
        return steps(2)(prompt, 0)

    engine, whole = PromptEngine(script), PromptEngine(steps(2))
    settings: dict[str, Any] = {"seed": 7, "samples_per_task": 2, "stop_if_first_fail": None}
    first = await run(build, TASKS, engine, tmp_path, **settings)
    assert {one.end_reason for one in first} == {EndReason.ENGINE_ERROR}
    away.set()
    await run(build, TASKS, engine, tmp_path, **settings)
    await run(build, TASKS, whole, **settings)
    assert {prompt: sorted(set(seeds)) for prompt, seeds in seeds_of(engine).items()} == seeds_of(whole)


@pytest.mark.parametrize("seed", [1.5, "7", True])
async def test_seed_must_be_an_int(seed: Any) -> None:
    with pytest.raises(ConfigurationError, match="seed must be an int"):
        await rollout(build, [], client=PromptEngine(steps(1)), tokenizer=None, seed=seed)


async def test_one_seed_for_all_turns_contradicts_the_seed_of_a_run() -> None:
    with pytest.raises(ConfigurationError, match="remove sampling_seed"):
        await run(build, TASKS, PromptEngine(steps(1)), seed=7, sampling_params={"sampling_seed": 7})
