"""Exports are compared with the ledger token by token, in every file format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.seal import seal
from strands_sglang.proof.certificate import Certificate
from strands_sglang.proof.export import read_row
from strands_sglang.proof.finding import FindingKind, Verdict
from strands_sglang.proof.verify import verify
from strands_sglang.tokens import Trajectory
from support.ledger.episodes import plain_episode, rich_episode, written_run

COLUMNS = ("token_ids", "loss_mask", "logprobs", "versions", "turns", "origins")


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, list[Trajectory]]:
    with written_run(tmp_path / "run", sealed=False, samples_per_task=1) as writer:
        recorders = [rich_episode(writer.write), plain_episode(writer.write), plain_episode(writer.write, task="more")]
        plain_episode(writer.write, task="open", end=False)
    return tmp_path / "run", [trajectory for one in recorders for trajectory in one.tree.trajectories()]


def json_lines(path: Path, trajectories: list[Trajectory]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(one.to_dict()) + b"\n" for one in trajectories))
    return path


def parquet(path: Path, trajectories: list[Trajectory]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    types = {"token_ids": "int32", "versions": "int32", "turns": "int32", "logprobs": "float64"}
    rows = [one.to_dict() for one in trajectories]
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    for name in COLUMNS:
        columns[name] = pyarrow.array(columns[name], pyarrow.list_(getattr(pyarrow, types.get(name, "int8"))()))
    parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
    return path


Writer = Callable[[Path, list[Trajectory]], Any]
WRITERS: list[Writer] = [json_lines, parquet, lambda _, rows: rows, lambda _, rows: (row.to_dict() for row in rows)]


def held(folder: Path, exported: Any, **options: Any) -> tuple[Certificate, list[Any]]:
    certificate = verify(folder, exported=exported, **options)
    return certificate, [one for one in certificate.findings if one.kind is FindingKind.EXPORTED]


@pytest.mark.parametrize("write", WRITERS)
def test_matching_export_agrees(run: tuple[Path, list[Trajectory]], tmp_path: Path, write: Writer) -> None:
    folder, trajectories = run
    assert len(trajectories) == 6
    certificate, findings = held(folder, write(tmp_path / "out", trajectories[::-1]))
    assert not findings and certificate.exported is not None
    assert (certificate.exported.rows, certificate.exported.agreed) == (6, 6)
    assert "6 of 6 trajectories agree" in certificate.text()


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("column", COLUMNS)
def test_first_difference_is_reported(
    run: tuple[Path, list[Trajectory]], tmp_path: Path, write: Writer, column: str
) -> None:
    folder, trajectories = run
    changed = trajectories[4]
    values = getattr(changed, column).copy()
    values[[7, 9]] += 1
    setattr(changed, column, values)
    certificate, (finding,) = held(folder, write(tmp_path / "out", trajectories))
    assert certificate.verdict is Verdict.BROKEN
    assert (finding.episode, finding.turn, finding.token) == (changed.tree, changed.branch, 7)
    assert finding.message.startswith(f"row 4 of the export: {column} of token 7 is ")
    if write is json_lines:
        line = (tmp_path / "out").read_bytes()[finding.byte :].splitlines()[0]
        assert (finding.file, json.loads(line)["branch"]) == ("out", changed.branch)


def test_missing_duplicate_and_unknown_rows(run: tuple[Path, list[Trajectory]]) -> None:
    folder, trajectories = run
    certificate, findings = held(folder, trajectories[:-1])
    assert [finding.message for finding in findings] == ["the trajectory is not in the export"]
    certificate, findings = held(folder, [*trajectories, trajectories[0]])
    assert "twice" in findings[0].message and findings[0].turn == trajectories[0].branch
    stranger = Trajectory.from_dict({**trajectories[0].to_dict(), "tree": "open/0"})
    certificate, findings = held(folder, [*trajectories, stranger])
    assert findings[0].episode == "open/0" and "no such trajectory of a finished episode" in findings[0].message
    assert certificate.exported is not None and certificate.exported.agreed == 6


def test_whole_episodes_may_be_left_out_if_allowed(run: tuple[Path, list[Trajectory]]) -> None:
    folder, trajectories = run
    certificate, findings = held(folder, trajectories[:-2], exported_part=True)
    assert not findings and certificate.exported is not None and certificate.exported.left_out == 2
    _, findings = held(folder, trajectories[1:-2], exported_part=True)  # one trajectory of the first episode is missing
    assert len(findings) == 1 and findings[0].turn == trajectories[0].branch


def test_table_of_the_ledger_agrees_including_rewards(run: tuple[Path, list[Trajectory]], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from strands_sglang.ledger.table import write_parquet

    folder, _ = run
    assert write_parquet(folder, tmp_path / "out") == 6
    certificate, findings = held(folder, tmp_path / "out")
    assert not findings and certificate.exported is not None and certificate.exported.agreed == 6
    rows = parquet.read_table(tmp_path / "out").to_pylist()
    assert not held(folder, rows)[1]
    rows[0]["reward"] += 1e-9
    rows[1]["reward"] = None
    messages = [finding.message for finding in held(folder, rows)[1]]
    assert [message.partition(": ")[2][:10] for message in messages] == ["reward is ", "reward is "]
    (tmp_path / "out").write_bytes((tmp_path / "out").read_bytes()[:-9])
    with pytest.raises(LedgerError, match="cannot be read"):
        verify(folder, exported=tmp_path / "out")


def test_comparison_is_bitwise(run: tuple[Path, list[Trajectory]], tmp_path: Path) -> None:
    folder, trajectories = run
    logprobs = trajectories[0].logprobs.copy()
    at = int(np.flatnonzero(trajectories[0].loss_mask)[0])
    logprobs[at] = np.nextafter(logprobs[at], 0)
    trajectories[0].logprobs = logprobs
    _, (finding,) = held(folder, json_lines(tmp_path / "out", trajectories))
    assert finding.token == at
    logprobs[at] = np.nextafter(logprobs[at], -1)
    logprobs[0] = -0.0
    _, (finding,) = held(folder, json_lines(tmp_path / "out", trajectories))
    assert finding.token == 0 and "is -0.0, recorded 0.0" in finding.message


@pytest.mark.parametrize(
    "change",
    [
        *({"format": 2}, {"token_ids": None}, {"token_ids": [[1]]}, {"token_ids": "no"}, {"token_ids": [2**40]}),
        *({"loss_mask": [300]}, {"loss_mask": [True, False]}, {"logprobs": ["a"]}, {"turn_ids": []}),
        *({"turn_ids": [0, True]}, {"branch": 77}, {"tree": 3}, {"version_names": [1]}, {"origins": [1, 2]}),
    ],
)
def test_row_that_is_not_a_trajectory(
    run: tuple[Path, list[Trajectory]], tmp_path: Path, change: dict[str, Any]
) -> None:
    folder, trajectories = run
    bad = {**trajectories[0].to_dict(), **change}
    with pytest.raises(LedgerError):
        read_row(bad)
    rows = [bad, *(one.to_dict() for one in trajectories)]
    certificate, (finding,) = held(folder, rows)
    assert "row 0 of the export: not a trajectory" in finding.message and certificate.verdict is Verdict.BROKEN


def test_invalid_json_and_missing_file(run: tuple[Path, list[Trajectory]], tmp_path: Path) -> None:
    folder, trajectories = run
    path = json_lines(tmp_path / "out", trajectories)
    path.write_bytes(b"\n" + path.read_bytes() + b'{"format": 1, ')
    _, (finding,) = held(folder, str(path))
    assert "row 6 of the export: not a trajectory: not JSON" in finding.message
    with pytest.raises(LedgerError, match="is not a file"):
        verify(folder, exported=tmp_path / "nothing")
    seal(folder)
    assert held(folder, json_lines(path, trajectories))[0].verdict is Verdict.UNFINISHED  # one episode has no end
