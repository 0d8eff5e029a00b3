"""`rollout`, `rollout_sync`, and their types."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import strands_sglang
from strands_sglang import rollout, rollout_sync
from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import runner as run
from support.rollout.agent_kinds import plain
from support.rollout.scripts import PromptEngine, steps

PROGRAM = """
from strands import Agent
from strands_sglang import SGLangModel, rollout, rollout_sync
from strands_sglang.runs import Episode, Limits, Task

def build(task: Task, model: SGLangModel) -> Agent:
    return Agent(model=model)

async def build_slowly(task: Task, model: SGLangModel) -> Agent:
    return Agent(model=model)

def score(episode: Episode) -> float:
    return 1.0

async def score_both(task: Task, episode: Episode) -> dict[str, float]:
    return {"reward": 1.0}

async def main() -> None:
    result = await rollout(build, ["hi"], tokenizer="x", base_url="http://x", reward=score, params={"top_p": 1})
    reveal_type(result[0])
    await rollout(build_slowly, [Task("hi")], tokenizer="x", base_url="http://x", reward=score_both)
    await rollout(score, ["hi"], tokenizer="x", base_url="http://x")  # wrong: builds no agent
    await rollout(build, ["hi"], tokenizer="x", base_url="http://x", reward=build)  # wrong: scores nothing
    await rollout(build, ["hi"], tokenizer="x", base_url="http://x", samplng_params={})  # wrong: misspelt

reveal_type(rollout_sync(build, ["hi"], tokenizer="x", base_url="http://x", limits=Limits(max_turns=3)))
"""


async def test_rollout_is_the_function() -> None:
    engine = PromptEngine(steps(1))
    done = await rollout(lambda task, model: plain(model), ["go"], tokenizer=engine.tokenizer, client=engine)
    assert len(done) == 1 and done[0].end_reason.complete
    assert inspect.isfunction(rollout) and rollout is run.rollout
    # The name is available in the published location and at the top level.
    assert strands_sglang.rollout.Rollout is strands_sglang.Rollout  # type: ignore[attr-defined]


def test_rollout_sync_without_event_loop() -> None:
    engine = PromptEngine(steps(1))
    done = rollout_sync(lambda task, model: plain(model), ["go"], tokenizer=engine.tokenizer, client=engine)
    assert len(done) == 1 and rollout_sync.__name__ == "rollout"


async def test_rollout_sync_in_event_loop_raises() -> None:
    with pytest.raises(ConfigurationError, match=r"write `await rollout\(...\)`"):
        rollout_sync(lambda task, model: plain(model), [], tokenizer=None)


def test_type_checker_accepts_valid_and_rejects_invalid_arguments(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--config-file=", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = [
        line for line in checked.stdout.splitlines() if line.startswith("program.py") and ": note: See" not in line
    ]
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if "# wrong" in line}
    assert {int(line.split(":")[1]) for line in lines if ": error:" in line} == wrong, checked.stdout
    revealed = [line for line in lines if "Revealed type" in line]
    assert "runs.episode.Episode" in revealed[0] and "RunResult" in revealed[1]
