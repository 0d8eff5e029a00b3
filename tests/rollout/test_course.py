"""A run under way: what run.json says of it, its seal, and what it tells when it goes on."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from rollout.kinds import plain
from rollout.scripts import PromptEngine, assert_proved, crashed, run, steps
from strands_sglang import SGLangModel
from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.ledger import Ledger
from strands_sglang.ledger.seal import check_seal, read_seal
from strands_sglang.rollout import Limits, Task
from strands_sglang.rollout.job import Setup


def build(task: Task, model: SGLangModel) -> Any:
    return plain(model)


async def test_what_a_run_says_of_itself(tmp_path: Path) -> None:
    done = await run(build, ["a", "b"], PromptEngine(steps(1)), tmp_path, samples_per_task=2, limits=Limits(turns=9))
    about = json.loads((tmp_path / "run.json").read_text())
    assert (about["format"], about["samples_per_task"], about["run"]) == (1, 2, done.run_id)
    assert set(about["fingerprint"]) >= {"template", "parser"} and about["created"] > 1e9
    assert "9" in json.dumps(about["settings"])
    sealed = read_seal(tmp_path)
    assert sealed is not None and sealed["episodes"] == sealed["finished"] == 4
    assert check_seal(tmp_path) == []
    assert {record.begin.data["run"] for record in Ledger(tmp_path).episodes() if record.begin} == {done.run_id}


async def test_a_run_that_goes_on_is_the_same_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = await run(build, ["a", "b"], PromptEngine(steps(2)), tmp_path / "whole")
    folder = crashed(tmp_path / "whole", tmp_path / "crash", 3)
    with caplog.at_level(logging.WARNING):
        second = await run(build, ["a", "b"], PromptEngine(steps(2)), folder, limits=Limits(turns=9))
    assert second.run_id == first.run_id
    # Other settings than it began with are told, not refused.
    assert "settings" in caplog.text
    assert_proved(folder)
    sealed = read_seal(folder)
    assert sealed is not None and len(sealed["shards"]) == 2


async def test_a_run_that_breaks_is_not_sealed(tmp_path: Path) -> None:
    def broken(episode: Any) -> None:
        raise LookupError("my own mistake")

    with pytest.raises(LookupError):
        await run(build, ["a", "b"], PromptEngine(steps(2)), tmp_path, on_episode=broken)
    assert read_seal(tmp_path) is None
    await run(build, ["a", "b"], PromptEngine(steps(2)), tmp_path)
    assert_proved(tmp_path)


async def test_nothing_to_do(tmp_path: Path) -> None:
    done = await run(build, [], PromptEngine(steps(1)), tmp_path)
    assert len(done) == 0 and done.groups == [] and done.metrics.done == 0
    assert len(asyncio.all_tasks()) == 1


async def test_workers_that_are_not_asked_for_are_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (-1, True, 1.5, "two"):
        with pytest.raises(ConfigurationError, match="workers"):
            await run(build, ["a"], PromptEngine(steps(1)), tmp_path, workers=wrong)
    assert not (tmp_path / "run.json").exists()


def test_settings_can_be_written() -> None:
    engine = PromptEngine(steps(1))
    setup = Setup(
        build,
        None,
        engine.tokenizer,
        engine,
        Limits(turns=3),
        {"sampling_params": {"temperature": 1.0}, "odd": object()},
    )
    assert json.loads(json.dumps(setup.settings()))
