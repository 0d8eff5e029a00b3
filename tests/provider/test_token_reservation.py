"""Limits shared by concurrent calls: nothing is reserved twice, and every reservation is released."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from strands.hooks import AfterModelCallEvent

from strands_sglang.errors import ConfigurationError, EngineError, TokenBudgetError
from strands_sglang.provider import token_budget as reserve
from strands_sglang.provider.token_budget import Reservation, SharedLimit
from support.provider.agents import agent_on, scripted_model
from support.scripted_engine import Reply, assert_exact

LONG = "word " * 500


class Purse:
    """A limit of which some is used."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self.reserve = SharedLimit()

    def left(self) -> int:
        if self.used >= self.limit:
            raise TokenBudgetError("nothing is left")
        return self.limit - self.used

    async def spend(self, wanted: int, used: int, seconds: float = 0.0) -> int:
        with Reservation(self.reserve, self.left) as hold:
            granted = await hold.tokens(wanted)
            await asyncio.sleep(seconds)
            assert self.used + self.reserve.reserved <= self.limit
            self.used += min(granted, used)
        return granted


async def test_a_call_waits_if_too_little_is_left() -> None:
    purse = Purse(100)
    first, second, third = await asyncio.gather(purse.spend(80, 10, 0.01), purse.spend(80, 10), purse.spend(80, 100))
    assert (first, second, third) == (80, 80, 80)


async def test_a_single_call_gets_everything_left() -> None:
    purse = Purse(100)
    purse.used = 70
    assert await purse.spend(80, 30) == 30
    with pytest.raises(TokenBudgetError):
        await purse.spend(1, 1)


async def test_calls_are_served_in_order() -> None:
    purse, order = Purse(10), []

    async def one(number: int, wanted: int) -> None:
        await purse.spend(wanted, 0, 0.001)
        order.append(number)

    await asyncio.gather(*(one(number, 10 if number % 2 else 1) for number in range(8)))
    assert order == list(range(8))


async def test_a_cancelled_waiter_holds_nothing() -> None:
    purse = Purse(10)
    first = asyncio.ensure_future(purse.spend(10, 1, 0.02))
    await asyncio.sleep(0)
    waiting = [asyncio.ensure_future(purse.spend(10, 1)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    assert await first == 10
    assert [await one for one in waiting[1:]] == [9, 8]
    assert purse.reserve.reserved == 0


def test_calls_from_threads_with_their_own_loops() -> None:
    purse, granted = Purse(1000), []

    async def several() -> None:
        granted.extend(await asyncio.gather(*(purse.spend(300, 5, 0.001) for _ in range(10))))

    threads = [threading.Thread(target=lambda: asyncio.run(several())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(granted) == 40 and purse.used <= 1000 and purse.reserve.reserved == 0


async def test_waiting_for_a_blocked_event_loop_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent called as a plain function from async code has its own loop, and blocks the caller's."""
    monkeypatch.setattr(reserve, "_BLOCKED_AFTER", 0.05)
    purse, raised = Purse(10), []

    def blocking() -> None:
        try:
            asyncio.run(purse.spend(10, 1))
        except ConfigurationError as error:
            raised.append(str(error))

    first = asyncio.ensure_future(purse.spend(10, 1, 0.001))
    await asyncio.sleep(0)
    thread = threading.Thread(target=blocking)
    thread.start()
    thread.join(timeout=60)  # the loop of the first call is blocked here
    assert not thread.is_alive() and "invoke_async" in raised[0]
    assert await first == 10 and purse.reserve.reserved == 0
    waits = asyncio.ensure_future(purse.spend(10, 1, 0.2))
    await asyncio.sleep(0)
    await asyncio.to_thread(blocking)  # here it does not
    assert await waits == 9 and len(raised) == 1 and purse.used == 3


async def test_a_reservation_releases_everything() -> None:
    purse, other = Purse(10), SharedLimit()
    with Reservation(purse.reserve, purse.left) as hold:
        assert await hold.tokens(4) == 4
        assert await hold.reserve(other, 1, lambda: 1) == 1
        assert (purse.reserve.reserved, other.reserved) == (4, 1)
    assert (purse.reserve.reserved, other.reserved) == (0, 0)
    assert await Reservation().tokens(7) == 7


def pausing(text: str, seconds: float = 0.005) -> Callable[[str], Reply]:
    """Return a script that pauses before it answers."""

    async def pause() -> None:
        await asyncio.sleep(seconds)

    return lambda prompt: Reply(text, before=pause)


@pytest.mark.parametrize("streaming", [False, True])
async def test_concurrent_agents_respect_the_episode_limit(streaming: bool) -> None:
    model, engine = scripted_model(pausing(LONG), "qwen2.5", max_episode_tokens=100, streaming=streaming)
    with model.episode() as episode:
        agents = [agent_on(model) for _ in range(16)]
        ended: list[Any] = await asyncio.gather(*(one.invoke_async("Hello") for one in agents), return_exceptions=True)
    assert episode.sampled_tokens == 100
    assert sum(isinstance(one, TokenBudgetError) for one in ended) == 15
    assert_exact(engine, episode)


async def test_unused_tokens_are_available_to_others() -> None:
    """Each call requests everything left and samples two tokens: none of them is truncated."""
    model, engine = scripted_model(pausing("Hi.", 0.001), "qwen2.5", max_episode_tokens=100)
    with model.episode() as episode:
        await asyncio.gather(*(agent_on(model).invoke_async(f"q{number}") for number in range(16)))
    assert len(episode.tree) == 16 and episode.sampled_tokens == 16 * 3
    assert all(turn.finish_reason == "stop" for turn in episode.tree)
    assert_exact(engine, episode)


@pytest.mark.parametrize("how", ["engine", "hook", "cancelled"])
async def test_a_failed_call_releases_its_reservation(how: str) -> None:
    def answer(prompt: str) -> Any:
        if len(engine.calls) > 1:
            return "Hi."
        return EngineError("down") if how == "engine" else Reply("Hi.", hangs=how == "cancelled")

    def fail(event: AfterModelCallEvent) -> None:
        if how == "hook" and len(engine.calls) == 1:
            raise ValueError("the hook failed")

    model, engine = scripted_model(answer, "qwen2.5", max_episode_tokens=100)
    with model.episode() as episode:
        first = asyncio.ensure_future(agent_on(model, hooks=[fail]).invoke_async("q"))
        await asyncio.sleep(0.01)
        second = asyncio.ensure_future(agent_on(model).invoke_async("another"))
        await asyncio.sleep(0.01)
        if how == "cancelled":
            assert not second.done()
            first.cancel()
        await asyncio.wait({first})
        assert str(await asyncio.wait_for(second, 10)).strip() == "Hi."
    assert_exact(engine, episode)
