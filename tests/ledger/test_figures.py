"""Figures of runs, and runs in a folder: sums and spreads of summary rows, groups without difference, steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.ledger import folder
from strands_sglang.ledger.figures import Figures, by_version, version_number
from strands_sglang.ledger.folder import find_runs, is_run, last_steps, newest_attempts
from strands_sglang.ledger.summary import SummaryRow, checked_row


def row(task: str, sample: int, reward: float | None = 1.0, **values: Any) -> SummaryRow:
    columns = {
        "task_id": task,
        "sample": sample,
        "reward": reward,
        "end_reason": "answered",
        "versions": ["7"],
        **values,
    }
    return checked_row(f"{task}/{sample}", columns)


def test_figures_of_a_run() -> None:
    rows = [
        row("add-1", 0, 1.0, turns=2, tokens=30, sampled_tokens=10, tool_calls=3, tool_errors=1, prompt_tokens=40,
            cached_tokens=10, seconds=2.0, end_time=100.0),
        row("add-1", 1, 0.0, turns=4, tokens=50, sampled_tokens=30, end_reason="turn_truncated", end_time=110.0),
        row("mul-1", 0, 0.5, turns=1), row("mul-1", 1, 0.5, turns=1), row("mul-2", 0, None, end_reason="engine_error"),
        row("mul-2", 1, None, end_reason=None, turns=99),
    ]  # fmt: skip
    found = Figures.of("run", rows).to_dict()
    assert (found["episodes"], found["running"], found["scored"], found["tasks"]) == (6, 1, 4, 3)
    assert found["reward"] == 0.5 and found["std"] == pytest.approx(math.sqrt(0.5 / 4))
    assert (found["low"], found["high"], found["passed"]) == (0.0, 1.0, 0.25)
    assert (found["groups"], found["equal"]) == (2, 0.5), "mul-1 trains nothing; mul-2 has no two rewards"
    assert found["turns"] == 8 / 5, "an episode that has not ended is only counted"
    assert (found["tool_errors"], found["cached"], found["truncated"], found["failed"]) == (1 / 3, 1 / 4, 1 / 5, 1 / 5)
    assert found["kinds"] == {"add": 0.5, "mul": 0.5}
    assert (found["from"], found["to"]) == (100.0, 110.0)
    assert found["ends"] == {"answered": 3, "turn_truncated": 1, "engine_error": 1}


def test_best_and_worst_sample_are_named() -> None:
    task = Figures.of("run", [row("a", 0, 0.2), row("a", 1, 0.9), row("a", 2, None)]).tasks["a"].to_dict()
    assert task["best"] == ("run", "a/1") and task["worst"] == ("run", "a/0")
    assert (task["episodes"], task["scored"], task["groups"], task["equal"]) == (3, 2, 1, 0)
    assert Figures.of("run", [row("b", 0, None)]).tasks["b"].to_dict()["best"] is None


def test_age_is_that_of_the_oldest_token() -> None:
    rows = [
        row("a", 0, versions=["step-9", "step-10"]),
        row("a", 1, versions=["step-10"]),
        row("a", 2, versions=[None]),
    ]
    found = Figures.of("run", rows).to_dict()
    assert found["age"] == 0.5 and found["versions"] == ["step-9", "step-10"]
    assert Figures.of("run", [row("a", 0, versions=["base"])]).to_dict()["age"] is None
    assert [version_number(name) for name in ("step-12", "v3.final", "base", None)] == [12, 3, None, None]
    assert {name: one.episodes for name, one in by_version("run", rows).items()} == {"step-10": 3}


def test_a_group_counts_as_a_whole_for_its_newest_version() -> None:
    """It is trained as a whole: 7 of 8 samples with reward 0 are no group without difference."""
    rows = [row("a", n, 0.0, versions=["v-9"]) for n in range(7)]
    rows += [row("a", 7, 1.0, versions=["v-9", "v-10"]), row("b", 0, versions=[None]), row("b", 1, versions=[])]
    rows += [row("c", 0, 0.5, versions=["default"]), row("c", 1, 0.5, versions=["v-9"])]
    found = {name: one.to_dict() for name, one in by_version("run", rows).items()}
    assert {name: (one["episodes"], one["equal"]) for name, one in found.items()} == {"v-10": (8, 0.0), "v-9": (2, 1.0)}
    assert found["v-9"]["versions"] == ["default", "v-9"], "a name without a number is before those with one"


rewards = st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.floats(-5, 5)), max_size=30)


@given(st.lists(rewards, min_size=1, max_size=4))
def test_merged_figures_are_those_of_all_rows(runs: list[list[tuple[str, float | None]]]) -> None:
    rows = [[row(task, n, reward, turns=n) for n, (task, reward) in enumerate(run)] for run in runs]
    merged = Figures.merged(Figures.of(f"{n}", part) for n, part in enumerate(rows)).to_dict()
    whole = Figures.of("all", [one for part in rows for one in part]).to_dict()
    assert merged["groups"] == sum(Figures.of("", part).to_dict()["groups"] for part in rows)
    for name in set(whole) - {"groups", "equal"}:
        assert merged[name] == pytest.approx(whole[name], abs=1e-12), name


def test_parts_of_rewards_are_means_over_the_rewards_that_have_them() -> None:
    rows = [row("a", 0, parts={"format": 1.0, "length": 0.5}), row("a", 1, parts={"format": 0.0, "huge": 1e200})]
    rows.append(row("b", 0))
    assert Figures.of("run", rows).to_dict()["parts"] == {"format": 0.5, "length": 0.5}
    assert Figures.merged([Figures.of("1", rows[:1]), Figures.of("2", rows[1:])]).to_dict()["parts"]["format"] == 0.5


def test_figures_survive_odd_rewards() -> None:
    found = Figures.of("run", [row("a", 0, math.nan), row("a", 1, math.inf), row("a", 2, 1.0)]).to_dict()
    assert (found["scored"], found["reward"]) == (1, 1.0)
    huge = Figures.of("run", [row("a", number, (-1.0) ** number * 1e200) for number in range(4)])
    assert huge.to_dict()["scored"] == 0 and huge.tasks["a"].to_dict()["std"] is None


def test_runs_in_a_folder(tmp_path: Path) -> None:
    names = ["first", "grpo/step-000000", "grpo/step-000001", "grpo/step-000001.1", "grpo/step-000001-eval",
             "grpo/step-000001-rank1", "grpo/step-000010", "deep/er/rollout_3", "a/b/c/d/e/too-deep"]  # fmt: skip
    for name in names:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.json").write_text("{}")
    (tmp_path / "first" / "step-000000").mkdir()
    (tmp_path / "first" / "step-000000" / "run.json").write_text("{}")  # inside of a run: not looked at
    (tmp_path / "empty").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "run.json").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "grpo")
    found = {place.name: (place.training, place.step, place.attempt) for place in find_runs(tmp_path)}
    assert found == {
        "first": ("", None, 0),
        "grpo/step-000000": ("grpo", 0, 0), "grpo/step-000001": ("grpo", 1, 0), "grpo/step-000001.1": ("grpo", 1, 1),
        "grpo/step-000001-eval": ("grpo (eval)", 1, 0), "grpo/step-000001-rank1": ("grpo", 1, 0),
        "grpo/step-000010": ("grpo", 10, 0), "deep/er/rollout_3": ("deep/er", 3, 0),
    }  # fmt: skip
    training = [place for place in find_runs(tmp_path / "grpo") if place.training == "grpo"]
    kept = [place.name for place in newest_attempts(training)]
    assert sorted(kept) == ["step-000000", "step-000001-rank1", "step-000001.1", "step-000010"]
    assert [place.step for place in last_steps(newest_attempts(training), 1)] == [10]
    assert is_run(tmp_path / "first") and not is_run(tmp_path) and not is_run(tmp_path / "none")
    assert find_runs(tmp_path / "none") == []


def test_a_folder_that_must_not_be_read_hides_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "lost+found", "z"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")

    def asked(path: Path) -> bool:  # what a user who is not root gets
        if path.name == "lost+found":
            raise PermissionError(13, "Permission denied", str(path))
        return is_run(path)

    monkeypatch.setattr(folder, "is_run", asked)
    assert [place.name for place in find_runs(tmp_path)] == ["a", "z"]
