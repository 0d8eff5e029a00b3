"""Bounds that calls under way share: nothing is given twice, and whatever was set aside comes back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from strands.hooks import AfterModelCallEvent

from provider.agents import agent_on, scripted_model
from scripted_engine import Reply, assert_exact
from strands_sglang.errors import ConfigurationError, EngineError, TokenBudgetError
from strands_sglang.provider import reserve
from strands_sglang.provider.reserve import Hold, Reserve

LONG = "word " * 500


class Purse:
    """A bound of so much, of which some is used."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self.reserve = Reserve()

    def left(self) -> int:
        if self.used >= self.limit:
            raise TokenBudgetError("nothing is left")
        return self.limit - self.used

    async def spend(self, wanted: int, used: int, seconds: float = 0.0) -> int:
        with Hold(self.reserve, self.left) as hold:
            granted = await hold.tokens(wanted)
            await asyncio.sleep(seconds)
            assert self.used + self.reserve.held <= self.limit
            self.used += min(granted, used)
        return granted


async def test_who_comes_when_too_little_is_free_waits_and_is_not_cut_short() -> None:
    purse = Purse(100)
    first, second, third = await asyncio.gather(purse.spend(80, 10, 0.01), purse.spend(80, 10), purse.spend(80, 100))
    assert (first, second, third) == (80, 80, 80)


async def test_alone_one_gets_all_there_is() -> None:
    purse = Purse(100)
    purse.used = 70
    assert await purse.spend(80, 30) == 30
    with pytest.raises(TokenBudgetError):
        await purse.spend(1, 1)


async def test_first_come_first_served() -> None:
    purse, order = Purse(10), []

    async def one(number: int, wanted: int) -> None:
        await purse.spend(wanted, 0, 0.001)
        order.append(number)

    await asyncio.gather(*(one(number, 10 if number % 2 else 1) for number in range(8)))
    assert order == list(range(8))


async def test_who_is_cancelled_while_waiting_leaves_nothing_behind() -> None:
    purse = Purse(10)
    first = asyncio.ensure_future(purse.spend(10, 1, 0.02))
    await asyncio.sleep(0)
    waiting = [asyncio.ensure_future(purse.spend(10, 1)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    assert await first == 10
    assert [await one for one in waiting[1:]] == [9, 8]
    assert purse.reserve.held == 0


def test_from_threads_with_loops_of_their_own() -> None:
    purse, granted = Purse(1000), []

    async def several() -> None:
        granted.extend(await asyncio.gather(*(purse.spend(300, 5, 0.001) for _ in range(10))))

    threads = [threading.Thread(target=lambda: asyncio.run(several())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(granted) == 40 and purse.used <= 1000 and purse.reserve.held == 0


async def test_who_waits_for_an_event_loop_that_stands_still_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Called as a plain function from async code, an agent has a loop of its own, and ours waits for it."""
    monkeypatch.setattr(reserve, "_STANDS_STILL", 0.05)
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
    thread.join(timeout=60)  # the loop of the first call stands still here
    assert not thread.is_alive() and "invoke_async" in raised[0]
    assert await first == 10 and purse.reserve.held == 0
    waits = asyncio.ensure_future(purse.spend(10, 1, 0.2))
    await asyncio.sleep(0)
    await asyncio.to_thread(blocking)  # here it does not
    assert await waits == 9 and len(raised) == 1 and purse.used == 3


async def test_a_hold_gives_everything_back() -> None:
    purse, other = Purse(10), Reserve()
    with Hold(purse.reserve, purse.left) as hold:
        assert await hold.tokens(4) == 4
        assert await hold.take(other, 1, lambda: 1) == 1
        assert (purse.reserve.held, other.held) == (4, 1)
    assert (purse.reserve.held, other.held) == (0, 0)
    assert await Hold().tokens(7) == 7


def pausing(text: str, seconds: float = 0.005) -> Callable[[str], Reply]:
    """Return a script that takes its time."""

    async def pause() -> None:
        await asyncio.sleep(seconds)

    return lambda prompt: Reply(text, before=pause)


@pytest.mark.parametrize("streaming", [False, True])
async def test_agents_at_once_sample_no_more_than_their_episode_may(streaming: bool) -> None:
    model, engine = scripted_model(pausing(LONG), "qwen2.5", max_episode_tokens=100, streaming=streaming)
    with model.episode() as episode:
        agents = [agent_on(model) for _ in range(16)]
        ended: list[Any] = await asyncio.gather(*(one.invoke_async("Hello") for one in agents), return_exceptions=True)
    assert episode.sampled_tokens == 100
    assert sum(isinstance(one, TokenBudgetError) for one in ended) == 15
    assert_exact(engine, episode)


async def test_what_one_does_not_use_is_for_the_others() -> None:
    """Each asks for all that is left and says two words: none of them is cut."""
    model, engine = scripted_model(pausing("Hi.", 0.001), "qwen2.5", max_episode_tokens=100)
    with model.episode() as episode:
        await asyncio.gather(*(agent_on(model).invoke_async(f"q{number}") for number in range(16)))
    assert len(episode.tree) == 16 and episode.sampled_tokens == 16 * 3
    assert all(turn.finish == "stop" for turn in episode.tree)
    assert_exact(engine, episode)


@pytest.mark.parametrize("how", ["engine", "hook", "cancelled"])
async def test_a_call_that_fails_holds_nothing_any_more(how: str) -> None:
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
