"""Two runs on the same tasks: pairs, intervals, and what cannot be compared."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.summary import run_rows
from strands_sglang.runs.offline.comparison import compare, compare_figures, difference_interval, recorded_figures
from strands_sglang.runs.offline.evaluation import mean_interval
from support.ledger.episodes import Recorder, written_run
from support.viewer.generated_training import write_step


def test_only_tasks_of_both_are_compared() -> None:
    first = {"add-1": [0.0, 1.0], "add-2": [0.0, 0.0], "add-10": [1.0, 1.0], "gone": [1.0], "empty": []}
    second = {"add-1": [1.0, 1.0], "add-2": [0.0, 0.0], "add-10": [0.0, 1.0], "new": [0.0], "empty": [1.0]}
    found = compare(first, second)
    assert [task.id for task in found.tasks] == ["add-1", "add-2", "add-10"]
    assert found.only == (1, 2) and found.means == (0.5, 0.5)
    assert found.reward.value == 0 and found.reward.interval == mean_interval([0.5, 0.0, -0.5])
    assert [task.change for task in found.tasks] == ["higher", "equal", "lower"]
    assert found.counts() == {"better": 0, "higher": 1, "equal": 1, "lower": 1, "worse": 0}


def test_the_interval_of_a_task_is_welchs() -> None:
    a, b = [1.0, 2.0, 3.0, 4.0], [4.0, 4.5, 4.0, 4.5]
    low, high = difference_interval(a, b) or (0, 0)
    assert (low + high) / 2 == pytest.approx(1.75)
    # standard error sqrt(5/12 + 1/48) = 0.66144; 3.3 degrees of freedom, rounded down to 3: t = 3.18245
    assert high - low == pytest.approx(2 * 3.18245 * 0.661438, abs=1e-4)
    assert difference_interval([1.0, 1.0], [0.0, 0.0]) is None, "no spread"
    assert difference_interval([1.0], [0.0, 1.0]) is None, "one value"
    assert difference_interval([1.0, 1.0], [0.0, 1.0]) is not None


def test_differences_that_are_tiny_have_an_interval() -> None:
    low, high = difference_interval([0.0, 1e-120], [0.0, 0.0]) or (1, 0)
    assert low < 0 < high


def test_intervals_cover_the_true_difference() -> None:
    rng = random.Random(5)
    covered, tried = 0, 400
    for _ in range(tried):
        a, b = ([rng.gauss(mean, spread) for _ in range(8)] for mean, spread in ((0.0, 1.0), (0.5, 2.0)))
        low, high = difference_interval(a, b) or (0, 0)
        covered += low <= 0.5 <= high
    assert 0.93 <= covered / tried <= 0.99


def test_a_clear_difference_is_named() -> None:
    found = compare({"a": [0.0, 0.1, 0.0, 0.1], "b": [0.9, 1.0]}, {"a": [0.9, 1.0, 0.9, 1.0], "b": [0.0, 0.1]})
    assert [task.change for task in found.tasks] == ["better", "worse"]
    lines = found.text(("runs/a", "runs/\x1b[2J"), 1).splitlines()
    assert lines[:3] == ["A: runs/a", "B: runs/\\x1b[2J", "2 tasks in both"]
    assert "1 better, 1 worse" in "\n".join(lines) and lines[-1] == "and 1 more task"


def test_nothing_in_common() -> None:
    found = compare({"a": [1.0]}, {"b": [1.0]})
    assert found.tasks == [] and found.reward.value is None and found.means == (None, None)
    assert found.text(("a", "b")).startswith("A: a\nB: b\n0 tasks in both; 1 task only in a; 1 task only in b")


def asked(path: Path, prompts: dict[str, Any]) -> Path:
    with written_run(path) as writer:
        for task, prompt in prompts.items():
            recorder = Recorder(writer.write, task=task, sample=0, prompt=prompt)
            recorder.call(None, context=[1], sampled=[2])
            recorder.reward(1.0)
            recorder.end()
    return path


def test_tasks_with_one_id_and_other_prompts_are_no_pair(tmp_path: Path) -> None:
    """Ids such as `g3` number the groups of one run: in another order, they are other questions."""
    long = "Answer step by step. " * 20
    first = asked(tmp_path / "a", {"g0": "2 + 2?", "g1": f"{long}3 + 3?", "g2": [{"text": "Look."}, {"image": {}}]})
    second = asked(tmp_path / "b", {"g0": "2 + 2?", "g1": f"{long}4 + 4?", "g2": [{"text": "Look."}], "g3": "5?"})
    found = compare_figures(recorded_figures(first), recorded_figures(second))
    assert [task.id for task in found.tasks] == ["g0"] and found.to_dict()["other"] == 2 and found.only == (0, 1)
    assert found.text(("a", "b")).splitlines()[2] == (
        "1 task in both; 2 tasks with the same id and another prompt, left out; 1 task only in b"
    )


def test_evaluations_within_a_training_are_not_compared_with_it(tmp_path: Path) -> None:
    trained = asked(tmp_path / "a", {"g0": "2 + 2?", "eval.77": "7?"})
    assert list(recorded_figures(trained).tasks) == ["g0"]
    assert list(recorded_figures(asked(tmp_path / "b", {"eval.77": "7?"})).tasks) == ["eval.77"], "nothing else"


def test_rewards_of_a_run_and_of_a_training(tmp_path: Path) -> None:
    for step in range(3):
        write_step(tmp_path / "grpo", step, tasks=2, samples=2)
    write_step(tmp_path / "again", 1, seed=7, tasks=2, samples=2).rename(tmp_path / "grpo" / "step-000001.1")
    write_step(tmp_path / "eval", 1, seed=8, tasks=2, samples=2).rename(tmp_path / "grpo" / "step-000001-eval")
    steps = {name: run_rows(tmp_path / "grpo" / name) for name in ("step-000000", "step-000001.1", "step-000002")}
    wanted: dict[str, list[float]] = {}
    for rows in steps.values():
        for row in rows:
            wanted.setdefault(row["task_id"], []).append(row["reward"] or 0.0)
    found = recorded_figures(tmp_path / "grpo")
    assert {id: sorted(task.rewards) for id, task in found.tasks.items()} == {
        task: sorted(rewards) for task, rewards in wanted.items()
    }
    last = recorded_figures(tmp_path / "grpo", 1).to_dict()
    assert last["scored"] == 4 and last == recorded_figures(tmp_path / "grpo" / "step-000002").to_dict()
    for wrong in (tmp_path, tmp_path / "none"):
        with pytest.raises(LedgerError, match="must be the directory of a run or of a training"):
            recorded_figures(wrong)
