"""Recorded answers are returned in the order of their turns, each to the call that it was recorded for."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang import errors
from strands_sglang.errors import EngineUnreachableError
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.runs.recording import replay_log as replay_log_module
from strands_sglang.runs.recording.replay_log import LostCalls, ReplayLog, got_no_tokens


def call(number: int, turn: int, prompt: str, within: tuple[str, ...] = (), join: str = "root") -> Event:
    data = {"turn": turn, "prompt_digest": prompt, "within": list(within), "join": join}
    return Event("t/0", 0, number, EventKind.CALL, data)


def call_error(number: int, prompt: str, error: str = "EngineError", sent: int = 10, **fields: Any) -> Event:
    data = {
        "error": error, "message": "", "prompt_digest": prompt, "prompt_tokens": sent, "within": [], "fields": fields,
    }  # fmt: skip
    return Event("t/0", 0, number, EventKind.CALL_ERROR, data)


def tool(number: int, id: str, name: str = "step", input: str = "x") -> Event:
    return Event(
        "t/0", 0, number, EventKind.TOOL, {"id": id, "name": name, "arguments_digest": input, "calls": 0, "within": []}
    )


def rollback(number: int, turns: int, event: int | None = None) -> Event:
    return Event("t/0", 0, number, EventKind.ROLLBACK, {"turns": turns, "cause": "diverged", "event": event})


def replay_log_of(*events: Event, replay_trailing_errors: bool = False) -> ReplayLog:
    begin = Event("t/0", 0, 0, EventKind.BEGIN, {})
    return ReplayLog(EpisodeRecord("t/0", (begin, *events)), replay_trailing_errors=replay_trailing_errors)


@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    seed=st.integers(0, 999),
    threads=st.booleans(),
    same=st.booleans(),
)
@settings(max_examples=40, deadline=None)
async def test_concurrent_conversations_get_their_answers_in_recorded_order(
    lengths: list[int], seed: int, threads: bool, same: bool
) -> None:
    """Several conversations, each inside a tool call, make calls at any time and from any thread.

    With `same` they all send the same prompts and differ only by the tool call they are inside.
    """
    rng = random.Random(seed)
    order = [who for who, length in enumerate(lengths) for _ in range(length)]
    rng.shuffle(order)
    counts: dict[int, int] = {}
    events = []
    for number, who in enumerate(order, 1):
        counts[who] = counts.get(who, 0) + 1
        prompt = f"{counts[who]}" if same else f"{who}/{counts[who]}"
        events.append(call(number, number - 1, prompt, (f"call-{who}",)))
    replay_log = replay_log_of(*events)
    returned: list[int] = []
    lock = threading.Lock()
    busy = 0

    async def converse(who: int, length: int) -> None:
        nonlocal busy
        pauses = random.Random(f"{seed}/{who}")
        within = (f"call-{who}",)
        replay_log.running_tools.add(within[0])
        for turn in range(1, length + 1):
            await asyncio.sleep(pauses.choice([0, 0, 0.001, 0.004]))
            event = await replay_log.answer(f"{turn}" if same else f"{who}/{turn}", within)
            assert event is not None and event.data["within"] == list(within)
            with lock:
                busy += 1
                assert busy == 1, "a second answer was returned before the turn of the first was committed"
                returned.append(event.number)
            await asyncio.sleep(pauses.choice([0, 0, 0.001]))
            with lock:
                busy -= 1
            replay_log.settle(event)
        replay_log.running_tools.discard(within[0])
        # Calls that are not recorded come after all recorded answers were returned.
        assert await replay_log.answer("more", within) is None

    conversations = [converse(who, length) for who, length in enumerate(lengths)]
    if threads:
        await asyncio.gather(*(asyncio.to_thread(asyncio.run, one) for one in conversations))
    else:
        await asyncio.gather(*conversations)
    assert returned == list(range(1, len(order) + 1))
    assert len(replay_log) == 0 and replay_log.next_event is None


async def test_unrecorded_prompt_has_no_answer() -> None:
    replay_log = replay_log_of(call(1, 0, "a"), tool(2, "x"), call(3, 1, "b", join="proved"))
    assert (len(replay_log), replay_log.turns, replay_log.next_event) == (2, 2, 1)
    began = time.monotonic()
    assert await replay_log.answer("other", ()) is None
    assert time.monotonic() - began < 5
    assert len(replay_log) == 2
    event = await replay_log.answer("a", ())
    assert event is not None and event.number == 1
    assert await replay_log.answer("b", ("inside",)) is None
    replay_log.clear()
    assert len(replay_log) == 0 and replay_log.result("x", "step", "x") is None


async def test_waiting_for_an_earlier_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer whose turn is never committed, and a missing conversation, delay the others only for a while."""
    monkeypatch.setattr(replay_log_module, "_MAX_POLLS", 0.05)
    replay_log = replay_log_of(call(1, 0, "a"), call(2, 1, "b"), call(3, 2, "c"))
    assert await replay_log.answer("a", ()) is not None  # never committed
    second = await replay_log.answer("b", ())
    assert second is not None
    replay_log.settle(second)
    assert await replay_log.answer("other", ()) is None


async def test_call_waits_for_answer_inside_a_running_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next answer belongs inside a tool call that is running: calls from elsewhere wait longer."""
    monkeypatch.setattr(replay_log_module, "_MAX_POLLS", 0.02)
    replay_log = replay_log_of(call(1, 0, "a"), call(2, 1, "slow", ("x",)), call(3, 2, "fast", ("y",)))
    first = await replay_log.answer("a", ())
    replay_log.settle(first)
    replay_log.running_tools |= {"x", "y"}

    async def slow() -> None:
        await asyncio.sleep(0.2)
        event = await replay_log.answer("slow", ("x",))
        assert event is not None
        replay_log.settle(event)

    task = asyncio.ensure_future(slow())
    event = await replay_log.answer("fast", ("y",))
    assert event is not None and event.number == 3
    await task
    # Once the tool call has ended, no call takes the answer any more.
    replay_log = replay_log_of(call(1, 0, "slow", ("x",)), call(2, 1, "fast", ("y",)))
    replay_log.running_tools |= {"x"}
    asyncio.get_running_loop().call_later(0.1, replay_log.running_tools.discard, "x")
    assert await replay_log.answer("fast", ("y",)) is None


async def test_tool_results_belong_to_their_call_and_arguments() -> None:
    replay_log = replay_log_of(call(1, 0, "a"), tool(2, "x"), tool(3, "x", input="again"), tool(4, "y"))
    assert replay_log.result("x", "step", "other") is None
    assert replay_log.result("x", "other", "x") is None
    results = [
        replay_log.result("x", "step", "x"),
        replay_log.result("x", "step", "again"),
        replay_log.result("y", "step", "x"),
    ]
    assert [event.number for event in results if event is not None] == [2, 3, 4]
    assert replay_log.result("x", "step", "x") is None


async def test_errors_are_repeated_except_trailing_and_internal_ones() -> None:
    events = [
        call(1, 0, "a"),
        call_error(2, "b"),
        call_error(3, "b", "ContextOverflowError", sent=10, limit_tokens=50),
        call(4, 1, "b"),
        call_error(5, "c"),
        call_error(6, "c"),
    ]
    for trailing, left in ((False, [1, 2, 4]), (True, [1, 2, 4, 5, 6])):
        replay_log = replay_log_of(*events, replay_trailing_errors=trailing)
        returned = []
        while len(replay_log):
            number = replay_log.next_event
            event = await replay_log.answer(next(e.data["prompt_digest"] for e in events if e.number == number), ())
            replay_log.settle(event)
            returned.append(number)
        assert returned == left
    # An error that the agent saw (the prompt itself is too long), or reacted to with another prompt, is repeated.
    for seen in (
        [call_error(2, "b", "ContextOverflowError", sent=60, limit_tokens=50), call(3, 1, "b")],
        [call_error(2, "b", "ContextOverflowError", sent=10, limit_tokens=50), call(3, 1, "c")],
        [call_error(2, "b", "ContextOverflowError", sent=10, limit_tokens=None), call(3, 1, "b")],
        [call_error(2, "b", "ContextOverflowError", sent=10, limit_tokens=50), tool(3, "x")],
    ):
        assert len(replay_log_of(call(1, 0, "a"), *seen)) == 3 - (seen[1].kind is EventKind.TOOL)


async def test_rollback_removes_later_events() -> None:
    events = [call(1, 0, "a"), tool(2, "x"), call(3, 1, "b"), tool(4, "y"), call_error(5, "c"), call(6, 2, "c")]
    assert len(replay_log_of(*events, rollback(7, 1))) == 1
    assert len(replay_log_of(*events, rollback(7, 1), call(8, 1, "B"))) == 2
    replay_log = replay_log_of(*events, rollback(7, 1))
    assert replay_log.result("x", "step", "x") is not None and replay_log.result("y", "step", "x") is None
    # The agent diverged at the error, or after it.
    assert len(replay_log_of(*events, rollback(7, 2, event=5), call(8, 2, "C"))) == 3
    assert len(replay_log_of(*events, rollback(7, 2, event=6), call(8, 2, "C"))) == 4
    assert replay_log_of(*events, rollback(7, 0)).turns == 0


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("EngineUnreachableError", True), ("EngineBusyError", True), ("DeadlineExceededError", True),
        ("CountMismatchError", True), ("RequestRejectedError", False), ("ContextOverflowError", False),
        ("CallCancelledError", False), ("TokenBudgetError", False),
    ],
)  # fmt: skip
def test_got_no_tokens(name: str, lost: bool) -> None:
    assert got_no_tokens(getattr(errors, name)("away")) is lost


def test_call_is_lost_until_answered_inside_the_same_tool_calls() -> None:
    calls, error = LostCalls(), EngineUnreachableError("away")
    calls.add("a", (), errors.ContextOverflowError("too long"))
    assert calls.first is None
    calls.add("a", ("outer", "inner"), error)
    calls.answered("a", ("outer",))
    calls.answered("b", ("outer", "inner"))
    assert calls.first is error and calls.inside_of("outer") is error and calls.inside_of("inner") is error
    assert calls.inside_of("other") is None
    calls.answered("a", ("outer", "inner"))
    assert calls.first is None and calls.inside_of("outer") is None
