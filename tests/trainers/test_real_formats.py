"""Exported trajectories, accepted by harbor's, OpenEnv's and TRL's own code in their own environments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from strands_sglang.tokens import TokenTree
from strands_sglang.trainers.traces import write_atif, write_training_traces
from strands_sglang.trainers.trl import tree_rows
from support.examples import size
from support.lab_servers import LAB
from support.trainers.recorded_trees import record_trees

pytestmark = [pytest.mark.engine, pytest.mark.own_servers]  # with the tests that need environments of trainers

ROOT = LAB.parent


def checked(environment: str, folder: Path) -> dict[str, Any]:
    """Run the checks in an environment; make that of the formats if it is missing."""
    setup = [sys.executable, str(ROOT / "scripts" / "setup-trainers")]
    where = ["--where"] if environment == "trl" else []
    found = subprocess.run([*setup, *where, environment], capture_output=True, text=True, check=False)
    if found.returncode:
        words = f"no environment for {environment}; make it with: scripts/setup-trainers {environment}\n{found.stderr}"
        pytest.fail(words) if os.environ.get("CI") else pytest.skip(words)
    checks = ROOT / "tests" / "support" / "trainers" / "format_checks.py"
    command = [found.stdout.strip(), str(checks), environment, str(folder)]
    env = {**os.environ, "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def trained_of(trees: dict[str, TokenTree]) -> int:
    return sum(int(one.loss_mask.sum()) for tree in trees.values() for one in tree.trajectories())


@pytest.mark.soak
def test_harbor_and_openenv_accept_random_trees(tmp_path: Path) -> None:
    trees = record_trees(tmp_path / "run", 200, seed=11)
    write_atif(tmp_path / "run", tmp_path / "atif")
    write_training_traces(tmp_path / "run", tmp_path / "traces.jsonl")
    found = checked("formats", tmp_path)
    assert found["documents"] == sum(len(tree) > 0 for tree in trees.values()) and found["traces"] == len(trees)
    assert found["tokens"] == sum(len(turn.sampled) for tree in trees.values() for turn in tree.turns)
    assert found["trained"] == found["masks"] == trained_of(trees)


def test_trl_packs_random_trees(tmp_path: Path) -> None:
    trees = record_trees(tmp_path / "run", size(60, 200), seed=12)
    rows = tree_rows(tmp_path / "run", model_version=lambda name: int(name or 0))
    with (tmp_path / "rows.jsonl").open("wb") as file:
        for row in rows:
            plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()}
            file.write(orjson.dumps(plain, option=orjson.OPT_APPEND_NEWLINE))
    found = checked("trl", tmp_path)
    assert found["rows"] == len(rows) and found["terms"] == trained_of(trees) and found["forwarded"] < found["raw"]
