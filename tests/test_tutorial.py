"""The files of the tutorial: its agent, tasks and reward, and what slime is given; test_real_trl.py runs all of it."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.runs import Task
from support.rollout.scripts import PromptEngine
from support.rollout.scripts import run as run_episodes
from support.scripted_engine import Answer, tool_call
from support.trainers.slime_flags import check_script, flags, unknown_flags

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "examples" / "tutorial" / "tutorial.ipynb"
PAGE = (ROOT / "docs" / "start" / "tutorial.md").read_text()
(SCRIPT,) = re.findall(r"^```sh\n(#!/usr/bin/env bash\n# train_slime.sh\n.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
NAMES = ("agent", "rewards", "slime_agent")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder with the tutorial's files, which can be imported from it."""
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        head, _, code = "".join(cell["source"]).partition("\n")
        if head.startswith("%%writefile "):
            (tmp_path / head.split()[1]).write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in NAMES:
        sys.modules.pop(name, None)


def module(name: str) -> Any:
    return importlib.import_module(name)


def solver(prompt: str, before: int) -> Answer:
    """Compute the two steps of a task with the calculator, and answer."""
    start, first, left, second, right = re.findall(r"Compute (\d+) (.) (\d+), then (.) (\d+)\.", prompt)[-1]
    results = re.findall(r"<tool_response>\n(-?\d+)\n", prompt)
    if len(results) == 2:
        return f"The answer is {results[1]}."
    asked = f"{results[0]} {second} {right}" if results else f"{start} {first} {left}"
    return tool_call("calculator", expression=asked)


async def test_the_agent_solves_the_tasks_and_is_rewarded(folder: Path) -> None:
    subprocess.run([sys.executable, "make_tasks.py"], cwd=folder, check=True)
    rows = [json.loads(line) for line in (folder / "held-out.jsonl").read_text().splitlines()]
    trained = [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]
    assert (len(rows), len(trained)) == (16, 480)
    assert not {row["prompt"] for row in rows} & {row["prompt"] for row in trained}

    tasks = [Task(row["prompt"], answer=row["answer"], id=row["id"]) for row in rows]
    found = await run_episodes(module("agent").build, tasks, PromptEngine(solver), reward=module("rewards").reward)
    assert [episode.reward for episode in found] == [1.0] * 16
    found = await run_episodes(
        module("agent").build, tasks, PromptEngine(lambda *_: "1"), reward=module("rewards").reward
    )
    assert {episode.reward for episode in found} == {0.0}


def test_slime_is_given_the_function(folder: Path) -> None:
    found = module("slime_agent").generate
    assert list(inspect.signature(found).parameters)[:4] == ["args", "sample", "sampling_params", "evaluation"]
    assert "--custom-generate-function-path slime_agent.generate" in SCRIPT


def test_the_script_is_well_formed() -> None:
    check_script(SCRIPT)
    assert len(flags(SCRIPT)) > 40


@pytest.mark.slime
def test_every_flag_is_one_of_slimes() -> None:
    assert unknown_flags(flags(SCRIPT)) == set()
