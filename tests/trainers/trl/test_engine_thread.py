"""One event loop in its own thread, callable from anywhere, kept between calls, and closed cleanly."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Any

import pytest

from strands_sglang import SGLangClient
from strands_sglang.errors import ConfigurationError
from strands_sglang.trainers.trl.engine_thread import EngineThread


@pytest.fixture
def engine() -> Any:
    engine = EngineThread(SGLangClient("http://127.0.0.1:9"), owned=True)
    yield engine
    engine.close()


async def loop_and_thread() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    return asyncio.get_running_loop(), threading.current_thread()


def test_every_call_runs_on_the_same_loop(engine: EngineThread) -> None:
    loop, thread = engine.run(loop_and_thread())
    assert engine.run(loop_and_thread()) == (loop, thread)
    assert thread is not threading.current_thread() and thread.daemon


async def test_call_inside_a_running_loop(engine: EngineThread) -> None:
    loop, _ = engine.run(loop_and_thread())
    assert loop is not asyncio.get_running_loop()


def test_exceptions_are_raised_in_the_caller(engine: EngineThread) -> None:
    async def broken() -> None:
        raise KeyError("words")

    with pytest.raises(KeyError, match="words"):
        engine.run(broken())


def test_interrupted_wait_cancels_the_call(engine: EngineThread) -> None:
    ended, waiting = threading.Event(), threading.main_thread().ident
    assert waiting is not None

    async def endless() -> None:
        threading.Timer(0.2, signal.pthread_kill, (waiting, signal.SIGINT)).start()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)  # as an abort on the engine takes a moment
            ended.set()

    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a process that runs tests for another ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            engine.run(endless())
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.is_set(), "what was cancelled had no time to end"
    assert engine.run(loop_and_thread())


def test_close_ends_the_thread_and_allows_reuse(engine: EngineThread) -> None:
    _, thread = engine.run(loop_and_thread())
    engine.close()
    thread.join(5)
    assert not thread.is_alive()
    loop, other = engine.run(loop_and_thread())
    assert other is not thread and not loop.is_closed()
    engine.close()
    engine.close()


def test_control_requires_an_sglang_client() -> None:
    with pytest.raises(ConfigurationError, match="got a object"):
        _ = EngineThread(object()).control  # type: ignore[arg-type]
