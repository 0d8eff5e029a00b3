"""`rollout` as a whole: failed episodes are data; groups, arguments, callbacks, cancellation, and disk errors."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from strands import tool

from strands_sglang import SGLangModel
from strands_sglang.errors import ConfigurationError, EngineUnavailableError, LedgerError
from strands_sglang.ledger import shard as shard_module
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.seal import read_seal
from strands_sglang.runs import EndReason, Episode, Limits, Task, rewards_differ, rollout
from strands_sglang.runs.workers import local
from support.rollout.agent_kinds import blocking, build, plain, step
from support.rollout.scripts import (
    PromptEngine,
    asked,
    assert_proved,
    assert_same,
    last_step,
    run,
    steps,
    summaries,
)
from support.scripted_engine import Answer, Reply, assert_exact, tool_call


@tool
async def slow(number: int) -> str:
    """Hang."""
    await asyncio.sleep(600)
    return "unused"


FREE = threading.Event()


@tool
def stuck(number: int) -> str:
    """Hang in a thread."""
    FREE.wait(30)
    return "unused"


def misbehaving(task: Task, model: SGLangModel) -> Any:
    """Return the agent of a task; it fails in the way that the task names."""
    what = task.data["bad"]
    agent = plain(model, tools=[step, slow, stuck])
    if what == "build":
        raise ValueError("no agent")

    async def ignores_cancel() -> None:
        await agent.invoke_async("first")
        until = time.monotonic() + 26  # longer than the time limit
        while time.monotonic() < until:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                await agent.invoke_async("after the cancellation")

    async def hangs() -> None:
        await agent.invoke_async("first")
        await asyncio.sleep(600)

    return {"ignores cancel": ignores_cancel, "hangs": hangs}.get(what, agent)


def failing_engine(prompt: str, before: int) -> Answer:
    """Script of the engine; the first word of the question names the way to fail."""
    what = asked(prompt).partition(" ")[0]
    done = prompt.count("<tool_response>")
    if what == "unavailable" and done:
        return EngineUnavailableError("away")
    if what == "endless":
        return Reply(hangs=True)
    if what in ("slow", "stuck") and done == 1:
        return tool_call(what, number=1)
    return tool_call("step", number=done + 1) if done < 2 else "the end"


def failing_reward(episode: Episode) -> float:
    what = episode.task.data["bad"]
    if what == "reward":
        raise ZeroDivisionError("in a reward")
    if what == "long reward":
        FREE.wait(30)
    return 1.0


BAD = {
    "build": EndReason.AGENT_ERROR, "ignores cancel": EndReason.TIMEOUT, "hangs": EndReason.TIMEOUT,
    "unavailable": EndReason.ENGINE_ERROR, "endless": EndReason.TIMEOUT, "slow": EndReason.ANSWERED,
    "stuck": EndReason.ANSWERED, "reward": EndReason.ANSWERED, "long reward": EndReason.ANSWERED,
}  # fmt: skip
"""Expected end reason for each way to fail; other tests have every error of an agent, a tool and a reward."""
TURNS = {"build": 0, "unavailable": 1, "endless": 0}
"""Expected number of turns, for episodes that do not complete all three."""


@pytest.mark.timing
async def test_failed_episodes_are_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run concurrently with good ones, and never block the event loop."""
    monkeypatch.setattr(local, "_GRACE", 0.5)
    FREE.clear()
    # The template is proved once per process, which takes a second or more and is not measured here.
    await run(
        misbehaving, [Task("good", data={"bad": "good"}, id="warm")], PromptEngine(failing_engine), tmp_path / "warm"
    )
    tasks = []
    for number, what in enumerate([*BAD, *["good"] * 40]):
        tasks.append(Task(f"{what} {number}", data={"bad": what}, id=f"{what.replace(' ', '-')}-{number}"))
    engine = PromptEngine(failing_engine)
    ended: dict[str, float] = {}
    slowest = 0.0

    async def watch() -> None:
        nonlocal slowest
        while True:
            before = time.thread_time()  # CPU time of this thread: other processes do not count
            await asyncio.sleep(0.01)
            slowest = max(slowest, time.thread_time() - before)

    watching = asyncio.ensure_future(watch())
    began = time.monotonic()
    limits = Limits(max_turns=10, tool_timeout=0.3, episode_timeout=20)  # good ones take seconds on a busy machine
    done = await run(
        misbehaving, tasks, engine, tmp_path / "run", limits=limits, reward=failing_reward, reward_timeout=0.5,
        concurrency=200, on_episode=lambda episode: ended.update({episode.id: time.monotonic() - began}),
    )  # fmt: skip
    watching.cancel()
    FREE.set()
    assert len(done) == len(tasks) == len(ended)
    for episode in done:
        what = episode.task.data["bad"]
        assert episode.end_reason is BAD.get(what, EndReason.ANSWERED), (what, episode.failure)
        assert len(episode.tree) == TURNS.get(what, 3), what
        assert (episode.failure is None) == (not episode.end_reason.failed)
        if "reward" in what:
            assert episode.reward is None and episode.reward_detail.error
        elif episode.end_reason is EndReason.ANSWERED:
            assert episode.reward == 1.0 and episode.reward_detail.error is None
    # Good episodes did not wait for those that time out.
    slow = min(ended[episode.id] for episode in done if episode.end_reason is EndReason.TIMEOUT)
    assert max(ended[episode.id] for episode in done if episode.task.data["bad"] == "good") < slow
    print(f"longest time the event loop was blocked: {slowest:.2f} s")
    assert slowest < 1
    assert done.metrics.failures == sum(ended.failed for ended in BAD.values())
    assert_exact(engine, trees=[episode.tree for episode in done])
    assert_proved(tmp_path / "run")
    assert_same(tmp_path / "run", done)
    again = await run(misbehaving, tasks, PromptEngine(failing_engine), tmp_path / "run", limits=limits)
    # Failed episodes are resumed and fail again; a failed call is repeated.
    assert summaries(again) == summaries(done)
    assert again.metrics.restored == len(tasks) - done.metrics.failures
    assert_proved(tmp_path / "run")
    await asyncio.sleep(0)


def test_hanging_threads_do_not_block_interpreter_exit(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys, threading
sys.path[:0] = {[path for path in sys.path if path.endswith("tests")]!r}
from strands import tool
from support.rollout.agent_kinds import plain
from support.rollout.scripts import PromptEngine, run
from support.scripted_engine import tool_call
from strands_sglang.runs import Limits

@tool
def stuck(number: int) -> str:
    '''Hang in a thread.

    Args:
        number: Any.
    '''
    threading.Event().wait()

def script(prompt, before):
    return "the end" if "<tool_response>" in prompt else tool_call("stuck", number=1)

async def main():
    done = await run(
        lambda task, model: plain(model, tools=[stuck]), [f"q{{n}}" for n in range(20)], PromptEngine(script),
        {str(tmp_path)!r}, limits=Limits(tool_timeout=0.2), reward=lambda episode: threading.Event().wait(),
        reward_timeout=0.2, stop_if_first_fail=None,
    )
    print(len(done), done.metrics.tool_timeouts, done.metrics.reward_errors, flush=True)

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert ended.stdout == "20 20 20\n" and ended.returncode == 0, ended.stderr[-2000:]
    assert_proved(tmp_path)


def gated() -> tuple[PromptEngine, asyncio.Event, list[str]]:
    """Return an engine that answers after an event, the event, and the questions it was asked."""
    running: list[str] = []
    first = asyncio.Event()

    async def wait() -> None:
        await first.wait()

    def script(prompt: str, before: int) -> Answer:
        running.append(asked(prompt))
        return Reply("the end", before=wait)

    return PromptEngine(script), first, running


async def test_siblings_wait_for_first_turn_of_first_sample() -> None:
    """After that turn, the common prompt is in the engine's prefix cache."""
    engine, first, running = gated()
    tasks = [Task(f"question {number}") for number in range(3)]
    work = asyncio.ensure_future(run(build, tasks, engine, samples_per_task=4, prefix_warmup=30))
    while len(running) < 3:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    assert sorted(running) == [f"question {number}" for number in range(3)]
    first.set()
    done = await work
    assert len(done) == 12 and Counter(running) == {f"question {number}": 4 for number in range(3)}
    together = {(call.asked["routing_key"], engine.decode(call.ids)) for call in engine.calls}
    assert len(together) == 3, "a router would send samples of one task to different workers"


@pytest.mark.parametrize("seconds", [None, 0.1])
async def test_siblings_start_after_prefix_warmup(seconds: float | None) -> None:
    engine, first, running = gated()
    work = asyncio.ensure_future(run(build, ["question"], engine, samples_per_task=4, prefix_warmup=seconds))
    while len(running) < 4:
        await asyncio.sleep(0.01)
    first.set()
    assert len(await work) == 4


async def test_siblings_start_if_first_sample_fails() -> None:
    def broken(task: Task, model: SGLangModel) -> Any:
        raise ValueError("no agent")

    done = await run(broken, ["question"], PromptEngine(steps(1)), samples_per_task=4, prefix_warmup=60)
    assert [episode.end_reason for episode in done] == [EndReason.AGENT_ERROR] * 4
    assert done.metrics.seconds < 30


async def test_stop_after_groups_of_endless_tasks(tmp_path: Path) -> None:
    """Tasks come from an endless generator; groups whose rewards are all equal are dropped."""
    given: list[str] = []

    def endless() -> Iterator[Task]:
        number = 0
        while True:
            given.append(f"t{number}")
            yield Task(f"question {number}", id=f"t{number}")
            number += 1

    def reward(episode: Episode) -> float:
        number = int(episode.task.id[1:])
        return float(episode.sample % 2) if number % 3 == 0 else 1.0

    engine = PromptEngine(steps(1))
    done = await run(
        build, endless(), engine, tmp_path, samples_per_task=4, reward=reward, filters=[rewards_differ],
        stop_after_groups=4, concurrency=16,
    )  # fmt: skip
    assert [group.task.id for group in done.groups] == ["t0", "t3", "t6", "t9"]
    assert all(len(group.episodes) == 4 and rewards_differ(group) for group in done.groups)
    assert [episode.sample for episode in done] == [0, 1, 2, 3] * 4
    assert len(given) < 30
    assert (done.metrics.groups_kept, len(done.groups)) == (4, 4)
    complete = [group.task.id for group in done.dropped if len(group.episodes) == 4]
    assert {"t1", "t2", "t4", "t5"} <= set(complete) and "t3" not in complete
    # Every episode that started has a recorded end, including stopped ones.
    records = {record.id: record for record in Ledger(tmp_path).episodes()}
    known = [*done, *done.left_over, *(episode for group in done.dropped for episode in group.episodes)]
    assert sorted(records) == sorted(episode.id for episode in known)
    assert all(record.finished for record in records.values())
    assert_proved(tmp_path)
    assert_same(tmp_path, known)
    assert len(asyncio.all_tasks()) == 1


async def test_repeated_run_keeps_the_same_groups(tmp_path: Path) -> None:
    """Groups completed by the previous run count first, whatever the order of tasks; nothing is sampled again."""

    def script(prompt: str, before: int) -> Answer:
        late = any(f"question {number} " in prompt for number in range(4))
        return Reply("the end", before=(lambda: asyncio.sleep(5)) if late else None)

    given = [Task(f"question {number} ?", id=f"t{number}") for number in range(8)]
    criteria: dict[str, Any] = {"samples_per_task": 2, "stop_after_groups": 3, "min_samples_per_task": 2}
    first = await run(build, given, PromptEngine(script), tmp_path, **criteria)
    assert len(first.groups) == 3 and all(int(group.task.id[1:]) >= 4 for group in first.groups)
    engine = PromptEngine(steps(1))
    again = await run(build, given, engine, tmp_path, **criteria)
    assert [group.task.id for group in again.groups] == [group.task.id for group in first.groups]
    assert all(episode.restored for episode in again) and not engine.calls


async def test_min_samples_per_task_stops_slow_episodes(tmp_path: Path) -> None:
    def slow(task: Task, model: SGLangModel) -> Any:
        agent = plain(model)
        episode = model.current_episode.id

        async def work() -> str:
            result = await agent.invoke_async("go")
            if episode.endswith(("/1", "/3")):
                await asyncio.sleep(600)
            return str(result)

        return work

    engine = PromptEngine(steps(1))
    done = await run(
        slow, [Task("a", id="a"), Task("b", id="b")], engine, tmp_path, samples_per_task=4, min_samples_per_task=2,
        reward=lambda episode: 1.0,
    )  # fmt: skip
    assert [episode.id for episode in done] == ["a/0", "a/2", "b/0", "b/2"]
    assert sorted(episode.id for episode in done.left_over) == ["a/1", "a/3", "b/1", "b/3"]
    for episode in done.left_over:
        assert episode.end_reason is EndReason.NOT_NEEDED and episode.reward is None and len(episode.tree) == 2
        assert Ledger(tmp_path).episode(episode.id).finished
    assert_proved(tmp_path)
    assert_same(tmp_path, [*done, *done.left_over])
    # A repeated run restores them; without min_samples_per_task, the stopped ones are resumed.
    tasks = [Task("a", id="a"), Task("b", id="b")]
    again = await run(
        slow, tasks, PromptEngine(steps(1)), tmp_path, samples_per_task=4, min_samples_per_task=2,
        allow_changed=["agent", "reward"],
    )  # fmt: skip
    assert sorted(episode.id for episode in again.left_over) == ["a/1", "a/3", "b/1", "b/3"]
    assert [episode.id for episode in again] == [episode.id for episode in done]
    engine = PromptEngine(steps(1))
    whole = await run(
        lambda task, model: lambda: plain(model).invoke_async("go"), tasks, engine, tmp_path, samples_per_task=4,
        allow_changed=["agent", "reward"],
    )  # fmt: skip
    assert len(whole) == 8 and not whole.left_over and not engine.calls
    assert_proved(tmp_path)
    assert len(asyncio.all_tasks()) == 1


async def test_tasks_of_every_kind_and_duplicate_ids(tmp_path: Path) -> None:
    tasks = ["question", {"prompt": "other", "answer": 3, "level": "hard"}, Task([{"text": "blocks"}], id="b")]
    done = await run(build, tasks, PromptEngine(steps(1)), tmp_path / "one")
    assert [episode.task.answer for episode in done] == [None, 3, None]
    assert done[1].task.data == {"level": "hard"} and done[2].id == "b/0"
    assert done[0].messages[0]["content"] == [{"text": "question"}] and done[2].messages[0]["content"][0]["text"]
    with pytest.raises(ConfigurationError, match="task ids must be unique"):
        await run(build, ["question", "question"], PromptEngine(steps(1)), tmp_path / "two")
    with pytest.raises(ConfigurationError, match="task ids must be unique"):
        await run(build, [Task("a", id="x"), Task("b", id="x")], PromptEngine(steps(1)), tmp_path / "three")


async def test_task_generator_that_raises_stops_run_which_can_be_resumed(tmp_path: Path) -> None:
    def broken() -> Iterator[str]:
        yield "question 0"
        yield "question 1"
        raise OSError("no more tasks")

    def endless(task: Task, model: SGLangModel) -> Any:
        agent = plain(model)

        async def work() -> None:
            await agent.invoke_async("go")
            await asyncio.sleep(600)

        return work

    with pytest.raises(OSError, match="no more tasks"):
        await run(endless, broken(), PromptEngine(steps(1)), tmp_path, concurrency=8)
    assert len(asyncio.all_tasks()) == 1
    done = await run(build, ["question 0", "question 1"], PromptEngine(steps(1)), tmp_path)
    assert len(done) == 2
    assert_proved(tmp_path)


async def test_invalid_arguments_raise() -> None:
    engine = PromptEngine(steps(1))
    wrong: list[dict[str, Any]] = [
        {"samples_per_task": 0}, {"concurrency": 0}, {"concurrency": True}, {"stop_after_groups": 0},
        {"min_samples_per_task": -1}, {"filters": ["no function"]}, {"reward": 3}, {"base_url": "http://127.0.0.1:1"},
        {"progress": "loud"}, {"no_such_setting": 1},
    ]  # fmt: skip
    for settings in wrong:
        with pytest.raises((ConfigurationError, ValueError, TypeError)):
            await run(build, ["question"], engine, **settings)
    with pytest.raises(ConfigurationError, match="either client"):
        await rollout(build, ["question"], tokenizer=engine.tokenizer)
    assert not engine.calls and len(asyncio.all_tasks()) == 1


async def test_without_ledger_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = await run(build, ["question"], PromptEngine(steps(2)), directory=None)
    assert done[0].end_reason is EndReason.ANSWERED and done.directory is None
    assert not list(tmp_path.iterdir())


async def test_concurrency_is_used_and_not_exceeded() -> None:
    at_once = most = 0

    def counting(task: Task, model: SGLangModel) -> Any:
        async def work() -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.01)
            at_once -= 1

        return work

    done = await run(counting, [f"q{n}" for n in range(20)], PromptEngine(steps(1)), samples_per_task=2, concurrency=7)
    assert len(done) == 40 and most == 7


async def test_synchronous_tools_run_concurrently() -> None:
    """These tools wait for each other; the event loop's default executor has too few threads for them."""
    together = threading.Barrier(60, timeout=20)

    @tool
    def meet(number: int) -> str:
        """Wait for all other calls."""
        together.wait()
        return "step 1"

    def script(prompt: str, before: int) -> Answer:
        return "the end" if last_step(prompt) else tool_call("meet", number=1)

    def meeting(task: Task, model: SGLangModel) -> Any:
        return plain(model, tools=[meet, blocking])

    done = await run(meeting, [f"q{n}" for n in range(60)], PromptEngine(script), concurrency=60)
    assert {episode.text for episode in done} == {"the end"} and done.metrics.tool_errors == 0


async def test_on_episode_and_on_metrics(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reported: list[str] = []
    numbers: list[Any] = []

    async def on_episode(episode: Episode) -> None:
        # Its end is already recorded.
        assert Ledger(tmp_path).episode(episode.id).finished
        await asyncio.sleep(0.01)
        reported.append(episode.id)

    done = await run(
        build, ["a", "b"], PromptEngine(steps(1)), tmp_path, samples_per_task=2, on_episode=on_episode,
        on_metrics=numbers.append, metrics_interval=0.001,
    )  # fmt: skip
    assert sorted(reported) == sorted(episode.id for episode in done)
    assert numbers[-1].done == 4

    def broken(metrics: Any) -> None:
        raise ValueError("cannot count")

    with caplog.at_level(logging.WARNING):
        done = await run(build, ["a"], PromptEngine(steps(1)), on_metrics=broken, metrics_interval=0.001)
    assert len(done) == 1 and sum("on_metrics" in record.message for record in caplog.records) == 1


async def test_on_episode_that_raises_stops_run(tmp_path: Path) -> None:
    """Nothing that was recorded is lost."""

    def broken(episode: Episode) -> None:
        raise LookupError("error of the caller")

    tasks = [f"question {number}" for number in range(5)]
    with pytest.raises(LookupError, match="error of the caller"):
        await run(build, tasks, PromptEngine(steps(2)), tmp_path, on_episode=broken)
    assert len(asyncio.all_tasks()) == 1 and read_seal(tmp_path) is None
    engine = PromptEngine(steps(2))
    done = await run(build, tasks, engine, tmp_path)
    assert len(done) == 5 and len(engine.calls) < 15
    assert_proved(tmp_path)


@pytest.mark.parametrize("when", ["engine", "tool", "thread", "reward", "callback"])
async def test_cancelled_run_leaves_nothing_running_and_can_be_resumed(when: str, tmp_path: Path) -> None:
    FREE.clear()
    reached = asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool
    async def waits(number: int) -> str:
        """Wait."""
        reached.set()
        while not FREE.is_set():
            await asyncio.sleep(0.01)
        return ""

    @tool
    def waits_in_a_thread(number: int) -> str:
        """Wait in a thread."""
        loop.call_soon_threadsafe(reached.set)
        FREE.wait(30)
        return ""

    async def forever() -> None:
        reached.set()
        await asyncio.sleep(600)

    def script(prompt: str, before: int) -> Answer:
        if last_step(prompt) == 2 and when in ("engine", "tool", "thread"):
            name = {"tool": "waits", "thread": "waits_in_a_thread"}.get(when)
            return Reply("the end", before=forever) if name is None else tool_call(name, number=1)
        return steps(2)(prompt, before)

    async def reward(episode: Episode) -> float:
        if when == "reward":
            await forever()
        return 1.0

    async def on_episode(episode: Episode) -> None:
        if when == "callback":
            await forever()

    def waiting(task: Task, model: SGLangModel) -> Any:
        return plain(model, tools=[step, waits, waits_in_a_thread])

    tasks = [f"question {number}" for number in range(4)]
    work = asyncio.ensure_future(
        run(waiting, tasks, PromptEngine(script), tmp_path, reward=reward, on_episode=on_episode)
    )
    await asyncio.wait_for(reached.wait(), 20)
    await asyncio.sleep(0.1)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1
    FREE.set()
    turns = sum(len(record.calls) for record in Ledger(tmp_path).episodes())
    assert turns >= 4
    engine = PromptEngine(steps(2))
    done = await run(waiting, tasks, engine, tmp_path, reward=lambda episode: 1.0, allow_changed=["reward"])
    assert [episode.reward for episode in done] == [1.0] * 4
    if when not in ("tool", "thread"):  # there the recorded answer differs from the current one
        assert len(engine.calls) == 12 - turns
    assert_proved(tmp_path)


@pytest.mark.timing
async def test_cancel_twice_while_agents_ignore_cancellation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_GRACE", 0.5)

    def ignores_cancel(task: Task, model: SGLangModel) -> Any:
        async def work() -> None:
            until = time.monotonic() + 1
            while time.monotonic() < until:
                try:
                    await asyncio.sleep(0.02)
                except asyncio.CancelledError:
                    pass

        return work

    work = asyncio.ensure_future(run(ignores_cancel, ["a", "b"], PromptEngine(steps(1)), tmp_path))
    await asyncio.sleep(0.3)
    began = time.monotonic()
    work.cancel()
    await asyncio.sleep(0.1)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert time.monotonic() - began < 1
    await asyncio.sleep(1)
    assert len(asyncio.all_tasks()) == 1
    assert not any(record.finished for record in Ledger(tmp_path).episodes())


@pytest.mark.parametrize("good", [0, 1, 3])
async def test_full_disk_raises_and_run_can_be_resumed(
    good: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run raises the error of the disk; every reported episode has a recorded end."""
    written = 0
    write = os.write

    class Full:
        """The `os` of a module whose disk is full after a few writes."""

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def write(self, file: int, data: Any) -> int:
            nonlocal written
            written += 1
            if written > good:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(file, data)

    reported: list[str] = []
    tasks = [Task(f"question {number}", id=f"t{number}") for number in range(6)]
    with monkeypatch.context() as patched:
        patched.setattr(shard_module, "os", Full())
        with pytest.raises(LedgerError, match="No space left"):
            await run(
                build, tasks, PromptEngine(steps(3)), tmp_path, concurrency=2, samples_per_task=2,
                on_episode=lambda episode: reported.append(episode.id),
            )  # fmt: skip
    assert len(asyncio.all_tasks()) == 1
    finished = {record.id for record in Ledger(tmp_path).episodes() if record.finished}
    assert set(reported) <= finished
    # After space was freed, the run continues.
    done = await run(build, tasks, PromptEngine(steps(3)), tmp_path, samples_per_task=2)
    assert len(done) == 12 and done.metrics.restored == len(finished)
    assert_proved(tmp_path)


async def test_unwritable_directory_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError, match="got the file"):
        await run(build, ["question"], PromptEngine(steps(1)), tmp_path / "file")
    with pytest.raises(LedgerError, match="cannot be written"):
        await run(build, ["question"], PromptEngine(steps(1)), tmp_path / "file" / "below")
    (tmp_path / "run" / "ledger").mkdir(parents=True)
    (tmp_path / "run" / "ledger").rmdir()
    (tmp_path / "run" / "ledger").write_text("in the way")
    with pytest.raises(LedgerError, match="cannot be written"):
        await run(build, ["question"], PromptEngine(steps(1)), tmp_path / "run")
    assert len(asyncio.all_tasks()) == 1
