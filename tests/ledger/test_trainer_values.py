"""The values of a trainer: written, read while they grow, and held against the ledger."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

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
    ],
)
def test_what_does_not_fit_is_a_finding(run: Path, line: dict[str, object], words: str) -> None:
    (run / TRAINER_FILE).write_bytes(orjson.dumps({"episode": "add/0", "name": "entropy", **line}) + b"\n")
    certificate = verify(run)
    assert [str(finding.kind.value) for finding in certificate.findings] == ["trainer"]
    assert words in certificate.findings[0].message and not certificate.proved


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
