"""`RunController`: contents of run.json, the seal, and resumed runs."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.seal import check_seal, read_seal
from strands_sglang.runs import Limits
from support.rollout.agent_kinds import build
from support.rollout.scripts import PromptEngine, assert_proved, crashed, run, steps


async def test_run_json_and_seal_describe_run(tmp_path: Path) -> None:
    done = await run(
        build, ["a", "b"], PromptEngine(steps(1)), tmp_path, samples_per_task=2, limits=Limits(max_turns=9)
    )
    recorded = json.loads((tmp_path / "run.json").read_text())
    assert (recorded["format"], recorded["samples_per_task"], recorded["run"]) == (2, 2, done.run_id)
    assert set(recorded["fingerprint"]) >= {"template", "parser"} and recorded["created"] > 1e9
    assert "9" in json.dumps(recorded["settings"])
    sealed = read_seal(tmp_path)
    assert sealed is not None and sealed["episodes"] == sealed["finished"] == 4
    assert check_seal(tmp_path) == []
    assert {record.begin.data["run"] for record in Ledger(tmp_path).episodes() if record.begin} == {done.run_id}


async def test_resumed_run_keeps_run_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = await run(build, ["a", "b"], PromptEngine(steps(2)), tmp_path / "whole")
    folder = crashed(tmp_path / "whole", tmp_path / "crash", 3)
    with caplog.at_level(logging.WARNING):
        changed: dict[str, Any] = {"limits": Limits(max_turns=9), "allow_changed": "settings"}
        second = await run(build, ["a", "b"], PromptEngine(steps(2)), folder, **changed)
    assert second.run_id == first.run_id
    assert "settings must be those of the recorded run: limits.max_turns null, got 9 | allowed" in caplog.text
    assert_proved(folder)
    sealed = read_seal(folder)
    assert sealed is not None and len(sealed["shards"]) == 2


async def test_run_without_tasks(tmp_path: Path) -> None:
    done = await run(build, [], PromptEngine(steps(1)), tmp_path)
    assert len(done) == 0 and done.groups == [] and done.metrics.done == 0
    assert len(asyncio.all_tasks()) == 1


async def test_invalid_workers_raise_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in (-1, True, 1.5, "two"):
        with pytest.raises(ConfigurationError, match="workers"):
            await run(build, ["a"], PromptEngine(steps(1)), tmp_path, workers=wrong)
    assert not (tmp_path / "run.json").exists()
