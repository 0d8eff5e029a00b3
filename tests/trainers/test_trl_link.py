"""One loop in a thread of its own: from anywhere, kept from call to call, and left in order."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Any

import pytest

from strands_sglang import SGLangClient
from strands_sglang.errors import ConfigurationError
from strands_sglang.trainers.trl_link import EngineLink


@pytest.fixture
def link() -> Any:
    link = EngineLink(SGLangClient("http://127.0.0.1:9"), ours=True)
    yield link
    link.close()


async def where() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    return asyncio.get_running_loop(), threading.current_thread()


def test_every_call_runs_on_the_same_loop(link: EngineLink) -> None:
    loop, thread = link.run(where())
    assert link.run(where()) == (loop, thread)
    assert thread is not threading.current_thread() and thread.daemon


async def test_it_may_be_called_inside_a_running_loop(link: EngineLink) -> None:
    loop, _ = link.run(where())
    assert loop is not asyncio.get_running_loop()


def test_what_is_raised_is_raised_here(link: EngineLink) -> None:
    async def broken() -> None:
        raise KeyError("words")

    with pytest.raises(KeyError, match="words"):
        link.run(broken())


def test_whoever_stops_waiting_cancels_what_ran(link: EngineLink) -> None:
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
            link.run(endless())
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.is_set(), "what was cancelled had no time to end"
    assert link.run(where())


def test_closed_it_leaves_no_thread_and_may_be_used_again(link: EngineLink) -> None:
    _, thread = link.run(where())
    link.close()
    thread.join(5)
    assert not thread.is_alive()
    loop, other = link.run(where())
    assert other is not thread and not loop.is_closed()
    link.close()
    link.close()


def test_only_a_client_of_sglang_has_control() -> None:
    with pytest.raises(ConfigurationError, match="through a object"):
        _ = EngineLink(object()).control  # type: ignore[arg-type]
