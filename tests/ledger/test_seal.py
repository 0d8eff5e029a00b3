from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from strands_sglang.errors import LedgerError
from strands_sglang.ledger import seal as module
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.run_dir import read_run, write_run
from strands_sglang.ledger.seal import SealFault, check_seal, read_seal, root_digest, seal
from strands_sglang.ledger.writer import LedgerWriter
from support.ledger.episodes import plain_episode


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a sealed run of two shards of several pieces."""
    monkeypatch.setattr(module, "_PIECE", 512)
    write_run(tmp_path, {"samples_per_task": 8})
    for worker in ("0", "1"):
        with LedgerWriter(tmp_path, worker=worker) as writer:
            for sample in range(8):
                plain_episode(writer.write, task=f"t{worker}", sample=sample, end=sample < 7)
    seal(tmp_path)
    return tmp_path


def test_run_json_is_written_once(tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "first"
    assert read_run(directory) is None
    about = write_run(directory, {"samples_per_task": 8, "fingerprint": {"tokenizer": "ab"}})
    assert read_run(directory) == about
    assert about["format"] == 2 and len(about["run"]) == 32 and about["created"] > 1.7e9
    with pytest.raises(LedgerError, match="exists already"):
        write_run(directory, {})
    assert [path.name for path in directory.iterdir()] == ["run.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1}', b"\xff"])
def test_malformed_run_json(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(LedgerError, match=r"run\.json"):
        read_run(tmp_path)


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be written"):
        write_run(tmp_path, {"settings": object()})
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="cannot be written"):
        write_run(tmp_path / "file", {})


def test_content_of_a_seal(run: Path) -> None:
    sealed = read_seal(run)
    assert sealed is not None and sealed == {**sealed, "episodes": 16, "finished": 14, "run": Ledger(run).run["run"]}
    heads = {record.id: record.head for record in Ledger(run).episodes()}
    file = sealed["run_file"]
    assert sealed["root"] == root_digest(heads, file) == root_digest(dict(reversed(heads.items())), file)
    assert root_digest({**heads, "t0/0": bytes(16)}, file) != sealed["root"] != root_digest(heads, "00" * 16)
    for name, about in sealed["shards"].items():
        content = (run / "ledger" / name).read_bytes()
        assert about["bytes"] == len(content) and len(about["pieces"]) == -(-len(content) // 512) > 3
        assert about["digest"] == hashlib.blake2b(content, digest_size=16).hexdigest()
    assert check_seal(run) == []


def test_every_difference_of_a_shard_is_reported(run: Path) -> None:
    first, second = sorted((run / "ledger").iterdir())
    content = first.read_bytes()
    size = len(content)
    for changed, kind, byte in [
        (content[:700] + b"\0" + content[701:], SealFault.CHANGED, 512),
        (content[:-1] + b"\0", SealFault.CHANGED, (size - 1) // 512 * 512),
        (content[:700] + b"\0" + content[701:1500], SealFault.CHANGED, 512),
        (content[:1500], SealFault.SHORTER, 1500),
        (content[:1024], SealFault.SHORTER, 1024),
        (b"", SealFault.SHORTER, 0),
        (content + b"more", SealFault.LONGER, size),
    ]:
        first.write_bytes(changed)
        (finding,) = check_seal(run)
        assert (finding.kind, finding.shard, finding.byte) == (kind, first.name, byte)
    first.unlink()
    second.rename(run / "ledger" / "2.ledger")
    found = [(finding.kind, finding.shard) for finding in check_seal(run)]
    missing = [(SealFault.MISSING, path.name) for path in (first, second)]
    assert sorted(found) == sorted([*missing, (SealFault.NEW, "2.ledger")])


def test_continued_run_is_sealed_again(run: Path) -> None:
    with LedgerWriter(run, worker="0") as writer:
        plain_episode(writer.write, task="more")
    assert [finding.kind for finding in check_seal(run)] == [SealFault.NEW]
    seal(run)
    assert check_seal(run) == []


def test_unsealed_run(tmp_path: Path) -> None:
    assert read_seal(tmp_path) is None
    with pytest.raises(LedgerError, match="not sealed"):
        check_seal(tmp_path)
    with pytest.raises(LedgerError, match=r"no run\.json"):
        seal(tmp_path)
