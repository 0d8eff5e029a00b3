"""The values of a trainer: written, read while they grow, and held against the ledger."""

from __future__ import annotations

import threading
from pathlib import Path

import orjson
import pytest

from strands_sglang.ledger import trainer_values
from strands_sglang.ledger.trainer_values import TRAINER_FILE, TrainerFile, write_trainer_values
from strands_sglang.proof.verify import verify
from support.ledger.episodes import Recorder, written_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A proved run of one episode with turns of three and two sampled tokens."""
    with written_run(tmp_path) as writer:
        recorder = Recorder(writer.write)
        first = recorder.call(None, context=[1, 2], sampled=[3, 4, 5])
        recorder.call(first, context=[6], sampled=[7, 8])
        recorder.end()
    assert verify(tmp_path).proved
    return tmp_path


def test_written_and_read(run: Path) -> None:
    write_trainer_values(run, "add/0", 0, advantage=0.5, entropy=[0.125, None, 1.0])
    file = TrainerFile(run)
    assert file.of("add/0") == {"advantage": {0: 0.5}, "entropy": {0: [0.125, None, 1.0]}}
    write_trainer_values(run, "add/0", 1, advantage=0.5)
    write_trainer_values(run, "add/0", 0, advantage=-1.5)  # replaces the earlier one
    assert file.of("add/0")["advantage"] == {0: -1.5, 1: 0.5} and file.of("add/1") == {}
    with (run / TRAINER_FILE).open("ab") as half:
        half.write(b'{"episode":"add/0","turn":1,"name":"cl')
    assert set(file.of("add/0")) == {"advantage", "entropy"}
    (run / TRAINER_FILE).write_bytes(b"")
    assert file.of("add/0") == {}


def test_what_is_not_finite_is_no_value(run: Path) -> None:
    write_trainer_values(run, "add/0", 0, ratio=float("nan"), entropy=[0.5, float("inf"), None])
    assert TrainerFile(run).of("add/0") == {"entropy": {0: [0.5, None, None]}}
    assert verify(run).proved


def test_a_file_that_was_edited_is_read_within_bounds(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_values, "LARGEST_LINE", 1 << 12)
    monkeypatch.setattr(trainer_values, "_MOST_BYTES", 1 << 14)
    with (run / TRAINER_FILE).open("wb") as file:
        file.write(b'{"episode":"add/0","turn":0,"name":"long","values":[' + b"0," * 9000 + b"0]}\n[]\n")
        for number in range(400):
            line = {"episode": "add/0", "turn": 0, "name": f"name {number}", "values": [number] * 3}
            file.write(orjson.dumps(line) + b"\n")
    found = TrainerFile(run).of("add/0")
    assert len(found) == 64 and set(found) <= {f"name {number}" for number in range(150, 400)}, "the newest"
    findings = verify(run).findings
    assert [(one.kind.value, one.byte) for one in findings[:2]] == [("trainer", 0), ("trainer", 18056)]
    assert verify(run).trainer_values == 1200, "what follows a line that is too long is held against the ledger"


def test_processes_write_one_after_the_other(run: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    with (run / TRAINER_FILE).open("ab") as other:  # a lock is that of an open file, also within one process
        fcntl.flock(other, fcntl.LOCK_EX)
        writing = threading.Thread(target=write_trainer_values, args=(run, "add/0", 0), kwargs={"ratio": 1.0})
        writing.start()
        writing.join(0.2)
        assert writing.is_alive() and not (run / TRAINER_FILE).stat().st_size
    writing.join()
    assert TrainerFile(run).of("add/0") == {"ratio": {0: 1.0}}


def test_only_the_places_of_lines_are_kept(run: Path) -> None:
    file = TrainerFile(run)
    for _ in range(3):
        for id in ("add/0", "add/1"):
            write_trainer_values(run, id, 0, **{f"name {number}": 1.0 for number in range(20)})
            assert len(file.of(id)) == 20
    assert {id: len(places) for id, places in file._places.items()} == {"add/0": 3, "add/1": 3}


def test_verify_holds_lengths_against_the_ledger(run: Path) -> None:
    write_trainer_values(run, "add/0", 0, advantage=0.5, entropy=[0.1, 0.2, 0.3], loss_mask=1)
    write_trainer_values(run, "add/0", 1, entropy=[0.1, None])
    certificate = verify(run)
    assert certificate.proved and certificate.trainer_values == 3 + 3 + 3 + 2
    assert "11 values for sampled tokens" in certificate.text()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"turn": 1, "values": [0.1]}, "1 values for 2 sampled tokens"),
        ({"turn": 2, "values": 0.1}, "values for turn 2, the ledger has 2 turns"),
        ({"turn": -1, "values": 0.1}, "values for turn -1"),
        ({"episode": "add/7", "turn": 0, "values": 0.1}, "no such episode"),
        ({"turn": "0", "values": 0.1}, "turn (number)"),
        ({"turn": 0, "values": "much"}, "values must be a number"),
        ({"turn": 9, "values": 0.1, "name": "n" * 1000}, f"{'n' * 80}: values for turn 9"),
    ],
)
def test_what_does_not_fit_is_a_finding(run: Path, line: dict[str, object], words: str) -> None:
    (run / TRAINER_FILE).write_bytes(orjson.dumps({"episode": "add/0", "name": "entropy", **line}) + b"\n")
    certificate = verify(run)
    assert [str(finding.kind.value) for finding in certificate.findings] == ["trainer"]
    assert words in certificate.findings[0].message and not certificate.proved


def test_verify_reads_the_last_line_of_a_turn_and_name(run: Path) -> None:
    name = "n" * 100  # as long names with one beginning
    write_trainer_values(run, "add/0", 1, entropy=[0.1], loss_mask=[1, 1, 1], **{f"{name}a": [0.1]})
    assert len(verify(run).findings) == 3
    for _ in range(5):
        write_trainer_values(run, "add/0", 1, entropy=[0.1, 0.2], loss_mask=1, **{f"{name}b": 0.1})
    (finding,) = verify(run).findings
    assert finding.message.startswith("nnn") and verify(run).trainer_values == 3 * 2
    write_trainer_values(run, "add/0", 1, **{f"{name}a": 0.1})
    assert verify(run).proved and verify(run).trainer_values == 4 * 2
    write_trainer_values(run, "add/0", 1, entropy=[0.1])
    assert "1 values for 2 sampled tokens" in verify(run).findings[0].message


def test_a_token_that_the_ledger_does_not_train(tmp_path: Path) -> None:
    from strands_sglang.tokens import TurnPurpose

    with written_run(tmp_path) as writer:
        recorder = Recorder(writer.write)
        first = recorder.call(None, context=[1], sampled=[2])
        recorder.call(first, context=[3], sampled=[4], purpose=TurnPurpose.SIDE)
        recorder.end()
    write_trainer_values(tmp_path, "add/0", 0, loss_mask=1)
    write_trainer_values(tmp_path, "add/0", 1, loss_mask=0)
    assert verify(tmp_path).proved
    write_trainer_values(tmp_path, "add/0", 1, loss_mask=[1])
    assert "does not train" in verify(tmp_path).findings[0].message
