"""Process settings that a run changes and restores: tool threads, garbage collection, limit of open files."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import signal
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from strands_sglang import SGLangModel
from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import EndReason, Limits, Task, rollout_sync
from strands_sglang.runs.workers import process_tuning
from strands_sglang.runs.workers.process_tuning import ToolThreads, check_open_files, infrequent_gc, tool_threads
from strands_sglang.runs.workers.ray_pool import RayWorker
from strands_sglang.runs.workers.spec import RunSpec
from support.rollout.agent_kinds import plain
from support.rollout.scripts import PromptEngine, run, steps


def test_submit_returns_results_and_errors_and_keeps_context() -> None:
    pool = ToolThreads()
    mine: contextvars.ContextVar[str] = contextvars.ContextVar("mine", default="unset")
    mine.set("set")
    assert pool.submit(contextvars.copy_context().run, mine.get).result(5) == "set"
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 / 0).result(5)
    with pytest.raises(SystemExit):
        pool.submit(sys.exit, 3).result(5)
    assert pool.submit(pow, 2, exp=5).result(5) == 32


def test_hanging_tools_occupy_one_thread_each() -> None:
    pool, free = ToolThreads(50), threading.Event()
    hung = [pool.submit(free.wait, 60) for _ in range(40)]
    began = time.monotonic()
    assert [pool.submit(pow, 2, number).result(5) for number in range(100)] == [2**number for number in range(100)]
    assert time.monotonic() - began < 10
    free.set()
    assert all(one.result(5) for one in hung)


def test_more_calls_than_threads_are_all_run() -> None:
    pool, lock = ToolThreads(4), threading.Lock()
    at_once = most = 0

    def work(number: int) -> int:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.002)
        with lock:
            at_once -= 1
        return number

    assert [one.result(10) for one in [pool.submit(work, n) for n in range(100)]] == list(range(100))
    assert most == 4


def test_idle_threads_end_and_new_calls_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong count of free threads would leave a call without a thread forever."""
    monkeypatch.setattr(process_tuning, "_IDLE_SECONDS", 0.05)
    others = set(threading.enumerate())
    for _ in range(3):
        pool = ToolThreads(3)
        for _ in range(3):
            futures: list[Future[Any]] = [pool.submit(time.sleep, 0.001) for _ in range(40)]
            for future in futures:
                future.result(5)
            until = time.monotonic() + 10
            while set(threading.enumerate()) - others and time.monotonic() < until:
                time.sleep(0.02)
            assert not set(threading.enumerate()) - others
        assert pool.submit(pow, 2, 2).result(5) == 4


async def test_call_cancelled_before_it_starts_is_not_run() -> None:
    pool, free = ToolThreads(1), threading.Event()
    ran: list[int] = []
    first = pool.submit(free.wait, 60)
    second = pool.submit(ran.append, 1)
    assert second.cancel()
    free.set()
    assert first.result(5) and pool.submit(pow, 2, 2).result(5) == 4
    assert not ran


def executor() -> Any:
    return getattr(asyncio.get_running_loop(), "_default_executor", None)


@pytest.mark.parametrize("ending", ["return", "error", "SystemExit", "KeyboardInterrupt", "cancellation"])
async def test_executor_and_collector_are_restored_after_any_end(ending: str) -> None:
    before = executor()
    errors = {"error": ZeroDivisionError(), "SystemExit": SystemExit(), "KeyboardInterrupt": KeyboardInterrupt()}

    async def work() -> None:
        with tool_threads(64), infrequent_gc():
            assert isinstance(executor(), ToolThreads) and not gc.isenabled()
            if ending == "cancellation":
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            if ending in errors:
                raise errors[ending]

    if ending == "cancellation":
        task = asyncio.ensure_future(work())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    elif ending == "return":
        await work()
    else:
        with pytest.raises(type(errors[ending])):
            await work()
    assert executor() is before and gc.isenabled() and not process_tuning._gc_users and not process_tuning._by_loop


async def test_overlapping_runs_restore_when_the_last_one_ends() -> None:
    before, gates = executor(), [asyncio.Event() for _ in range(3)]

    async def work(gate: asyncio.Event) -> None:
        with tool_threads(64), infrequent_gc():
            await gate.wait()

    runs = [asyncio.ensure_future(work(gate)) for gate in gates]
    await asyncio.sleep(0)
    ours = executor()
    for number in (0, 2, 1):  # neither in the order they began nor in the opposite one
        assert executor() is ours and not gc.isenabled()
        gates[number].set()
        await runs[number]
    assert executor() is before and gc.isenabled()


def test_runs_on_several_event_loops_share_the_collector() -> None:
    inside, free = threading.Barrier(3), threading.Event()
    seen: list[Any] = []

    async def work() -> None:
        with tool_threads(64), infrequent_gc():
            seen.append(executor())
            inside.wait(10)
            while not free.is_set():
                await asyncio.sleep(0.005)
        assert executor() is None

    threads = [threading.Thread(target=asyncio.run, args=(work(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(10)
    assert not gc.isenabled()
    free.set()
    for thread in threads:
        thread.join(10)
    assert gc.isenabled() and seen[0] is not seen[1]


async def test_executor_set_meanwhile_by_user_stays() -> None:
    loop, own = asyncio.get_running_loop(), ToolThreads(3)
    with tool_threads(64):
        loop.set_default_executor(own)
    assert executor() is own


def test_without_event_loop_nothing_is_changed() -> None:
    for context in (infrequent_gc(), tool_threads(64)):
        with pytest.raises(RuntimeError), context:
            pass
    assert gc.isenabled() and not process_tuning._gc_users and not process_tuning._by_loop


class Cycle:
    """A reference cycle: only the collector can free it."""

    def __init__(self) -> None:
        self.me = self


async def test_young_objects_are_collected() -> None:
    assert gc.isenabled()
    with infrequent_gc():
        assert not gc.isenabled()
        with infrequent_gc():
            cycle = weakref.ref(Cycle())
        assert not gc.isenabled()
        await asyncio.sleep(0.2)
        assert cycle() is None
    assert gc.isenabled()


async def test_disabled_collector_stays_disabled() -> None:
    gc.disable()
    try:
        with infrequent_gc():
            cycle = weakref.ref(Cycle())
            await asyncio.sleep(0.15)
            assert cycle() is not None
        assert not gc.isenabled()
    finally:
        gc.enable()


def recording_build(seen: list[tuple[bool, bool]]) -> Any:
    """Return a `build` that records whether executor and collector of the process are tuned."""

    def build(task: Task, model: SGLangModel) -> Any:
        seen.append((isinstance(executor(), ToolThreads), not gc.isenabled()))
        return plain(model)

    return build


@pytest.mark.parametrize("tuned", [True, False])
async def test_run_tunes_process_only_with_tune_runtime(tuned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[bool] = []
    monkeypatch.setattr(
        sys.modules["strands_sglang.runs.runner"],
        "check_open_files",
        lambda connections, *, raise_limit: raised.append(raise_limit),
    )
    seen: list[tuple[bool, bool]] = []
    before = executor()
    episodes = await run(recording_build(seen), ["go"], PromptEngine(steps(1)), tune_runtime=tuned)
    assert [episode.end_reason for episode in episodes] == [EndReason.ANSWERED]
    assert seen == [(tuned, tuned)] and raised == [tuned]
    assert executor() is before and gc.isenabled()


async def test_tune_runtime_must_be_bool() -> None:
    with pytest.raises(ConfigurationError, match="tune_runtime must be True or False, got 'no'"):
        await run(recording_build([]), ["go"], PromptEngine(steps(1)), tune_runtime="no")


async def test_run_that_cannot_start_restores_process(tmp_path: Path) -> None:
    before = executor()
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="file"):
        await run(recording_build([]), ["go"], PromptEngine(steps(1)), tmp_path / "file" / "ledger")
    assert executor() is before and gc.isenabled()


async def test_nested_run_leaves_outer_run_tuned() -> None:
    seen: list[tuple[bool, bool]] = []

    async def build(task: Task, model: SGLangModel) -> Any:
        await run(recording_build(seen), ["inner"], PromptEngine(steps(1)), tune_runtime=task.prompt == "tuned")
        return recording_build(seen)(task, model)

    await run(build, ["tuned", "not"], PromptEngine(steps(1)))
    assert seen == [(True, True)] * 4
    assert gc.isenabled()


def test_ctrl_c_restores_process() -> None:
    seen: list[tuple[bool, bool]] = []

    def build(task: Task, model: SGLangModel) -> Any:
        signal.raise_signal(signal.SIGINT)
        return recording_build(seen)(task, model)

    engine = PromptEngine(steps(1))
    engine.delay = 0.05
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            rollout_sync(build, ["go"], client=engine, tokenizer=engine.tokenizer)
    finally:
        signal.signal(signal.SIGINT, before)
    assert gc.isenabled() and not process_tuning._gc_users and not process_tuning._by_loop


@pytest.mark.parametrize("tuned", [True, False])
async def test_ray_worker_follows_tune_runtime_and_restores_process(tuned: bool) -> None:
    engine, before = PromptEngine(steps(1)), executor()
    run_spec = RunSpec(plain, None, engine.tokenizer, engine, Limits(), tune_runtime=tuned)
    worker = RayWorker(run_spec, "w")
    await worker.ready()
    assert (isinstance(executor(), ToolThreads), not gc.isenabled()) == (tuned, tuned)
    await worker.close()
    assert executor() is before and gc.isenabled()


@pytest.mark.parametrize("raise_limit", [True, False])
def test_limit_of_open_files_is_raised_or_logged(
    raise_limit: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    resource = pytest.importorskip("resource")
    given: list[Any] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: given.append(limits))
    check_open_files(1000, raise_limit=raise_limit)
    assert given == ([(1512, 4096)] if raise_limit else [])
    assert ("raise `ulimit -n`" in caplog.text) is not raise_limit
    check_open_files(100_000, raise_limit=raise_limit)
    assert "needed=<100512>" in caplog.text
