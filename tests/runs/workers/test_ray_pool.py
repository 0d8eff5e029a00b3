"""`RayPool` with real Ray workers: same episodes as in one process; nothing recorded is lost when a worker dies."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
import threading
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from strands import Agent, tool

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.encoding import HashChain
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.shard import ShardReader
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.runs import EndReason, Episode, Limits, RunMetrics, RunOptions, Task, rollout
from strands_sglang.runs.workers import ray_pool
from strands_sglang.runs.workers.ray_pool import RayPool, recorded_by
from strands_sglang.runs.workers.spec import EpisodeSpec
from strands_sglang.tokens import TokenTree
from support.families import tokenizer
from support.lab_servers import free_port
from support.local_ray import ray_here
from support.rollout.agent_kinds import build, plain
from support.rollout.other_models import Speaker, build_with_user, echo, last_text
from support.rollout.scripts import (
    FAMILY,
    PromptEngine,
    asked,
    assert_proved,
    assert_same,
    last_step,
    run,
    steps,
    summaries,
)
from support.scripted_engine import Answer, tool_call


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    with ray_here():
        yield


@tool
async def note(number: int) -> str:
    """Take a step, after appending the process id to a file."""
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{os.getpid()} {number}\n")
    await asyncio.sleep(0.05)
    return f"step {number}"


@tool
async def deadly(number: int) -> str:
    """End the process."""
    await asyncio.sleep(0.3)  # earlier events are on disk by then
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def reward(episode: Any) -> float:
    return float(len(episode.task.prompt))


def contents(episode: Episode) -> list[Any]:
    """Return roles and contents of an episode's messages, without fields that differ between runs."""
    assert len(episode.messages) > 2
    return [(message["role"], message["content"]) for message in episode.messages]


QUESTIONS = [f"question {number}" for number in range(6)]


async def test_same_episodes_as_in_one_process_and_failed_rewards_are_computed_again(tmp_path: Path) -> None:
    def some_rewards(episode: Any) -> float:
        if episode.task.prompt in QUESTIONS[:3]:
            raise ValueError("a mistake")
        return reward(episode)

    engine = PromptEngine(steps(3))
    here = await run(build, QUESTIONS, PromptEngine(steps(3)), reward=reward)
    there = await run(build, QUESTIONS, engine, tmp_path, workers=2, reward=some_rewards)
    assert not any(isinstance(episode.source, TokenTree) for episode in there)
    assert summaries(there) == summaries(here)
    assert [contents(episode) for episode in there] == [contents(episode) for episode in here]
    assert [episode.reward for episode in there] == [None] * 3 + [episode.reward for episode in here[3:]]
    assert [episode.id for episode in there] == [episode.id for episode in here]
    assert there.metrics.turns == here.metrics.turns == 6 * 4
    assert_proved(tmp_path)
    assert_same(tmp_path, there)
    assert len({path.name.partition("-")[0] for path in (tmp_path / "ledger").iterdir()}) == 2
    changed = {"allow_changed": ["reward"]}
    scored = await run(build, QUESTIONS, engine, tmp_path, workers=1, reward=reward, **changed)
    assert [episode.reward for episode in scored] == [episode.reward for episode in here]
    assert all(episode.restored for episode in scored) and scored.metrics.turns == 0
    assert_proved(tmp_path)
    again = await run(build, QUESTIONS, engine, tmp_path, reward=reward, **changed)
    assert summaries(again) == summaries(scored) == summaries(here) and again.metrics.restored == 6
    assert not engine.calls  # this process made no engine call


def locked_speaker() -> Speaker:
    """Make a model that cannot be pickled."""
    made = Speaker(lambda messages, before: f"{last_text(messages)} {os.getpid()}")
    made.config["lock"] = threading.Lock()
    return made


async def test_other_models_are_made_by_their_function_in_every_worker(tmp_path: Path) -> None:
    made = await run(
        build_with_user, QUESTIONS, PromptEngine(echo), tmp_path, workers=2, models={"user": locked_speaker}
    )
    assert [episode.end_reason for episode in made] == [EndReason.ANSWERED] * 6
    assert_proved(tmp_path)
    assert_same(tmp_path, made)
    said = [str(event.data["answer"]) for record in Ledger(tmp_path).episodes() for event in record.other_models]
    assert len(said) == 6 * 3 and not any(str(os.getpid()) in one for one in said)


async def test_engine_outage_of_workers_is_in_metrics() -> None:
    seen = asyncio.Event()

    def on_metrics(metrics: RunMetrics) -> None:
        if metrics.unreachable_seconds > 0.5:
            seen.set()

    async with SGLangClient(f"http://127.0.0.1:{free_port()}", first_contact=300) as unreachable:
        options: Any = {"preflight": False, "on_metrics": on_metrics, "metrics_interval": 0.2}
        playing = rollout(
            build, QUESTIONS, client=unreachable, tokenizer=tokenizer(FAMILY), workers=1, options=RunOptions(**options)
        )
        work = asyncio.ensure_future(playing)
        waiting = asyncio.ensure_future(seen.wait())
        await asyncio.wait({work, waiting}, timeout=120, return_when=asyncio.FIRST_COMPLETED)
        assert seen.is_set() and not work.done()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.soak)])
async def test_episodes_of_dead_worker_continue_on_others(
    tmp_path: Path, how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of a worker that is stopped, which answers nothing."""
    monkeypatch.setattr(ray_pool, "_MAX_SILENCE", 5.0)
    monkeypatch.setattr(ray_pool, "_UNLIMITED", 0.0)
    notes = tmp_path / "notes"

    def noting(task: Task, model: SGLangModel) -> Agent:
        os.environ["NOTES"] = str(notes)
        return plain(model, tools=[note])

    def script(prompt: str, before: int) -> Answer:
        done = last_step(prompt)
        return tool_call("note", number=done + 1) if done < 8 else "the end"

    async def kill() -> int:
        while not notes.exists() or len(notes.read_text().splitlines()) < 30:
            await asyncio.sleep(0.01)
        pid = int(notes.read_text().split()[0])
        os.kill(pid, how)
        return pid

    killer = asyncio.ensure_future(kill())
    result = await run(noting, QUESTIONS, PromptEngine(script), tmp_path / "run", workers=2, samples_per_task=2)
    pid = await killer
    assert [episode.end_reason for episode in result] == [EndReason.ANSWERED] * 12
    assert result.metrics.total == 12
    assert {len(episode.tree) for episode in result} == {9}
    assert any(episode.epoch for episode in result)
    assert_proved(tmp_path / "run")
    assert_same(tmp_path / "run", result)
    lines = [line.split() for line in notes.read_text().splitlines()]
    # Recorded tool calls were not run again; at most those that were running when the worker died.
    assert 96 <= len(lines) <= 96 + 12
    assert {int(line[0]) for line in lines} - {pid}


async def test_a_cancelled_run_does_not_wait_for_a_stopped_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, pools, poll_workers = tmp_path / "notes", list[RayPool](), RayPool._poll_workers

    async def remembered(pool: RayPool) -> None:
        pools.append(pool)
        await poll_workers(pool)

    monkeypatch.setattr(ray_pool, "_CLOSE_SILENCE", 1.0)
    monkeypatch.setattr(RayPool, "_poll_workers", remembered)

    def noting(task: Task, model: SGLangModel) -> Agent:
        os.environ["NOTES"] = str(notes)
        return plain(model, tools=[note])

    engine = PromptEngine(lambda prompt, before: tool_call("note", number=last_step(prompt) + 1))
    work = asyncio.ensure_future(run(noting, QUESTIONS, engine, tmp_path / "run", workers=2))
    while not notes.exists() or not (lines := notes.read_text().splitlines()):
        await asyncio.sleep(0.01)
    os.kill(int(lines[0].split()[0]), signal.SIGSTOP)
    while not any(actor.has_started and actor.silent >= 1.0 for actor in pools[0]._actors):
        await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(work, 30)


async def test_without_ledger_episodes_restart_and_errors_are_data(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    @tool
    async def once(number: int) -> str:
        """End the process, the first time."""
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return f"step {number}"

    def script(prompt: str, before: int) -> Answer:
        done = last_step(prompt)
        return tool_call("once", number=done + 1) if done < 2 else "the end"

    def broken(task: Task, model: SGLangModel) -> Agent:
        if task.prompt == "question 2":
            raise ImportError("no such thing here")
        return plain(model, tools=[once])

    result = await run(broken, QUESTIONS[:3], PromptEngine(script), workers=1, limits=Limits(max_turns=5))
    assert [episode.end_reason for episode in result] == [EndReason.ANSWERED, EndReason.ANSWERED, EndReason.AGENT_ERROR]
    assert [len(episode.tree) for episode in result] == [3, 3, 0]
    assert result[2].failure is not None and "no such thing" in result[2].failure.message


async def test_only_the_episode_that_kills_workers_fails(tmp_path: Path) -> None:
    """Episodes that ran on the same workers are not affected."""

    def script(prompt: str, before: int) -> Answer:
        if "question 1" in asked(prompt):
            return tool_call("deadly", number=1)
        done = last_step(prompt)
        return tool_call("slow_step", number=done + 1) if done < 8 else "the end"

    @tool
    async def slow_step(number: int) -> str:
        """Take a step, slowly."""
        await asyncio.sleep(0.1)
        return f"step {number}"

    result = await run(
        lambda task, model: plain(model, tools=[slow_step, deadly]),
        QUESTIONS[:3],
        PromptEngine(script),
        tmp_path,
        workers=1,
    )
    assert [episode.end_reason.value for episode in result] == ["answered", "agent_error", "answered"]
    assert result[1].failure is not None and result[1].failure.kind == "WorkerDied"
    assert [len(episode.tree) for episode in result] == [9, 1, 9]  # it keeps its recorded turn
    assert max(episode.epoch for episode in result) == 3
    assert_proved(tmp_path)
    assert_same(tmp_path, result)


async def test_remaining_episodes_are_stopped(tmp_path: Path) -> None:
    """Episodes that wait for a tool, and episodes that a worker has not started yet."""

    @tool
    async def endless(number: int) -> str:
        """Wait."""
        await asyncio.sleep(600)
        return ""

    def script(prompt: str, before: int) -> Answer:
        return "the end" if "question 0" in asked(prompt) else tool_call("endless", number=1)

    result = await run(
        lambda task, model: plain(model, tools=[endless]), QUESTIONS[:3], PromptEngine(script), tmp_path, workers=2,
        samples_per_task=20, stop_after_groups=1, min_samples_per_task=1, prefix_warmup=None,
    )  # fmt: skip
    assert [episode.end_reason for episode in result] == [EndReason.ANSWERED]
    stopped = [episode for episode in result.left_over if episode.end_reason is EndReason.NOT_NEEDED]
    assert len(stopped) + sum(episode.end_reason is EndReason.ANSWERED for episode in result.left_over) == 59
    assert len(stopped) >= 40
    assert_proved(tmp_path)
    assert_same(tmp_path, [*result, *result.left_over])


async def test_workers_that_cannot_start_raise(tmp_path: Path) -> None:
    """A module of `build` is missing on the workers, or `build` cannot be pickled."""
    (tmp_path / "only_here.py").write_text("def build(task, model):\n    pass\n")
    sys.path.insert(0, str(tmp_path))
    try:
        only_here = importlib.import_module("only_here")
        with pytest.raises(ConfigurationError, match="only_here"):
            await run(only_here.build, QUESTIONS[:2], PromptEngine(steps(1)), workers=1)
    finally:
        sys.path.remove(str(tmp_path))
    lock = threading.Lock()
    with pytest.raises(ConfigurationError, match="picklable"):
        await run(lambda task, model: lock, QUESTIONS[:2], PromptEngine(steps(1)), workers=1)


async def test_missing_ray_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r"strands-sglang\[ray\]"):
        await run(build, QUESTIONS, PromptEngine(steps(1)), workers=2)


async def test_records_of_dead_worker_are_read_from_its_own_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards of other workers are not opened, also if the episode was first run by one of them."""
    writers = {name: LedgerWriter(tmp_path, worker=name) for name in ("ray0", "ray1", "ray10")}

    def written(name: str, record: EpisodeRecord | None, id: str, events: int) -> None:
        number, head, epoch = (0, None, 0) if record is None else (record.next_number, record.head, record.epoch + 1)
        chain = HashChain(writers[name].write, id, epoch=epoch, number=number, head=head)
        if record is None:
            begin: Any = {"task": Task("q", id=id[:-2]).to_dict(), "sample": 0, "run": "r", "fingerprint": {}}
            chain.append(EventKind.BEGIN, begin)
        else:
            resume: Any = {"from_event": number - 1, "head": record.head.hex(), "pid": 1, "worker": name, "mark": ""}
            chain.append(EventKind.RESUME, resume)
        for one in range(events):
            chain.append(EventKind.TOOL, {"n": one, "x": 0.1}, {"ids": array("i", [one, 70_000])})

    specs = [EpisodeSpec(Task("q", id=f"t{number}"), 0) for number in range(3)]
    written("ray0", None, "t0/0", 3)
    written("ray0", None, "t1/0", 1)
    written("ray10", None, "other/0", 5)
    await writers["ray0"].flushed()
    first = recorded_by(tmp_path, "ray0", specs)
    assert {id: len(record.events) for id, record in first.items()} == {"t0/0": 4, "t1/0": 2}
    specs[0].record = first["t0/0"]
    written("ray1", first["t0/0"], "t0/0", 2)
    written("ray1", None, "t2/0", 0)
    for writer in writers.values():
        writer.close()

    opened: list[str] = []

    def reading(path: Path, **options: Any) -> Any:
        opened.append(path.name)
        return ShardReader(path, **options)

    monkeypatch.setattr(ray_pool, "ShardReader", reading)
    second = recorded_by(tmp_path, "ray1", [specs[0], specs[2]])
    assert [name.partition("-")[0] for name in opened] == ["ray1"]
    ledger = Ledger(tmp_path)
    for id in ("t0/0", "t2/0"):
        assert second[id] == ledger.episode(id)
    assert second["t0/0"].epoch == 1 and len(second["t0/0"].events) == 7 and not second["t0/0"].problems
    assert recorded_by(tmp_path, "ray1", [specs[0]], opened) == {}

    # Events that are encoded to other bytes today are read from disk as they are; the record is not changed.
    changed = replace(first["t0/0"], events=tuple(replace(event) for event in first["t0/0"].events))
    changed.events[1].data["n"] = 99
    specs[0].record = changed
    digests = [event.digest for event in changed.events]
    assert recorded_by(tmp_path, "ray1", [specs[0]])["t0/0"] == ledger.episode("t0/0")
    assert [event.digest for event in changed.events] == digests


async def test_many_workers_are_polled_in_turn_and_a_silent_one_delays_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_pool, "_POLL_INTERVAL", 0.01)
    monkeypatch.setattr(ray_pool, "_MAX_POLLS", 3)
    polled, silent = [0] * 7, asyncio.Event()

    class Handle:
        def __init__(self, number: int) -> None:
            self.poll, self.number = self, number

        async def remote(self) -> tuple[dict[str, Any], float]:
            polled[self.number] += 1
            if self.number == 2:
                await silent.wait()
            return {}, float(self.number)

    pool = object.__new__(ray_pool.RayPool)
    pool._ray, pool._on_turn, pool._solo_busy = importlib.import_module("ray"), {}, set()
    pool._actors = [ray_pool._Actor(Handle(number), f"ray{number}") for number in range(7)]
    polling = asyncio.ensure_future(pool._poll_workers())
    while min(polled[:2] + polled[3:]) < 3:
        await asyncio.sleep(0.01)
    polling.cancel()
    assert polled[2] == 1 and max(polled) <= min(polled[:2] + polled[3:]) + 1
    assert pool.unreachable_seconds() == 6.0
    silent.set()


async def test_a_worker_that_never_starts_is_killed_once_another_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_pool, "_POLL_INTERVAL", 0.01)
    monkeypatch.setattr(ray_pool, "_START_SILENCE", 0.1)
    killed, answers = list[Any](), asyncio.Event()

    class Handle:
        def __init__(self, waits: bool) -> None:
            self.poll, self.waits = self, waits

        async def remote(self) -> tuple[dict[str, Any], float]:
            await (asyncio.Event() if self.waits else answers).wait()
            return {}, 0.0

    pool = object.__new__(ray_pool.RayPool)
    pool._ray, pool._on_turn, pool._solo_busy = SimpleNamespace(kill=killed.append), {}, set()
    pool._actors = [ray_pool._Actor(Handle(number > 0), f"ray{number}") for number in range(3)]
    stuck, idle = pool._actors[1:]
    stuck.specs["t/0"] = EpisodeSpec(Task("t"), 0)
    polling = asyncio.ensure_future(pool._poll_workers())
    await asyncio.sleep(0.3)  # starting may take what the cluster needs
    assert stuck.silent > 0.1 and not killed
    answers.set()
    while not killed:
        await asyncio.sleep(0.01)
    polling.cancel()
    assert killed == [stuck.handle] and not idle.has_started and pool._actors[0].has_started
