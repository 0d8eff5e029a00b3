"""Runs with images: stored once, proved by `verify`, resumed after a crash, replayed without an engine, exported."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest
from strands.hooks import BeforeToolCallEvent

from strands_sglang import SGLangModel
from strands_sglang.engine import FinishReason, Generation, VersionSpan
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.files import FileStore, file_digest
from strands_sglang.ledger.record import EpisodeRecord, PortableRecord
from strands_sglang.ledger.table import to_arrow, trajectory_of
from strands_sglang.proof.finding import FindingKind, Verdict
from strands_sglang.proof.verify import verify
from strands_sglang.runs import EndReason, Episode, Limits, ReplayVerdict, Task, replay
from strands_sglang.runs.agent_runner import AgentOutcome
from strands_sglang.runs.resume import restored
from strands_sglang.runs.workers.local import LocalWorker
from strands_sglang.runs.workers.ray_pool import RayWorker
from strands_sglang.runs.workers.spec import EpisodeSpec, RunSpec
from strands_sglang.trainers.exports import read_jsonl, write_jsonl
from support.pictures import image_block, png
from support.rollout.looking import OPTIONS, SEEN, TASKS, build, engine
from support.rollout.scripts import assert_proved, assert_same, crashed, record_of, run, summaries


async def recorded(directory: Path, **settings: Any) -> Any:
    return await run(build, TASKS, engine(), directory, samples_per_task=2, **OPTIONS, **settings)


async def test_run_is_proved_and_stores_every_image_once(tmp_path: Path) -> None:
    result = await recorded(tmp_path / "run")
    assert [episode.end_reason for episode in result] == [EndReason.ANSWERED] * 4
    assert_proved(tmp_path / "run")
    assert_same(tmp_path / "run", result)
    files = sorted(path for path in (tmp_path / "run" / "files").rglob("*") if path.is_file())
    assert len(files) == 3  # one of a task, two of the tool; each used by several episodes
    assert verify(tmp_path / "run").content_files == 3
    shards = b"".join(path.read_bytes() for path in (tmp_path / "run" / "ledger").iterdir())
    assert len(shards) < sum(path.stat().st_size for path in files) + 30_000
    for episode in result:
        for image in (image for one in episode.trajectories for image in one.images):
            assert file_digest(episode.image_files[image.digest]) == image.digest


async def test_episodes_read_from_the_ledger_have_their_images(tmp_path: Path) -> None:
    result = {episode.id: episode for episode in await recorded(tmp_path / "run")}
    again = await run(build, TASKS, engine(), tmp_path / "run", samples_per_task=2, **OPTIONS)
    for episode in again:
        assert episode.restored
        assert episode.task == result[episode.id].task
        assert episode.image_files == result[episode.id].image_files
        assert [one.get("content") for one in episode.messages] == [
            one.get("content") for one in result[episode.id].messages
        ]


async def test_resume_after_a_crash_at_every_event(tmp_path: Path) -> None:
    expected = summaries(await run(build, TASKS[:1], engine(), tmp_path / "whole", **OPTIONS))
    for kept in range(1, len(record_of(tmp_path / "whole", "a/0").events)):
        folder = crashed(tmp_path / "whole", tmp_path / f"crash{kept}", {"a/0": kept})
        shutil.copytree(tmp_path / "whole" / "files", folder / "files", dirs_exist_ok=True)
        continuing = engine().follows(record_of(folder, "a/0").events)
        again = await run(build, TASKS[:1], continuing, folder, **OPTIONS)
        assert summaries(again) == expected
        assert_proved(folder)


async def test_replay_without_an_engine(tmp_path: Path) -> None:
    await recorded(tmp_path / "run")
    SEEN.clear()
    replayed = await replay(build, tmp_path / "run", tokenizer=engine().tokenizer, **OPTIONS)
    assert [one.verdict for one in replayed] == [ReplayVerdict.IDENTICAL] * 4, replayed
    assert not SEEN, "a tool was run"


def other(task: Task, model: SGLangModel) -> Any:
    """Return an agent that shows another image of the same size first."""
    agent = build(task, model)

    async def ask() -> None:
        await agent.invoke_async([image_block(png(140, 84, 99)), {"text": "What is it?"}])

    return ask


async def test_replay_notices_another_image_of_the_same_size(tmp_path: Path) -> None:
    await run(build, TASKS[:1], engine(), tmp_path / "run", **OPTIONS)
    (one,) = await replay(other, tmp_path / "run", tokenizer=engine().tokenizer, **OPTIONS)
    assert one.verdict is ReplayVerdict.DIVERGED


@pytest.mark.parametrize("damage", ["missing", "changed", "swapped"])
async def test_verify_notices_images(tmp_path: Path, damage: str) -> None:
    await recorded(tmp_path / "run")
    one, two, _ = sorted(path for path in (tmp_path / "run" / "files").rglob("*.png"))
    if damage == "missing":
        one.unlink()
    elif damage == "changed":
        one.write_bytes(one.read_bytes()[:-1] + b"x")
    else:
        first, second = one.read_bytes(), two.read_bytes()
        one.write_bytes(second)
        two.write_bytes(first)
    certificate = verify(tmp_path / "run")
    expected = FindingKind.FILE_MISSING if damage == "missing" else FindingKind.FILE_CHANGED
    assert certificate.found[expected] == (2 if damage == "swapped" else 1), certificate.text()
    assert certificate.verdict is (Verdict.DATA_LOST if damage == "missing" else Verdict.BROKEN)
    assert "image" in certificate.text()


def prepared(task: Task, model: SGLangModel) -> Any:
    """Return an agent with bytes in places that no prompt has: arguments of a tool, and a message that is refused."""
    agent = build(task, model)

    def add_picture(event: BeforeToolCallEvent) -> None:
        event.tool_use["input"]["picture"] = ARGUMENT

    agent.add_hook(add_picture, BeforeToolCallEvent)

    async def ask() -> None:
        await agent.invoke_async(task.prompt)
        result: Any = {"toolUseId": "x", "status": "success", "content": [image_block(REFUSED)]}
        data: Any = {"toolUseId": "y", "status": "success", "content": [{"json": {"__file__": "0" * 64, "raw": b"x"}}]}
        await agent.invoke_async([{"toolResult": result}, {"toolResult": data}, document_block(b"%PDF " * 10_000)])

    return ask


ARGUMENT, REFUSED = png(30, 20, 51), b"\x89PNG no image " * 10_000


def document_block(data: bytes) -> Any:
    return {"document": {"format": "pdf", "name": "x", "source": {"bytes": data}}}


@pytest.mark.parametrize("lost", ["argument", "refused", "document"])
async def test_verify_reads_the_files_of_every_event(tmp_path: Path, lost: str) -> None:
    (episode,) = await run(prepared, TASKS[1:], engine(), tmp_path / "run", **OPTIONS)
    assert episode.end_reason is EndReason.AGENT_ERROR, "the last message was refused"
    assert not verify(tmp_path / "run").found[FindingKind.FILE_MISSING], "data that looks like a reference is none"
    data = {"argument": ARGUMENT, "refused": REFUSED, "document": b"%PDF " * 10_000}[lost]
    path = FileStore(tmp_path / "run").find(file_digest(data))
    assert path is not None
    path.unlink()
    assert verify(tmp_path / "run").found[FindingKind.FILE_MISSING] == 1


async def test_end_events_have_references_in_place_of_bytes(tmp_path: Path) -> None:
    await run(prepared, TASKS[1:], engine(), tmp_path / "run", **OPTIONS)
    end = record_of(tmp_path / "run", "b/0").end
    assert end is not None
    written = orjson.dumps(end.data).decode()
    assert len(written) < 20_000 and "no image" not in written and "%PDF" not in written
    assert file_digest(REFUSED) in written and "<bytes: 1 bytes, sha256" in written
    again = restored(record_of(tmp_path / "run", "b/0"))
    assert again.messages[-1]["content"][0]["toolResult"]["content"] == [image_block(REFUSED)]


async def test_exports_have_the_images_and_agree_with_the_ledger(tmp_path: Path) -> None:
    result = await recorded(tmp_path / "run")
    path = tmp_path / "rows.jsonl"
    write_jsonl(tmp_path / "run", path)
    assert verify(tmp_path / "run", exported=path).proved
    for branch in read_jsonl(path):
        row = branch.row
        assert row is not None and branch.trajectory.images
        assert len(row.loss_mask) == len(row.logprobs) == len(row.response_ids)
        assert len(row.token_ids) == len(branch.trajectory.token_ids)
    table = to_arrow(tmp_path / "run")
    flat = [trajectory_of(row) for row in table.to_pylist()]
    assert sorted(map(repr, flat)) == sorted(repr(one) for episode in result for one in episode.trajectories)
    assert sum(len(one.images) for one in flat) == 2 * 3 + 2 * 2
    lines = path.read_text().replace(sorted({i.digest for one in flat for i in one.images})[0], "0" * 64)
    path.write_text(lines)
    assert verify(tmp_path / "run", exported=path).found[FindingKind.EXPORTED]


async def test_a_run_in_memory_has_its_images() -> None:
    (episode,) = await run(build, TASKS[:1], engine(), None, **OPTIONS)
    assert set(episode.image_files) == {image.digest for one in episode.trajectories for image in one.images}


async def paused_after(turns: int, record: EpisodeRecord | None = None) -> Episode:
    """Run the second task without a directory, and return the episode paused in the turn after so many."""
    asked, signal = engine(), asyncio.Event()
    real = asked.generate

    async def generate(*arguments: Any, **options: Any) -> Generation:
        made = await real(*arguments, **options)
        if len(asked.calls) <= turns:
            return made
        signal.set()
        ids, logprobs, spans = made.token_ids[:1], made.logprobs[:1], (VersionSpan("v1", 0, 1),)
        return dataclasses.replace(
            made, token_ids=ids, logprobs=logprobs, versions=spans, finish_reason=FinishReason.ABORT
        )

    asked.generate = generate  # type: ignore[method-assign]
    run_spec = RunSpec(build, None, asked.tokenizer, asked, Limits(), OPTIONS, None, "run", pausable=True)
    worker = LocalWorker(run_spec)
    work = asyncio.ensure_future(worker.run(EpisodeSpec(TASKS[1], 0, record=record), pause=signal))
    if record is not None:
        await asyncio.sleep(0)
        worker.pause(record.id, 0.1)  # before anything is replayed
    episode = await work
    await worker.close()
    assert episode.end_reason is EndReason.PAUSED and episode.record is not None
    return episode


async def test_a_portable_record_has_its_images() -> None:
    """No directory has them: they are in the task and in the tool results."""
    episode = await paused_after(2)
    wanted = {image.digest for one in episode.trajectories for image in one.images}
    assert len(wanted) == 1 and episode.record is not None
    record = pickle.loads(pickle.dumps(PortableRecord(episode.record))).record
    assert record.image_digests == sorted(wanted)
    images = record.images()
    assert images.keys() == wanted and all(file_digest(data) == digest for digest, data in images.items())
    worker = LocalWorker(RunSpec(build, None, engine().tokenizer, engine(), Limits(), OPTIONS, None, "run"))
    ended = await worker.end_without_running(
        EpisodeSpec(TASKS[1], 0, record=record), AgentOutcome(EndReason.NOT_NEEDED)
    )
    assert ended.image_files == images
    await worker.close()


async def test_an_episode_that_is_paused_again_at_once_has_the_images_of_its_record() -> None:
    first = await paused_after(2)
    again = await paused_after(0, first.record)
    wanted = {image.digest for one in again.trajectories for image in one.images}
    assert wanted and again.image_files.keys() >= wanted


async def test_a_portable_record_says_where_its_files_are(tmp_path: Path) -> None:
    await recorded(tmp_path / "run")
    record = record_of(tmp_path / "run", "b/0")
    carried = pickle.dumps(PortableRecord(record))
    assert len(carried) < 20_000, "images are named, not carried"
    again = pickle.loads(carried).record
    assert again.images() == record.images() and len(again.images()) == 2
    one = FileStore(tmp_path / "run").find(record.image_digests[0])
    assert one is not None
    one.unlink()
    with pytest.raises(LedgerError, match="no file"):
        again.images()


async def test_a_worker_reads_no_images_of_a_record(tmp_path: Path) -> None:
    """A record without its files does not fail on the worker: the images are read by whoever needs them."""
    await recorded(tmp_path / "run")
    record = record_of(tmp_path / "run", "b/0")
    shutil.rmtree(tmp_path / "run" / "files")
    run_spec = RunSpec(build, None, engine().tokenizer, engine(), Limits(), OPTIONS, None, "run", tune_runtime=False)
    worker = RayWorker(run_spec, "0")
    (episode, _), tree, _, images = await worker.run(EpisodeSpec(TASKS[1], 0, record=record, unscored=True))
    assert images is None and tree.has_images and not episode.images


async def test_images_in_a_task_survive_copies_and_files(tmp_path: Path) -> None:
    store = FileStore(tmp_path)

    def put(data: bytes) -> str:
        digest = file_digest(data)
        store.write(digest, data)
        return digest

    task = TASKS[0]
    assert task.copy() == task
    assert Task.from_dict(task.to_dict(put), store) == task
    assert Task(task.prompt).id == Task(task.prompt).id != Task(TASKS[1].prompt).id
