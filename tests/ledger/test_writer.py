from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.errors import ConfigurationError, LedgerError
from strands_sglang.ledger import shard as shard_module
from strands_sglang.ledger.encoding import HashChain, decoded, encoded, first_link
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.ledger.files import FileStore, file_digest
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.run_dir import shard_paths
from strands_sglang.ledger.shard import ShardReader, ShardVerdict
from strands_sglang.ledger.writer import Durability, LedgerWriter
from support.ledger.episodes import plain_episode, random_episode
from support.ledger.killed_writer import DIGEST
from support.ledger.realistic import Realistic


def events_on_disk(directory: Path) -> list[bytes]:
    """Return all events in the files of a run; all files must be whole."""
    events = []
    for path in shard_paths(directory):
        reader = ShardReader(path)
        events += [event for block in reader for event in block.events]
        assert reader.state.verdict is ShardVerdict.WHOLE
    return events


async def test_confirmed_events_are_in_the_file(tmp_path: Path) -> None:
    writer, written = LedgerWriter(tmp_path, worker="w.1_a"), list[bytes]()
    await writer.flushed()
    assert shard_paths(tmp_path) == writer.paths == []  # files are made with the first event
    for sample in range(3):
        plain_episode(written.append, sample=sample)
        for event in written[-8:]:
            writer.write(event)
        await writer.flushed()
        assert events_on_disk(tmp_path) == written
    writer.close()
    writer.close()
    assert events_on_disk(tmp_path) == written
    (path,) = writer.paths
    reader = ShardReader(path)
    assert list(reader) and reader.state.closed
    header = reader.state.header
    assert (header["worker"], header["pid"], header["part"]) == ("w.1_a", os.getpid(), 0)
    assert path.name == f"w.1_a-{header['start']}-000.ledger"
    await writer.flushed()
    with pytest.raises(LedgerError, match="closed"):
        writer.write(written[0])


async def test_events_are_written_without_waiting(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, flush_seconds=0.01) as writer:
        plain_episode(writer.write)
        deadline = time.monotonic() + 10
        while not writer.paths or len(events_on_disk(tmp_path)) < 8:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)


async def test_full_shard_is_closed_and_another_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "SECTION_BYTES", 3000)
    written: list[bytes] = []
    with LedgerWriter(tmp_path, durability=Durability.MACHINE, shard_bytes=8000) as writer:
        for sample in range(100):
            random_episode(written.append, random.Random(sample), sample=sample)
        for event in written:
            writer.write(event)
            if event[-1] % 8 == 0:
                await writer.flushed()
    assert events_on_disk(tmp_path) == written
    assert writer.paths == shard_paths(tmp_path) and len(writer.paths) > 10
    assert all(state.closed for state in Ledger(tmp_path).files)
    assert all(not record.problems and record.finished for record in Ledger(tmp_path).episodes())


def test_many_threads_and_event_loops(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path)

    def run(worker: int) -> None:
        async def record(sample: int) -> None:
            recorder = plain_episode(writer.write, task=f"t{worker}", sample=sample, end=False)
            await writer.flushed()
            recorder.end()
            await writer.flushed()
            seen.append(recorder.id)

        async def all_of_them() -> None:
            await asyncio.gather(*(record(sample) for sample in range(20)))

        asyncio.run(all_of_them())

    seen: list[str] = []
    threads = [threading.Thread(target=run, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 120 and len(events_on_disk(tmp_path)) == 120 * 8
    writer.close()
    assert sorted(Ledger(tmp_path).ids()) == sorted(seen)
    assert not any(record.problems for record in Ledger(tmp_path).episodes())


async def test_waiting_event_loop_may_be_closed(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path)

    def leave() -> None:
        loop = asyncio.new_event_loop()
        plain_episode(writer.write, task="left")
        waiting = loop.create_task(writer.flushed())
        loop.call_soon(loop.stop)
        loop.run_forever()
        waiting.cancel()
        loop.run_until_complete(asyncio.gather(waiting, return_exceptions=True))
        loop.close()

    leaving = threading.Thread(target=leave)
    leaving.start()
    leaving.join()
    plain_episode(writer.write)
    waiting = [asyncio.ensure_future(writer.flushed()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert waiting[1].cancelled() and not waiting[0].cancelled()
    plain_episode(writer.write, task="more")
    await writer.flushed()
    assert len(events_on_disk(tmp_path)) == 24
    writer.close()


async def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    writer = LedgerWriter(tmp_path)
    plain_episode(writer.write)
    await writer.flushed()
    really_write = os.write

    def half(file: int, data: bytes) -> int:
        if len(data) > 40:
            return really_write(file, data[:40])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", half)
    plain_episode(writer.write, task="lost")
    waiting = [asyncio.ensure_future(writer.flushed()) for _ in range(2)]
    for one in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(one, LedgerError) and "No space left" in str(one)
    monkeypatch.undo()
    with pytest.raises(LedgerError, match="No space left"):
        plain_episode(writer.write, task="later")
    with pytest.raises(LedgerError, match="No space left"):
        await writer.flushed()
    with pytest.raises(LedgerError, match="No space left"):
        writer.close()
    assert len(events_on_disk(tmp_path)) == 8  # and no half block after them
    assert "ledger cannot be written" in caplog.text


def test_invalid_writes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", "a/b", "a b", "a-b"):
        with pytest.raises(ConfigurationError):
            LedgerWriter(tmp_path, worker=name)
    monkeypatch.setattr("strands_sglang.ledger.writer.LARGEST_BLOCK", 100)
    writer = LedgerWriter(tmp_path)
    with pytest.raises(LedgerError, match="got 101"):
        writer.write(bytes(101))


def test_large_event_has_its_own_block(tmp_path: Path) -> None:
    sizes = [10, 2_000_000, 10, 900_000, 900_000, 10]
    events = [encoded(Event("a/0", 0, 0, EventKind.CALL_ERROR, {"x": "y" * size}), first_link("a/0")) for size in sizes]
    with LedgerWriter(tmp_path, flush_seconds=60) as writer:
        for event in events:
            writer.write(event)
    assert [len(block.events) for block in ShardReader(writer.paths[0])] == [1, 1, 2, 2]
    assert events_on_disk(tmp_path) == events


def test_writer_is_closed_at_exit(tmp_path: Path) -> None:
    """Also after a fork: the child starts its own file and does not write to the parent's."""
    script = f"""
        import os, sys
        from pathlib import Path
        from support.ledger.episodes import plain_episode
        from strands_sglang.ledger.writer import LedgerWriter
        writer = LedgerWriter(Path({str(tmp_path)!r}), flush_seconds=60)
        plain_episode(writer.write, task="parent")
        child = os.fork()
        if not child:
            plain_episode(writer.write, task="child")
            sys.exit()
        assert os.waitpid(child, 0)[1] == 0
        plain_episode(writer.write, task="later")
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, env=environment, timeout=60)
    ledger = Ledger(tmp_path)
    assert [state.closed for state in ledger.files] == [True, True]
    assert len({state.header["pid"] for state in ledger.files}) == 2
    assert sorted(ledger.ids()) == ["child/0", "later/0", "parent/0"]
    assert all(record.finished and not record.problems for record in ledger.episodes())
    by_file = [
        {decoded(event)[0].episode for block in ShardReader(s.path) for event in block.events} for s in ledger.files
    ]
    assert {"child/0"} in by_file and {"parent/0", "later/0"} in by_file


def test_killed_process_loses_no_confirmed_event(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-m", "support.ledger.killed_writer"]
    rng = random.Random(7)
    torn = events = confirmed_events = 0
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
    ) as starter:
        assert starter.stdin is not None and starter.stdout is not None
        for number in range(20):
            directory, confirmed = tmp_path / str(number), tmp_path / f"{number}.confirmed"
            durability = Durability.MACHINE if number % 5 == 4 else Durability.PROCESS
            starter.stdin.write(f"{directory} {confirmed} {number} {durability.value}\n")
            pid = int(starter.stdout.readline())
            deadline = time.monotonic() + 60
            while not confirmed.exists() or not confirmed.stat().st_size:
                assert time.monotonic() < deadline
                time.sleep(0.002)
            time.sleep(rng.uniform(0, 0.15))
            os.kill(pid, signal.SIGKILL)
            assert starter.stdout.readline() == "ended\n"
            confirmed_digests = confirmed.read_bytes()
            digests = {confirmed_digests[at : at + DIGEST] for at in range(0, len(confirmed_digests), DIGEST)}
            ledger = Ledger(directory)
            assert {state.verdict for state in ledger.files} <= {ShardVerdict.WHOLE, ShardVerdict.TORN}
            assert all(state.verdict is ShardVerdict.WHOLE and state.closed for state in ledger.files[:-1])
            torn += ledger.files[-1].verdict is ShardVerdict.TORN
            for record in ledger.episodes():
                assert not record.problems and record.begin is not None
                digests.difference_update(event.digest for event in record.events)
                events += len(record.events)
            assert not digests
            confirmed_events += len(confirmed_digests) // DIGEST
        starter.stdin.close()
    print(f"\n20 processes killed: {events} events read, {confirmed_events} times confirmed, {torn} torn tails")


@pytest.mark.parametrize(
    ("name", "sampled", "tool", "system"), [("long", (100, 500), (60, 240), 600), ("short", (10, 31), (20, 60), 200)]
)
def test_cost_per_token(tmp_path: Path, name: str, sampled: Any, tool: Any, system: int) -> None:
    """Bytes on disk, and CPU of the recording thread (the event loop in a run) and of the process."""
    events: list[bytes] = []
    made = Realistic(events.append, sampled=sampled, tool=tool, system=system)
    made.record()
    decoded_events = [decoded(event)[0] for event in events]
    with LedgerWriter(tmp_path) as writer:
        chain = HashChain(writer.write, "a/0")
        loop, process = time.thread_time(), time.process_time()
        for event in decoded_events:
            chain.append(event.kind, event.data, event.arrays)
        loop = time.thread_time() - loop
        writer.close()
        process = time.process_time() - process
    (path,) = writer.paths
    size, raw = path.stat().st_size, sum(map(len, events))
    print(
        f"\n{name} turns: {made.tokens} tokens, {made.sampled_tokens} sampled, {len(events)} events\n"
        f"{size / made.tokens:.2f} bytes a token, {size / len(events):.0f} an event ({raw / len(events):.0f} raw); "
        f"{loop / len(events) * 1e6:.1f} us an event to record, {process / len(events) * 1e6:.1f} us with the thread"
    )
    assert size / made.tokens < (6 if name == "long" else 12)
    assert loop / len(events) < 200e-6


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs names of open files")
@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("stored", [False, True])
async def test_files_are_as_durable_as_events(
    tmp_path: Path, durability: Durability, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file and the folders that name it are synced before the event that refers to it, also if another wrote it."""
    synced: list[str] = []
    real = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).relative_to(tmp_path).as_posix())
        real(descriptor)

    digest = file_digest(b"content")
    if stored:
        FileStore(tmp_path).write(digest, b"content")
    monkeypatch.setattr(os, "fsync", noted)
    writer = LedgerWriter(tmp_path, durability=durability)
    assert writer.put_file(b"content") == digest
    plain_episode(writer.write)
    await writer.flushed()
    first, folder = f"files/{digest[:2]}", f"files/{digest[:2]}/"
    before = synced[: next((at for at, name in enumerate(synced) if name.startswith("ledger")), len(synced))]
    if durability is Durability.MACHINE:
        content, *folders = before
        assert content.startswith(folder) and folders == [first, "files", "."]
    else:
        assert not synced
    writer.close()
    assert FileStore(tmp_path).read(digest) == b"content"
