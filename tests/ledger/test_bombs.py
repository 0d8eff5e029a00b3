"""Malformed files that are made to use much memory or time are refused with an error."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Iterable
from pathlib import Path

import orjson
import pytest

from strands_sglang.errors import LedgerError
from strands_sglang.ledger import shard as shard_module
from strands_sglang.ledger.encoding import decoded
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.record import PortableRecord
from strands_sglang.ledger.run_dir import MAGIC, read_json
from strands_sglang.ledger.seal import seal
from strands_sglang.ledger.shard import MARK, BlockKind, ShardReader, ShardVerdict
from strands_sglang.proof import verify
from strands_sglang.proof.finding import FindingKind, Verdict
from support.ledger.episodes import Recorder, written_run


def packed(path: Path, blocks: Iterable[Iterable[bytes]]) -> Path:
    """Write a shard of blocks, each given as pieces that are compressed in order."""
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    with path.open("wb") as file:
        file.write(MAGIC + shard_module._block(BlockKind.HEADER, orjson.dumps({"format": 1})) + MARK)
        for pieces in blocks:
            content = b"".join(stream.compress(piece) for piece in pieces) + stream.flush(zlib.Z_SYNC_FLUSH)
            file.write(shard_module._block(BlockKind.EVENTS, content))
    return path


def one_event(size: int, number: int = 0) -> Iterable[bytes]:
    """Return an event of `size` bytes, in pieces."""
    start, end = b'["t/0",0,%d,"begin",{"x":"' % number, b'"},[]]'
    head = size - 24
    yield struct.pack("<II", head, 0) + start
    left = head - len(start) - len(end)
    while left > 0:
        yield b"a" * min(left, 2**20)
        left -= 2**20
    yield end + bytes(16)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with written_run(tmp_path, samples_per_task=1) as writer:
        recorder = Recorder(writer.write)
        recorder.call(None, context=[1], sampled=[2, 3])
        recorder.end()
    return tmp_path


def test_large_block_of_many_events_is_refused(tmp_path: Path) -> None:
    reader = ShardReader(packed(tmp_path / "a.ledger", [[bytes(2**20)] * 64]))
    assert list(reader) == []
    assert reader.state.verdict is ShardVerdict.DAMAGED


def test_large_block_must_be_one_event(tmp_path: Path) -> None:
    whole = ShardReader(packed(tmp_path / "a.ledger", [one_event(40 * 2**20)]))
    (block,) = whole
    assert len(block.events[0]) == 40 * 2**20
    twice = ShardReader(packed(tmp_path / "b.ledger", [[*one_event(20 * 2**20), *one_event(20 * 2**20)]]))
    assert list(twice) == [] and twice.state.verdict is ShardVerdict.DAMAGED


def test_event_above_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.ledger.shard.LARGEST_BLOCK", 2**25)
    reader = ShardReader(packed(tmp_path / "a.ledger", [one_event(40 * 2**20)]))
    assert list(reader) == [] and reader.state.verdict is ShardVerdict.DAMAGED


def test_events_beyond_the_buffer_are_read_again(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More concurrent episodes than fit in the buffer give the same certificate."""
    several = tmp_path / "several"
    with written_run(several, samples_per_task=7) as writer:
        recorders = [Recorder(writer.write, sample=sample) for sample in range(7)]
        for recorder in recorders:
            recorder.call(None, context=list(range(200)), sampled=[2, 3])
        for recorder in recorders:
            recorder.end()
    before = verify(several)
    monkeypatch.setattr(sys.modules["strands_sglang.proof.verify"], "MAX_BUFFERED_BYTES", 4000)
    assert before.verdict is Verdict.PROVED
    assert verify(several).to_dict() == before.to_dict()


def test_episode_larger_than_the_buffer_is_reported(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["strands_sglang.proof.verify"], "MAX_BUFFERED_BYTES", 300)
    certificate = verify(run)
    assert certificate.verdict is Verdict.BROKEN
    assert certificate.found[FindingKind.FORM] == 1 and "300 bytes" in str(certificate.findings[0])


def test_verify_of_a_bomb_uses_bounded_memory(run: Path) -> None:
    """One megabyte decompresses to a gigabyte of events of one episode."""
    packed(run / "ledger" / "9-bomb.ledger", [one_event(250 * 2**20, number) for number in range(4)])
    program = f"""
        from pathlib import Path
        from strands_sglang.proof import verify
        verdict = verify({str(run)!r}).verdict.value
        lines = Path("/proc/self/status").read_text().splitlines()
        print(verdict, int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) >> 10)"""
    seen = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120, check=True
    )
    verdict, megabytes = seen.stdout.split()
    assert verdict == "broken" and int(megabytes) < 1900


@pytest.mark.parametrize("kind", ["pipe", "directory", "device"])
def test_special_file_as_shard_is_refused(run: Path, kind: str) -> None:
    path = run / "ledger" / "z.ledger"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    certificate = verify(run)
    assert certificate.verdict is Verdict.BROKEN
    assert any("not a regular file" in str(finding) for finding in certificate.findings)
    assert Ledger(run).ids() == ["add/0"]
    with pytest.raises(LedgerError, match="not a regular file"):
        seal(run)


@pytest.mark.parametrize("name", ["run.json", "seal.json"])
def test_special_file_as_json_is_refused(run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    assert verify(run).verdict is Verdict.BROKEN
    (run / name).unlink()
    (run / name).symlink_to("/dev/zero")
    with pytest.raises(LedgerError, match="not a regular file"):
        read_json(run / name)


def test_deeply_nested_json_is_refused(run: Path) -> None:
    deep = b"[" * 900 + b"]" * 900
    (run / "run.json").write_bytes(b'{"format":1,"run":' + deep + b"}")
    assert verify(run).verdict is Verdict.BROKEN
    for place in (b'["t/0",0,0,"begin",%s,[]]', b'["t/0",%s,0,"begin",{},[]]', b'["t/0",0,0,%s,{},[]]'):
        head = place % deep
        with pytest.raises(LedgerError, match="deeper"):
            decoded(struct.pack("<II", len(head), 0) + head + bytes(16))
    shallow = b'["t/0",0,0,"begin",{"x":[%s],"y":"%s\\\\\\"[[["},[]]' % (b",".join([b"[]"] * 999), b"[" * 999)
    assert decoded(struct.pack("<II", len(shallow), 0) + shallow + bytes(16))[0].data["y"].startswith("[[[")


def test_portable_record_above_the_limit_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = PortableRecord(Ledger(run).episode("add/0")).to_bytes()
    assert len(PortableRecord.from_bytes(data).record.events) == 3
    monkeypatch.setattr("strands_sglang.ledger.record.LARGEST_BLOCK", 2**20)
    assert len(PortableRecord.from_bytes(data).record.events) == 3
    with pytest.raises(LedgerError, match="more than 1048576 bytes"):
        PortableRecord.from_bytes(b"sgep2" + zlib.compress(bytes(2**24)))
