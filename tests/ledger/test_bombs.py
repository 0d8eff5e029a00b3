"""Files and bytes that are not what a ledger has, made to take memory or time, are refused in words."""

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

from ledger.episodes import RUN, Recorder
from strands_sglang.errors import LedgerError
from strands_sglang.ledger import layout
from strands_sglang.ledger.carried import carried, carry
from strands_sglang.ledger.event import decoded
from strands_sglang.ledger.layout import MAGIC, MARK, BlockKind
from strands_sglang.ledger.ledger import Ledger
from strands_sglang.ledger.run_file import read_json
from strands_sglang.ledger.seal import seal, write_run
from strands_sglang.ledger.shard import ShardReader, ShardVerdict
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.proof import verify
from strands_sglang.proof.finding import FindingKind, Verdict


def packed(path: Path, blocks: Iterable[Iterable[bytes]]) -> Path:
    """Write a shard of blocks, each of pieces that are compressed one behind the other."""
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    with path.open("wb") as file:
        file.write(MAGIC + layout._block(BlockKind.HEADER, orjson.dumps({"format": 1})) + MARK)
        for pieces in blocks:
            content = b"".join(stream.compress(piece) for piece in pieces) + stream.flush(zlib.Z_SYNC_FLUSH)
            file.write(layout._block(BlockKind.EVENTS, content))
    return path


def one_event(size: int, number: int = 0) -> Iterable[bytes]:
    """Return an event of so many bytes, in pieces."""
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
    write_run(tmp_path, {"run": RUN, "samples_per_task": 1})
    writer = LedgerWriter(tmp_path)
    recorder = Recorder(writer.write)
    recorder.call(None, context=[1], sampled=[2, 3])
    recorder.end()
    writer.close()
    seal(tmp_path)
    return tmp_path


def test_a_block_of_many_events_is_small(tmp_path: Path) -> None:
    reader = ShardReader(packed(tmp_path / "a.ledger", [[bytes(2**20)] * 64]))
    assert list(reader) == []
    assert reader.state.verdict is ShardVerdict.DAMAGED


def test_a_large_block_is_one_event(tmp_path: Path) -> None:
    whole = ShardReader(packed(tmp_path / "a.ledger", [one_event(40 * 2**20)]))
    (block,) = whole
    assert len(block.events[0]) == 40 * 2**20
    twice = ShardReader(packed(tmp_path / "b.ledger", [[*one_event(20 * 2**20), *one_event(20 * 2**20)]]))
    assert list(twice) == [] and twice.state.verdict is ShardVerdict.DAMAGED


def test_an_event_above_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.ledger.shard.LARGEST_BLOCK", 2**25)
    reader = ShardReader(packed(tmp_path / "a.ledger", [one_event(40 * 2**20)]))
    assert list(reader) == [] and reader.state.verdict is ShardVerdict.DAMAGED


def test_events_for_which_there_is_no_room_are_read_once_more(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes that run at once, more than fit: the same certificate."""
    several = tmp_path / "several"
    write_run(several, {"run": RUN, "samples_per_task": 7})
    writer = LedgerWriter(several)
    recorders = [Recorder(writer.write, sample=sample) for sample in range(7)]
    for recorder in recorders:
        recorder.call(None, context=list(range(200)), sampled=[2, 3])
    for recorder in recorders:
        recorder.end()
    writer.close()
    seal(several)
    before = verify(several)
    monkeypatch.setattr("strands_sglang.proof.proofs.HELD_BYTES", 4000)
    assert before.verdict is Verdict.PROVED
    assert verify(several).to_dict() == before.to_dict()


def test_an_episode_larger_than_all_room(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.proof.proofs.HELD_BYTES", 300)
    certificate = verify(run)
    assert certificate.verdict is Verdict.BROKEN
    assert certificate.found[FindingKind.FORM] == 1 and "300 bytes" in str(certificate.findings[0])


def test_a_bomb_is_looked_at_in_bounded_memory(run: Path) -> None:
    """Events of one episode, a gigabyte in all, from one megabyte."""
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
def test_what_is_no_file_is_not_waited_for(run: Path, kind: str) -> None:
    path = run / "ledger" / "z.ledger"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    certificate = verify(run)
    assert certificate.verdict is Verdict.BROKEN
    assert any("not a plain file" in str(finding) for finding in certificate.findings)
    assert Ledger(run).ids() == ["add/0"]
    with pytest.raises(LedgerError, match="not a plain file"):
        seal(run)


@pytest.mark.parametrize("name", ["run.json", "seal.json"])
def test_what_a_run_says_of_itself_is_a_file(run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    assert verify(run).verdict is Verdict.BROKEN
    (run / name).unlink()
    (run / name).symlink_to("/dev/zero")
    with pytest.raises(LedgerError, match="not a plain file"):
        read_json(run / name)


def test_json_that_nobody_can_have_written(run: Path) -> None:
    deep = b"[" * 900 + b"]" * 900
    (run / "run.json").write_bytes(b'{"format":1,"run":' + deep + b"}")
    assert verify(run).verdict is Verdict.BROKEN
    for place in (b'["t/0",0,0,"begin",%s,[]]', b'["t/0",%s,0,"begin",{},[]]', b'["t/0",0,0,%s,{},[]]'):
        head = place % deep
        with pytest.raises(LedgerError, match="deeper"):
            decoded(struct.pack("<II", len(head), 0) + head + bytes(16))
    shallow = b'["t/0",0,0,"begin",{"x":[%s],"y":"%s\\\\\\"[[["},[]]' % (b",".join([b"[]"] * 999), b"[" * 999)
    assert decoded(struct.pack("<II", len(shallow), 0) + shallow + bytes(16))[0].data["y"].startswith("[[[")


def test_a_carried_record_that_unpacks_to_too_much(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = carry(Ledger(run).episode("add/0"))
    assert len(carried(data).events) == 3
    monkeypatch.setattr("strands_sglang.ledger.carried.LARGEST_BLOCK", 2**20)
    assert len(carried(data).events) == 3
    with pytest.raises(LedgerError, match="more than 1048576 bytes"):
        carried(b"sgep1" + zlib.compress(bytes(2**24)))
