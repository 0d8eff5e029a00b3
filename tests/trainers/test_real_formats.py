"""Exported trajectories, accepted by harbor's, OpenEnv's and TRL's own code in their own environments."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from strands.hooks import BeforeToolCallEvent

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.proof.verify import verify
from strands_sglang.runs import Limits, MaxStaleness, Task, rollout
from strands_sglang.trainers.traces import write_atif, write_training_traces
from strands_sglang.trainers.trl import tree_rows
from support.examples import size
from support.lab_servers import LAB, LabProcess
from support.rollout_agent import SAMPLING, TOKENIZER, TURNS, agent_for, score, tasks
from support.trainers.recorded_trees import record_trees

pytestmark = [pytest.mark.engine, pytest.mark.own_servers]  # with the tests that need environments of trainers

ROOT = LAB.parent
COUNT, EPISODES = size(60, 200), size(8, 32)


def checked(environment: str, folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Run the checks in an environment; make that of the formats if it is missing."""
    setup = [sys.executable, str(ROOT / "scripts" / "setup-trainers")]
    where = ["--where"] if environment == "trl" else []
    found = subprocess.run([*setup, *where, environment], capture_output=True, text=True, check=False)
    if found.returncode:
        words = f"no environment for {environment}; make it with: scripts/setup-trainers {environment}\n{found.stderr}"
        pytest.fail(words) if os.environ.get("CI") else pytest.skip(words)
    checks = ROOT / "tests" / "support" / "trainers" / "format_checks.py"
    command = [found.stdout.strip(), str(checks), environment, *map(str, folders)]
    env = {**os.environ, "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)
    return [json.loads(line) for line in done.stdout.splitlines()[-len(folders) :]]


@dataclass
class Recorded:
    """A run, and what its ledger says."""

    directory: Path
    episodes: int
    documents: int
    """Episodes with a turn."""
    sampled: int
    trained: int

    @property
    def folder(self) -> Path:
        return self.directory.parent


def random_run(folder: Path, count: int, seed: int, untrained: str = "") -> Recorded:
    """Record trees made up at random; `untrained`: versions whose tokens are too old."""
    ages = [["1", 2], ["2", 1], ["3", 0], [None, None]]
    stale = {"limit": 0, "action": "mask", "order": "number", "current": "3", "ages": ages, "age": 2}
    decided = {**stale, "decision": "masked"} if untrained else None
    trees = record_trees(folder / "run", count, seed, staleness=decided)
    trained = 0
    for tree in trees.values():
        tree.untrained_versions = frozenset(untrained)
        trained += sum(int(one.loss_mask.sum()) for one in tree.trajectories())
    sampled = sum(len(turn.sampled) for tree in trees.values() for turn in tree.turns)
    return Recorded(folder / "run", len(trees), sum(len(tree) > 0 for tree in trees.values()), sampled, trained)


async def real_run(folder: Path, url: str) -> Recorded:
    """Record episodes whose weights are updated by their first tool call: what was sampled before is not trained."""
    async with SGLangClient(url) as client:

        async def update(version: str) -> None:
            (result,) = await client.control.swap_weights(TOKENIZER, version=version)
            assert result.ok, result.message

        updated: list[str] = []

        def updating(given: Task, model: SGLangModel) -> Any:
            async def called(event: BeforeToolCallEvent) -> None:
                if not updated:
                    updated.append("8")
                    await update("8")

            agent = agent_for(model)
            agent.hooks.add_callback(BeforeToolCallEvent, called)
            return agent

        await update("7")
        run = await rollout(
            updating,
            tasks(EPISODES // 2),
            client=client,
            tokenizer=TOKENIZER,
            reward=score,
            samples_per_task=2,
            limits=Limits(max_turns=TURNS),
            sampling_params=SAMPLING,
            directory=folder / "run",
            max_staleness=MaxStaleness(0, "mask"),
        )
        await update("default")
    assert len(run) == EPISODES
    certificate = verify(folder / "run")
    assert certificate.proved and certificate.staleness["masked"] and certificate.tokens.stale, certificate.text()
    return Recorded(folder / "run", EPISODES, EPISODES, certificate.tokens.sampled, certificate.tokens.trained)


@pytest.fixture(scope="module")
def runs(tool_policy: LabProcess, tmp_path_factory: pytest.TempPathFactory) -> list[Recorded]:
    """Random trees, random trees with tokens that are too old, also within a turn, and episodes of the engine."""
    folders = [tmp_path_factory.mktemp(name) for name in ("random", "masked", "real")]
    return [
        random_run(folders[0], COUNT, seed=11),
        random_run(folders[1], COUNT, seed=12, untrained="12"),
        asyncio.run(real_run(folders[2], tool_policy.url)),
    ]


@pytest.mark.soak
def test_harbor_and_openenv_accept_all_trees(runs: list[Recorded]) -> None:
    documents = []
    for run in runs:
        documents.append(write_atif(run.directory, run.folder / "atif"))
        write_training_traces(run.directory, run.folder / "traces.jsonl")
    results = checked("formats", [run.folder for run in runs])
    for run, written, found in zip(runs, documents, results, strict=True):
        assert found["documents"] == written == run.documents and found["traces"] == run.episodes
        assert found["tokens"] == run.sampled
        assert found["trained"] == found["masks"] == run.trained
    assert [found["partly"] > 0 for found in results[:2]] == [False, True]


def test_trl_packs_all_trees(runs: list[Recorded]) -> None:
    written = []
    for run in runs:
        rows = tree_rows(run.directory, model_version=lambda name: int(name or 0))
        with (run.folder / "rows.jsonl").open("wb") as file:
            for row in rows:
                plain = {
                    name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()
                }
                file.write(orjson.dumps(plain, option=orjson.OPT_APPEND_NEWLINE))
        written.append(len(rows))
    results = checked("trl", [run.folder for run in runs])
    for run, rows_written, found in zip(runs, written, results, strict=True):
        assert found["rows"] == rows_written and found["terms"] == run.trained
        assert found["forwarded"] <= found["raw"]
    assert results[0]["forwarded"] < results[0]["raw"] and results[2]["forwarded"] < results[2]["raw"]
