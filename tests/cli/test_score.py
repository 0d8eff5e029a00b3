"""`strands-sglang score`: output, exit codes, and the recorded scores."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.cli.main import main
from support.rollout.agent_kinds import build
from support.rollout.scripts import PromptEngine, assert_proved, run, steps


def broken(episode: Any) -> float:
    return float(episode.missing_name)


def right(episode: Any) -> float:
    return 1.0 if episode.messages[-1]["role"] == "assistant" else 0.0


def only_one(episode: Any) -> float:
    return 0.5 if episode.task.prompt == "one" else float("nan")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    asyncio.run(run(build, ["one", "two"], PromptEngine(steps(0)), tmp_path / "run", reward=broken))
    return tmp_path / "run"


def arguments(folder: Path, reward: str, *more: str) -> list[str]:
    return ["score", str(folder), "--reward", f"{__name__}:{reward}", *more]


def test_scored(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(folder, "only_one")) == 1
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "2 episodes scored: 1 with a value, mean 0.5, 1 failed"
    assert second == "  1 value changed; earlier scores stay recorded, the newest counts"
    assert third == "  1 time: ValueError: the reward must be finite, got nan"
    assert_proved(folder)
    (folder / "signature.json").write_text("{}")
    assert main(arguments(folder, "right", "--unscored")) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("1 episode scored: 1 with a value, mean 1, 0 failed\n") and "sign it again" in printed
    (folder / "signature.json").unlink()
    assert main(arguments(folder, "right", "--unscored")) == 3
    assert capsys.readouterr().out.startswith("nothing to score")
    assert main(arguments(folder, "right", "--json")) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted((one["before"], one["reward"], one["error"]) for one in lines) == [(0.5, 1.0, None), (1.0, 1.0, None)]
    assert_proved(folder)


def test_wrong_usage(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given, words in (
        (arguments(tmp_path, "right"), "is not the directory of a run"),
        (arguments(folder, "nothing"), "has no function 'nothing'"),
        (["score", str(folder), "--reward", "right"], "--reward must be MODULE:FUNCTION, such as my_rewards:reward"),
        (["score", str(folder), "--reward", "no_such_module:right"], "cannot import 'no_such_module'"),
        (arguments(folder, "right", "--episode", "x"), "no episode 'x'"),
    ):
        assert main(given) == 2
        assert words in capsys.readouterr().err
