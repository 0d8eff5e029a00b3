from __future__ import annotations

import os
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.ledger import shard as shard_module
from strands_sglang.ledger.run_dir import MAGIC, shard_paths
from strands_sglang.ledger.shard import BLOCK_HEAD, MARK, OpenShard, ShardReader, ShardState, ShardVerdict
from support.ledger.episodes import plain_episode


def events(count: int) -> list[bytes]:
    """Return some real events."""
    written: list[bytes] = []
    for sample in range(count // 8 + 1):
        plain_episode(written.append, sample=sample)
    return written[:count]


def write(path: Path, blocks: Sequence[Sequence[bytes]], *, close: bool = True) -> None:
    path.unlink(missing_ok=True)
    shard = OpenShard(path, {"worker": "w"})
    for block in blocks:
        shard.append(b"".join(block), len(block))
    assert shard.size == path.stat().st_size or not blocks
    shard.close() if close else shard.abandon()


def read(path: Path, stop: int | None = None) -> tuple[list[bytes], ShardState]:
    reader = ShardReader(path, stop=stop)
    return [event for block in reader for event in block.events], reader.state


def spans(path: Path) -> list[tuple[str, int, int]]:
    """Return the parts of a shard: name, first byte, one past the last."""
    data, at, found = path.read_bytes(), len(MAGIC), [("magic", 0, len(MAGIC))]
    while at < len(data):
        if data.startswith(MARK, at):
            found.append(("mark", at, at + len(MARK)))
        else:
            size, _, kind, _ = BLOCK_HEAD.unpack_from(data, at)
            found.append((["events", "header", "closing"][kind], at, at + BLOCK_HEAD.size + size))
        at = found[-1][2]
    return found


def test_shard_is_read_back(tmp_path: Path) -> None:
    path, written = tmp_path / "a.ledger", events(12)
    write(path, [written[:5], written[5:6], written[6:]])
    assert path.read_bytes().startswith(MAGIC)
    back, state = read(path)
    assert back == written
    assert state == ShardState(path, path.stat().st_size, ShardVerdict.WHOLE, closed=True, header={"worker": "w"})
    write(path, [written], close=False)
    back, state = read(path)
    assert (back, state.verdict, state.closed) == (written, ShardVerdict.WHOLE, False)
    with pytest.raises(FileExistsError):
        OpenShard(path, {})


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_truncated_shard_is_torn_and_yields_a_prefix(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("shard") / "a.ledger"
    written = events(data.draw(st.integers(1, 9)))
    at = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=4)))
    blocks = [written[a:b] for a, b in zip([0, *at], [*at, len(written)], strict=True) if a < b]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_module, "SECTION_BYTES", data.draw(st.sampled_from([1, 600, 4 << 20])))
        write(path, blocks, close=data.draw(st.booleans()))
    size, ends = path.stat().st_size, {end for _, _, end in spans(path)}
    for cut in range(size):
        back, state = read(path, stop=cut)
        assert back == written[: len(back)]
        assert state.verdict is (ShardVerdict.WHOLE if cut in ends else ShardVerdict.TORN), (cut, state)
        assert (state.at is None) == (cut in ends)
    content = path.read_bytes()
    for cut in {data.draw(st.integers(0, size - 1)) for _ in range(30)} - ends:  # zeros, as a machine that died leaves
        path.write_bytes(content[:cut] + bytes(40))
        back, state = read(path)
        assert (back, state.verdict) == (written[: len(back)], ShardVerdict.TORN), (cut, state)


def test_every_changed_byte_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events after a change are read unchanged; only unreadable ones are missing."""
    monkeypatch.setattr(shard_module, "SECTION_BYTES", 500)
    path, written = tmp_path / "a.ledger", events(10)
    write(path, [written[n : n + 2] for n in range(0, 10, 2)])
    whole, parts = path.read_bytes(), spans(path)
    assert sum(name == "mark" for name, _, _ in parts) > 2
    with path.open("r+b", buffering=0) as file:
        for at in range(len(whole)):
            os.pwrite(file.fileno(), bytes([whole[at] ^ (1 << at % 8)]), at)
            back, state = read(path)
            os.pwrite(file.fileno(), whole[at : at + 1], at)
            name, begin, _ = next(part for part in parts if part[1] <= at < part[2])
            assert set(back) <= set(written) and back == [one for one in written if one in back]
            assert state.at == begin and state.message.startswith(f"byte {begin}: ")
            if name == "closing" and at >= begin + BLOCK_HEAD.size:
                assert (state.verdict, back) == (ShardVerdict.TORN, written)
            else:
                assert state.verdict is ShardVerdict.DAMAGED
            if name in ("magic", "header", "closing"):
                assert back == written
            else:
                after = next((part[1] for part in parts if part[0] == "mark" and part[1] > at), len(whole))
                assert state.lost[0] == (begin, after)
    assert read(path)[0] == written


def test_damage_loses_the_rest_of_its_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "SECTION_BYTES", 2000)
    path, written = tmp_path / "a.ledger", events(200)
    write(path, [[event] for event in written])
    whole, parts = bytearray(path.read_bytes()), spans(path)
    marks = [begin for name, begin, _ in parts if name == "mark"]
    rng = random.Random(1)
    for start, end in pairwise(marks[2:5]):  # two neighbours, from their first block on
        for at in range(start + len(MARK), end):
            whole[at] = rng.randrange(256)
    path.write_bytes(whole)
    back, state = read(path)
    assert (state.verdict, state.at, state.closed) == (ShardVerdict.DAMAGED, marks[2] + len(MARK), True)
    assert [end for _, end in state.lost] == [marks[3], marks[4]]
    inside = sum(name == "events" and marks[2] < begin < marks[4] for name, begin, _ in parts)
    assert len(back) == 200 - inside and back == [one for one in written if one in back]


def test_sections_are_independent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "SECTION_BYTES", 700)
    path, written = tmp_path / "a.ledger", events(30)
    write(path, [[event] for event in written])
    whole = list(ShardReader(path))
    sections = sorted({block.section for block in whole})
    assert len(sections) > 3
    assert [block for section in sections for block in ShardReader(path, start=section)] == whole
    stop = whole[11].at
    before = [section for section in sections if section < stop]
    assert [block for section in before for block in ShardReader(path, start=section, stop=stop)] == whole[:11]
    reader = ShardReader(path, stop=stop)
    assert list(reader) == whole[:11] and reader.state.verdict is ShardVerdict.WHOLE


def test_marks_inside_damaged_bytes_are_skipped(tmp_path: Path) -> None:
    """A mark in the middle of other bytes is not followed by a block, and is skipped."""
    path, written = tmp_path / "a.ledger", events(20)
    write(path, [[event] for event in written])
    whole = bytearray(path.read_bytes())
    parts = [part for part in spans(path) if part[0] == "events"]
    begin, end = parts[4][1], parts[5][2]
    whole[begin:end] = bytes(range(256))[: end - begin - len(MARK)] + MARK
    path.write_bytes(whole)
    back, state = read(path)
    assert back == written[:4] and state.verdict is ShardVerdict.DAMAGED and len(state.lost) == 2


def test_file_that_is_not_a_shard(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    for content, verdict in [
        (b"", ShardVerdict.TORN),
        (bytes(5000), ShardVerdict.TORN),
        (MAGIC[:5], ShardVerdict.TORN),
        (b"strands-sglang ledger 1\n" + bytes(100), ShardVerdict.DAMAGED),
        (random.Random(1).randbytes(3 << 20), ShardVerdict.DAMAGED),
    ]:
        path.write_bytes(content)
        back, state = read(path)
        assert (back, state.verdict, state.at, state.bytes) == ([], verdict, 0, len(content))


def test_malformed_blocks_with_valid_checksums(tmp_path: Path) -> None:
    """The checksums of these blocks are valid; their content is not."""
    path, written = tmp_path / "a.ledger", events(4)
    opening = MAGIC + shard_module._block(shard_module.BlockKind.HEADER, b"{}")
    write(path, [written])
    right = path.read_bytes()
    events_begin, closing_begin = spans(path)[2][1], spans(path)[-1][1]
    five = shard_module._block(shard_module.BlockKind.CLOSING, orjson.dumps({"events": 5}))
    for content, at, count in [
        (right[:closing_begin] + five, closing_begin, 4),
        (right + right[events_begin:closing_begin], len(right), 4),
        (opening + MARK + shard_module._block(shard_module.BlockKind.EVENTS, b"\xff\xff"), len(opening) + 16, 0),
        (opening + shard_module._block(shard_module.BlockKind.EVENTS, right[-100:]), len(opening), 0),
        (opening + shard_module._block(shard_module.BlockKind.CLOSING, b"[]"), len(opening), 0),
        (MAGIC + shard_module._block(shard_module.BlockKind.HEADER, b"{"), len(MAGIC), 0),
    ]:
        path.write_bytes(content)
        back, state = read(path)
        assert (state.verdict, state.at, len(back)) == (ShardVerdict.DAMAGED, at, count)


def test_shards_are_sorted_by_name(tmp_path: Path) -> None:
    assert shard_paths(tmp_path) == []
    (tmp_path / "ledger").mkdir()
    for name in ("1-b.ledger", "0-a.ledger", "note.txt"):
        (tmp_path / "ledger" / name).touch()
    assert [path.name for path in shard_paths(tmp_path)] == ["0-a.ledger", "1-b.ledger"]
