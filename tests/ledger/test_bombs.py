"""Malformed files that are made to use much memory or time are refused with an error."""

from __future__ import annotations

import base64
import gc
import os
import random
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from strands_sglang import _json
from strands_sglang.errors import LedgerError, StrandsSGLangError
from strands_sglang.ledger import grouping
from strands_sglang.ledger import shard as shard_module
from strands_sglang.ledger.encoding import HashChain, decoded, first_link, link
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.messages import read_conversations
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.record import PortableRecord
from strands_sglang.ledger.run_dir import MAGIC, read_json
from strands_sglang.ledger.seal import seal
from strands_sglang.ledger.shard import MARK, BlockKind, OpenShard, ShardReader, ShardVerdict
from strands_sglang.ledger.summary import run_rows
from strands_sglang.proof import verify
from strands_sglang.proof.finding import FindingKind, Verdict
from support.examples import size
from support.ledger.episodes import Recorder, written_run


def packed(path: Path, blocks: Iterable[Iterable[bytes]], level: int = 1) -> Path:
    """Write a shard of blocks, each given as pieces that are compressed in order."""
    stream = zlib.compressobj(level, zlib.DEFLATED, -15)
    with path.open("wb") as file:
        file.write(MAGIC + shard_module._block(BlockKind.HEADER, orjson.dumps({"format": 1})) + MARK)
        for pieces in blocks:
            content = b"".join(stream.compress(piece) for piece in pieces) + stream.flush(zlib.Z_SYNC_FLUSH)
            file.write(shard_module._block(BlockKind.EVENTS, content))
    return path


NOISE = base64.b64encode(random.Random(0).randbytes(3 << 18))  # of a MiB; deflate takes a quarter off


def one_event(size: int, number: int = 0, filled: bytes = NOISE) -> Iterable[bytes]:
    """Return an event of `size` bytes, in pieces."""
    start, end = b'["t/0",0,%d,"begin",{"x":"' % number, b'"},[]]'
    head = size - 24
    yield struct.pack("<II", head, 0) + start
    left = head - len(start) - len(end)
    while left > 0:
        yield filled[:left]
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
    reader = ShardReader(packed(tmp_path / "a.ledger", [[NOISE] * 24]))
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


@pytest.mark.parametrize("buffer", [100, 5_000])
def test_events_beyond_the_buffer_are_read_again(tmp_path: Path, buffer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More concurrent episodes than fit in the buffer give the same certificate."""
    several = tmp_path / "several"
    with written_run(several, samples_per_task=7) as writer:
        recorders = [Recorder(writer.write, sample=sample) for sample in range(7)]
        for recorder in recorders:
            recorder.call(None, context=list(range(200)), sampled=[2, 3])
        for recorder in recorders:
            recorder.end()
    before = verify(several)
    monkeypatch.setattr("strands_sglang.ledger.grouping.LARGEST_BUFFER", buffer)
    assert before.verdict is Verdict.PROVED
    passes: list[int] = []

    class Counted(grouping._Buffer[grouping.EventT]):
        def __init__(self, counts: Mapping[str, int]) -> None:
            super().__init__(counts)
            passes.append(len(counts))

    monkeypatch.setattr(grouping, "_Buffer", Counted)
    assert verify(several).to_dict() == before.to_dict()
    assert passes == ([7, 6, 5, 4, 3, 2, 1] if buffer == 100 else [7, 4, 1])


def test_episode_larger_than_the_buffer_is_reported(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.ledger.grouping.LARGEST_EPISODE", 300)
    certificate = verify(run)
    assert certificate.verdict is Verdict.BROKEN
    assert certificate.found[FindingKind.FORM] == 1 and "the maximum for one episode" in str(certificate.findings[0])
    [record] = Ledger(run).episodes()
    assert not record.events and "the maximum for one episode" in str(record.problems[0])
    monkeypatch.setattr("strands_sglang.ledger.reader.LARGEST_EPISODE", 300)
    assert "the maximum for one episode" in str(Ledger(run).episode("add/0").problems[0])


def values(place: str, item: bytes, count: int) -> bytes:
    """Return an event with a list of values in its data, or in JSON text that its data has."""
    text = b'"conversations":"[%s]"' if place == "text" else b'"x":[%s0]'
    end = b'"end_reason":"answered","text":"","metrics":{},"trajectories":[],"rejected":[],"failure":null,"time":1,'
    listed = (item * count)[:-1] if place == "text" else item * count
    head = b'["t/0",0,0,"end",{%s%s},[]]' % (end, text % listed.replace(b'"', b'\\"'))
    body = struct.pack("<II", len(head), 0) + head
    return body + link(first_link("t/0"), body)


def begun(number: int) -> bytes:
    """Return the beginning of an episode, with a digest that compresses well."""
    head = b'["t/%d",0,0,"begin",{},[]]' % number
    return struct.pack("<II", len(head), 0) + head + bytes(16)


def named(number: int, count: int) -> bytes:
    """Return the beginning of an episode with an experiment of very many parts."""
    parts = b",".join(b'"%d":""' % part for part in range(count))
    head = b'["t/%d",0,0,"begin",{"fingerprint":{%s}},[]]' % (number, parts)
    body = struct.pack("<II", len(head), 0) + head
    return body + link(first_link(f"t/{number}"), body)


def broken_sections(path: Path) -> None:
    path.write_bytes(MAGIC + (MARK + b"x" * 13) * 10**5)


def sparse_block(path: Path) -> None:
    head = shard_module.BLOCK_HEAD.pack((4 << 30) - 16, 0, BlockKind.CLOSING.value, 0)[:-4]
    path.write_bytes(MAGIC + MARK + head + struct.pack("<I", zlib.crc32(head)))
    os.truncate(path, 4 << 30)


def sparse_tail(path: Path) -> None:
    path.write_bytes(MAGIC + MARK + b"x" * 100)
    os.truncate(path, shard_module.LARGEST_SHARD)


BOMBS: dict[str, Callable[[Path], object]] = {
    "a gigabyte of text": lambda path: packed(path, [one_event(250 * 2**20, n, b"a" * 2**20) for n in range(2)]),
    "many small blocks": lambda path: packed(path, [one_event(2**20, n, b"a" * 2**20) for n in range(300)]),
    "lists": lambda path: packed(path, [[values("data", b"[],", 3 * 10**6)]]),
    "stored lists": lambda path: packed(path, [[values("data", b"[],", 3 * 10**6)]], level=0),
    "stored lists in text": lambda path: packed(path, [[values("text", b'{"content":[],"a":{}},', 10**6)]], level=0),
    "lists of an episode": lambda path: packed(path, [[values("data", b"[],", 2 * 10**5)] for _ in range(50)], level=0),
    "blocks that compress to nothing": lambda path: packed(
        path, (one_event(1 << 16, n, b"a" * 2**16) for n in range(7000)), 9
    ),
    "episodes": lambda path: packed(path, ([begun(n * 10**4 + k) for k in range(10**4)] for n in range(30)), 9),
    "experiments": lambda path: packed(path, ([named(n, 10**5)] for n in range(20)), 0),
    "broken sections": broken_sections,
    "a sparse block": sparse_block,
    "a sparse end": sparse_tail,
    "a sparse run.json": lambda path: os.truncate(path.parent.parent / "run.json", 6 << 30),
    "a sparse seal.json": lambda path: os.truncate(path.parent.parent / "seal.json", 6 << 30),
    "a sparse index": lambda path: sparse_index(path.parent.parent / "index"),
}


def sparse_index(folder: Path) -> None:
    folder.mkdir()
    (folder / "0.jsonl").touch()
    os.truncate(folder / "0.jsonl", 6 << 30)


def megabytes(of: str) -> int:
    """Return the memory that this process has (VmRSS), or its peak since `clear_refs` (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(of)).split()[1]) >> 10


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_read_in_bounded_time_and_memory(run: Path, bomb: str) -> None:
    BOMBS[bomb](run / "ledger" / "9-bomb.ledger")
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts at what is used now
    before, began = megabytes("VmRSS"), time.process_time()
    verdict = verify(run).verdict
    verified = time.process_time()
    run_rows(run)
    for record in Ledger(run).episodes():
        with suppress(StrandsSGLangError):
            read_conversations(record.end.data) if record.end is not None else record.tree()
    read, took = time.process_time(), megabytes("VmHWM") - before
    assert verdict is (Verdict.PROVED if bomb == "a sparse index" else Verdict.BROKEN)
    assert took < 420 and verified - began < 5 and read - verified < 5, (took, verified - began, read - verified)


def test_what_compresses_too_well_to_be_read_is_stored(tmp_path: Path) -> None:
    """A block has at most a multiple of its compressed size, and what is written can be read."""
    shard = OpenShard(tmp_path / "a.ledger", {"format": 1})
    for number in range(3):
        shard.append(b"".join(one_event(200, 2 * number)), 1)
        shard.append(b"".join(one_event(3 << 20, 2 * number + 1, b"a" * 2**20)), 1)
    shard.close()
    reader = ShardReader(tmp_path / "a.ledger")
    assert [len(block.events[0]) for block in reader] == [200, 3 << 20] * 3
    assert reader.state.verdict is ShardVerdict.WHOLE and reader.state.closed
    assert 9 << 20 < reader.state.bytes < 10 << 20


def test_an_event_that_could_not_be_read_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.ledger.encoding.MOST_EVENT_VALUES", 100)
    written: list[bytes] = []
    chain = HashChain(written.append, "t/0")
    with pytest.raises(LedgerError, match="at most 100 values, got at least 1"):
        chain.append(EventKind.TOOL, {"result": [[]] * 60})
    assert not written and chain.number == 0
    chain.append(EventKind.TOOL, {"result": "[,[:{" * 60})  # text is no value


def marks(value: Any) -> tuple[int, int]:
    """Return the number of opening brackets, commas and colons outside of text in a value as JSON, and its depth."""
    if not isinstance(value, (list, dict)):
        return 0, 0
    inner = [marks(one) for one in (value.values() if isinstance(value, dict) else value)]
    own = 1 + max(0, len(value) * (2 if isinstance(value, dict) else 1) - 1)
    return own + sum(count for count, _ in inner), 1 + max((depth for _, depth in inner), default=0)


def test_values_are_counted_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a piece ends within text or an escape; of too many values, only the first pieces are read."""
    dice = random.Random(7)

    def value(depth: int) -> Any:
        if depth and dice.random() < 0.7:
            items = [value(depth - 1) for _ in range(dice.randrange(4))]
            return items if dice.random() < 0.5 else {text(): one for one in items}
        return text() if dice.random() < 0.8 else dice.randrange(100)

    def text() -> str:
        return "".join(dice.choice('\\\\"[{,:]}a') for _ in range(dice.randrange(9)))

    for _ in range(size(300, 10_000)):
        found = value(4)
        monkeypatch.setattr(_json, "_PIECE", dice.randrange(1, 9))
        assert _json._shape(orjson.dumps(found), 1 << 20) == marks(found), found
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"at most 1000 values, got at least \d{6}$"):
        _json.check_values(b"[" + b"[]," * 10**6 + b"[]]", 1000)


def test_decoding_does_not_visit_again_what_it_decoded() -> None:
    """With the garbage collector on, lists of a small event took six times as long."""
    collections: list[str] = []
    gc.callbacks.append(lambda phase, info: collections.append(phase))
    try:
        _json.loads(b"[" + b"[]," * 20_000 + b"[]]")
    finally:
        gc.callbacks.pop()
    assert len(collections) <= 4 and gc.isenabled()


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
