"""Seeds on a real engine with deterministic inference: a run can be repeated, and its groups have no copies.

The lab's model is small and computed in float32. What batch invariance does on a GPU is not shown here.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest

from strands_sglang import SGLangClient
from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import Limits, RunOptions, RunResult, rollout
from support.examples import size
from support.lab_servers import LabProcess
from support.rollout_agent import SAMPLING, TOKENIZER, TURNS, build, score, tasks

pytestmark = [pytest.mark.engine, pytest.mark.own_servers]

TASKS, SAMPLES = size(16, 64), 4


async def seeded(
    server: LabProcess, seed: int | None = 7, *, backwards: bool = False, preflight: bool = False, **settings: Any
) -> RunResult:
    given = tasks(settings.pop("count", TASKS))[:: -1 if backwards else 1]
    defaults: dict[str, Any] = {"samples_per_task": SAMPLES, "concurrency": 64, "sampling_params": SAMPLING}
    return await rollout(
        build,
        given,
        base_url=server.url,
        tokenizer=TOKENIZER,
        reward=score,
        seed=seed,
        limits=Limits(max_turns=TURNS),
        options=RunOptions(preflight=preflight),
        **{**defaults, **settings},
    )


def tokens(run: RunResult) -> dict[str, list[list[int]]]:
    """Return the sampled ids of every turn of every episode."""
    return {episode.id: [turn.sampled.tolist() for turn in episode.tree] for episode in run}


async def test_run_with_a_seed_is_repeated_token_for_token(deterministic: LabProcess, tmp_path: Path) -> None:
    first = await seeded(deterministic, directory=tmp_path / "first")
    wanted = tokens(first)
    assert len(wanted) == TASKS * SAMPLES
    for group in first.groups:
        # The first turns of a group are sampled from one prompt: with one seed for all they would be the same.
        assert len({tuple(map(tuple, wanted[episode.id])) for episode in group.episodes}) > 1, group.task.id
    again = await seeded(deterministic, directory=tmp_path / "again")
    assert tokens(again) == wanted
    # Another order of tasks, and another number of episodes at once.
    assert tokens(await seeded(deterministic, backwards=True, concurrency=5)) == wanted
    assert tokens(await seeded(deterministic, seed=8)) != wanted


async def test_engine_without_seeds_is_refused_because_groups_would_be_copies(deterministic: LabProcess) -> None:
    with pytest.raises(ConfigurationError, match="would be copies of each other; pass seed="):
        await seeded(deterministic, seed=None, preflight=True)
    with pytest.raises(ConfigurationError, match="min_p must not be used"):  # refused before it can end the server
        await seeded(deterministic, sampling_params={**SAMPLING, "min_p": 0.1}, preflight=True)
    copies = await seeded(deterministic, seed=None, count=2)  # as the message says
    for group in copies.groups:
        assert len({str(tokens(copies)[episode.id]) for episode in group.episodes}) == 1


async def test_continued_turn_has_the_tokens_of_a_whole_one(deterministic: LabProcess) -> None:
    async with SGLangClient(deterministic.url) as client:
        prompt, sampling = array("i", range(100, 140)), {"temperature": 1.5, "ignore_eos": True, "sampling_seed": -5}
        whole = await client.generate(prompt, {**sampling, "max_new_tokens": 24})
        rest = await client.generate(prompt + whole.token_ids[:10], {**sampling, "max_new_tokens": 14})
    assert rest.token_ids == whole.token_ids[10:]
