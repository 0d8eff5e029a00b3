"""`strands-sglang show` of a folder of runs, and `eval` of two: text, JSON, exit codes, what cannot be asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from strands_sglang.cli.main import main
from strands_sglang.ledger.figures import Figures
from strands_sglang.ledger.summary import SummaryRow, run_rows
from strands_sglang.runs.offline.comparison import compare_figures, recorded_figures
from support.viewer.generated_training import write_training


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("folder") / "runs"
    for seed in (1, 2):
        write_training(path / f"seed-{seed}", 2, seed=seed, tasks=2, samples=2)
    return path


def test_runs_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(folder)]) == 0
    first, _, head, *lines = capsys.readouterr().out.splitlines()
    assert first == f"{folder}  4 runs, 2 trainings, 16 episodes"
    assert head.split()[:3] == ["run", "episodes", "reward"]
    assert [line.split()[:2] for line in lines] == [
        [f"seed-{seed}/step-00000{step}", "4"] for seed in (1, 2) for step in (0, 1)
    ]


def test_runs_that_are_not_listed_are_not_read(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def reading(path: Path) -> list[SummaryRow]:
        read.append(path)
        return run_rows(path)

    monkeypatch.setattr("strands_sglang.cli._folder_text.run_rows", reading)
    assert main(["show", str(folder), "--limit", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{folder}  4 runs, 2 trainings" and lines[-1] == "and 3 before them: --limit 0 shows all"
    assert read == [folder / "seed-2" / "step-000001"]


def test_runs_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(folder / "seed-1"), "--json"]) == 0
    runs = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(run["run"], run["training"], run["step"]) for run in runs] == [
        ("step-000000", "seed-1", 0), ("step-000001", "seed-1", 1),
    ]  # fmt: skip
    wanted = Figures.of("", run_rows(folder / "seed-1" / "step-000001")).to_dict()
    assert {name: runs[1][name] for name in wanted} == wanted
    assert "verdict" not in runs[0], "it would take a pass over every token"


def test_runs_are_proved_if_it_is_asked_for(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    runs = Path(shutil.copytree(folder / "seed-1", tmp_path / "seed-1"))
    (runs / "step-000001" / "seal.json").unlink()
    assert main(["show", str(runs), "--verdict", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [run["verdict"] for run in found] == ["proved", "unfinished"]
    assert main(["show", str(runs), "--verdict"]) == 0
    _, _, head, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in (head, *lines)] == ["verdict", "proved", "unfinished"]


def test_two_trainings_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = str(folder / "seed-1"), str(folder / "seed-2")
    assert main(["eval", first, second, "--last-steps", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    wanted = compare_figures(recorded_figures(first, 1), recorded_figures(second, 1)).to_dict()
    assert found == {"a": first, "b": second, **json.loads(json.dumps(wanted))}
    assert main(["eval", first, second]) == 0
    assert capsys.readouterr().out.startswith(f"A: {first}\nB: {second}\n2 tasks in both\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "{runs}", "--task", "add-0"], "--task needs the directory of one run"),
        (["show", "{runs}", "add-0/0"], "EPISODE needs the directory of one run"),
        (["show", "{runs}/seed-1/step-000000", "--verdict"], "--verdict is for a folder of runs"),
        (["eval", "{runs}", "{runs}/seed-1"], "must be the directory of a run or of a training"),
        (["eval", "{runs}/seed-1", "{runs}/seed-2", "--markdown"], "--markdown must not be given with two runs"),
        (["eval", "--recorded", "{runs}/seed-1", "--last-steps", "2"], "--last-steps needs two trainings"),
        (["view", "{runs}/none", "--no-browser"], "does not exist"),
    ],
)
def test_what_cannot_be_asked(words: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word.replace("{runs}", str(folder)) for word in words]) == 2
    assert message in capsys.readouterr().err
