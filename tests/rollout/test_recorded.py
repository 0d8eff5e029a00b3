"""What is on record is handed out in the order of its turns, to whoever asked for it then, whoever asks first now."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.rollout import recorded as room
from strands_sglang.rollout.recorded import Recorded


def call(number: int, turn: int, prompt: str, within: tuple[str, ...] = (), join: str = "root") -> Event:
    data = {"turn": turn, "prompt": prompt, "within": list(within), "join": join}
    return Event("t/0", 0, number, EventKind.CALL, data)


def fault(number: int, prompt: str, error: str = "EngineError", sent: int = 10, **fields: Any) -> Event:
    data = {"error": error, "message": "", "prompt": prompt, "sent": sent, "within": [], "fields": fields}
    return Event("t/0", 0, number, EventKind.FAULT, data)


def tool(number: int, id: str, name: str = "step", input: str = "x") -> Event:
    return Event("t/0", 0, number, EventKind.TOOL, {"id": id, "name": name, "input": input, "calls": 0, "within": []})


def cut(number: int, turns: int, **more: Any) -> Event:
    return Event("t/0", 0, number, EventKind.CUT, {"turns": turns, **more})


def of(*events: Event, trailing_faults: bool = False) -> Recorded:
    begin = Event("t/0", 0, 0, EventKind.BEGIN, {})
    return Recorded(EpisodeRecord("t/0", (begin, *events)), trailing_faults=trailing_faults)


@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    seed=st.integers(0, 999),
    threads=st.booleans(),
    same=st.booleans(),
)
@settings(max_examples=40, deadline=None)
async def test_conversations_at_once_get_their_own_in_the_order_of_the_record(
    lengths: list[int], seed: int, threads: bool, same: bool
) -> None:
    """Several conversations, each inside of a tool call, ask at any time and from any thread.

    With `same` they all ask the same: only the calls they are inside of tell them apart.
    """
    chance = random.Random(seed)
    order = [who for who, length in enumerate(lengths) for _ in range(length)]
    chance.shuffle(order)
    asked: dict[int, int] = {}
    events = []
    for number, who in enumerate(order, 1):
        asked[who] = asked.get(who, 0) + 1
        prompt = f"{asked[who]}" if same else f"{who}/{asked[who]}"
        events.append(call(number, number - 1, prompt, (f"call-{who}",)))
    recorded = of(*events)
    handed: list[int] = []
    lock = threading.Lock()
    busy = 0

    async def talk(who: int, length: int) -> None:
        nonlocal busy
        pauses = random.Random(f"{seed}/{who}")
        within = (f"call-{who}",)
        recorded.open.add(within[0])
        for turn in range(1, length + 1):
            await asyncio.sleep(pauses.choice([0, 0, 0.001, 0.004]))
            event = await recorded.answer(f"{turn}" if same else f"{who}/{turn}", within)
            assert event is not None and event.data["within"] == list(within)
            with lock:
                busy += 1
                assert busy == 1, "a second answer was handed out before the turn of the first was committed"
                handed.append(event.number)
            await asyncio.sleep(pauses.choice([0, 0, 0.001]))
            with lock:
                busy -= 1
            recorded.settle(event)
        recorded.open.discard(within[0])
        # The rest is not on record, and is asked for when everything that is was handed out.
        assert await recorded.answer("more", within) is None

    talks = [talk(who, length) for who, length in enumerate(lengths)]
    if threads:
        await asyncio.gather(*(asyncio.to_thread(asyncio.run, one) for one in talks))
    else:
        await asyncio.gather(*talks)
    assert handed == list(range(1, len(order) + 1))
    assert len(recorded) == 0 and recorded.next_event is None


async def test_another_prompt_is_nobody_s() -> None:
    recorded = of(call(1, 0, "a"), tool(2, "x"), call(3, 1, "b", join="proved"))
    assert (len(recorded), recorded.turns, recorded.next_event) == (2, 2, 1)
    began = time.monotonic()
    assert await recorded.answer("other", ()) is None
    assert time.monotonic() - began < 5
    assert len(recorded) == 2
    event = await recorded.answer("a", ())
    assert event is not None and event.number == 1
    assert await recorded.answer("b", ("inside",)) is None
    recorded.drop()
    assert len(recorded) == 0 and recorded.result("x", "step", "x") is None


async def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer whose turn is never committed, and a conversation that never asks, hold the others up for a while."""
    monkeypatch.setattr(room, "_PATIENCE", 0.05)
    recorded = of(call(1, 0, "a"), call(2, 1, "b"), call(3, 2, "c"))
    assert await recorded.answer("a", ()) is not None  # and nothing comes of it
    second = await recorded.answer("b", ())
    assert second is not None
    recorded.settle(second)
    assert await recorded.answer("other", ()) is None


async def test_a_slow_tool_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next answer belongs inside of a call that is being run: whoever asks from elsewhere has patience."""
    monkeypatch.setattr(room, "_PATIENCE", 0.02)
    recorded = of(call(1, 0, "a"), call(2, 1, "slow", ("x",)), call(3, 2, "fast", ("y",)))
    first = await recorded.answer("a", ())
    recorded.settle(first)
    recorded.open |= {"x", "y"}

    async def slow() -> None:
        await asyncio.sleep(0.2)
        event = await recorded.answer("slow", ("x",))
        assert event is not None
        recorded.settle(event)

    task = asyncio.ensure_future(slow())
    event = await recorded.answer("fast", ("y",))
    assert event is not None and event.number == 3
    await task
    # Once that call is over, nobody asks for it any more.
    recorded = of(call(1, 0, "slow", ("x",)), call(2, 1, "fast", ("y",)))
    recorded.open |= {"x"}
    asyncio.get_running_loop().call_later(0.1, recorded.open.discard, "x")
    assert await recorded.answer("fast", ("y",)) is None


async def test_tool_results_belong_to_their_call_and_arguments() -> None:
    recorded = of(call(1, 0, "a"), tool(2, "x"), tool(3, "x", input="again"), tool(4, "y"))
    assert recorded.result("x", "step", "other") is None
    assert recorded.result("x", "other", "x") is None
    results = [
        recorded.result("x", "step", "x"),
        recorded.result("x", "step", "again"),
        recorded.result("y", "step", "x"),
    ]
    assert [event.number for event in results if event is not None] == [2, 3, 4]
    assert recorded.result("x", "step", "x") is None


async def test_faults_are_repeated_but_for_the_last_and_those_no_agent_saw() -> None:
    events = [
        call(1, 0, "a"),
        fault(2, "b"),
        fault(3, "b", "ContextOverflowError", sent=10, limit_tokens=50),
        call(4, 1, "b"),
        fault(5, "c"),
        fault(6, "c"),
    ]
    for trailing, left in ((False, [1, 2, 4]), (True, [1, 2, 4, 5, 6])):
        recorded = of(*events, trailing_faults=trailing)
        handed = []
        while len(recorded):
            number = recorded.next_event
            event = await recorded.answer(next(e.data["prompt"] for e in events if e.number == number), ())
            recorded.settle(event)
            handed.append(number)
        assert handed == left
    # One that the agent has seen (its prompt itself is too long), or has answered with another prompt, is repeated.
    for seen in (
        [fault(2, "b", "ContextOverflowError", sent=60, limit_tokens=50), call(3, 1, "b")],
        [fault(2, "b", "ContextOverflowError", sent=10, limit_tokens=50), call(3, 1, "c")],
        [fault(2, "b", "ContextOverflowError", sent=10, limit_tokens=None), call(3, 1, "b")],
        [fault(2, "b", "ContextOverflowError", sent=10, limit_tokens=50), tool(3, "x")],
    ):
        assert len(of(call(1, 0, "a"), *seen)) == 3 - (seen[1].kind is EventKind.TOOL)


async def test_cuts_take_back_what_is_behind_them() -> None:
    events = [call(1, 0, "a"), tool(2, "x"), call(3, 1, "b"), tool(4, "y"), fault(5, "c"), call(6, 2, "c")]
    assert len(of(*events, cut(7, 1))) == 1
    assert len(of(*events, cut(7, 1), call(8, 1, "B"))) == 2
    recorded = of(*events, cut(7, 1))
    assert recorded.result("x", "step", "x") is not None and recorded.result("y", "step", "x") is None
    # It went another way at the fault, or behind it.
    assert len(of(*events, cut(7, 2, event=5), call(8, 2, "C"))) == 3
    assert len(of(*events, cut(7, 2, event=6), call(8, 2, "C"))) == 4
    assert of(*events, cut(7, 0)).turns == 0


def test_nothing_is_on_record() -> None:
    recorded = Recorded()
    assert (len(recorded), recorded.turns, recorded.next_event) == (0, 0, None)
    assert not recorded.within("x")
