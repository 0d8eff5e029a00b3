"""Rewards: valid return values, and reward functions that fail."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
import threading
import time
from array import array
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs.episode import Episode
from strands_sglang.runs.finalizer import RewardRunner
from strands_sglang.runs.reward import Reward, own_turns
from strands_sglang.tokens import Join, TokenTree, TurnPurpose
from support.rollout.finished import finished, grown

JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["reward", "score", "steps", "parts", "x"]) | st.integers(), inner, max_size=4
        )
    ),
    max_leaves=8,
)


async def scored(function: Any, episode: Episode, *, timeout: float | None = None) -> Reward:
    return await RewardRunner(function, timeout=timeout).score(episode)


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


@pytest.mark.parametrize(
    "returned, value",
    [
        (1, 1.0), (0.25, 0.25), (True, 1.0), (np.float32(0.5), 0.5), (np.int64(3), 3.0), (np.bool_(True), 1.0),
        (np.array(0.75), 0.75), (Decimal("0.5"), 0.5), (Fraction(1, 4), 0.25), ({"reward": 2}, 2.0),
        ({"score": 2, "why": "because"}, 2.0), ([1, 2, 3], 6.0), ((0.5, np.float64(0.5)), 1.0),
        (np.array([1.0, 2.0]), 3.0), (array("d", [1.0, 0.5]), 1.5), ([], 0.0), (None, None), ({"reward": None}, None),
        (Reward(0.5), 0.5),
    ],
)  # fmt: skip
def test_valid_return_values(returned: Any, value: float | None) -> None:
    reward = Reward.of(returned)
    assert (reward.value, reward.error) == (value, None)
    assert reward.value is None or type(reward.value) is float


@pytest.mark.parametrize(
    "returned, expected",
    [
        (math.nan, "the reward must be finite, got nan"),
        (math.inf, "the reward must be finite, got inf"),
        ("0.5", "got '0.5'"),
        (b"1", "got b'1'"),
        (1j, "got 1j"),
        ({}, "'reward' or 'score'"),
        ({"value": 1}, "'reward' or 'score'"),
        ({"reward": "high"}, "'reward' must be a number"),
        ({"reward": 1, "x": math.nan}, "part 'x' must be finite, got nan"),
        ([1, None], "step 1"),
        ([1e308, 1e308], "overflow"),
        ({1, 2}, "got {1, 2}"),
        (10**400, "too large"),
        (np.zeros((2, 2)), "a reward must be a number"),
        (Reward(math.nan), "nan"),
        (object(), "a reward must be a number"),
    ],
)
def test_invalid_return_values_give_an_error(returned: Any, expected: str) -> None:
    reward = Reward.of(returned)
    assert reward.value is None and reward.error is not None
    assert expected in reward.error


def test_parts_and_steps() -> None:
    reward = Reward.of({"score": 1, "reward": 0.5, "length": np.int32(7), "note": "x", "steps": [1, 2], 3: 4})
    assert reward == Reward(0.5, {"score": 1.0, "length": 7.0, "3": 4.0}, (1.0, 2.0))
    assert Reward.of([1, 2]).steps == (1.0, 2.0)


@given(JSON_LIKE)
def test_any_value_becomes_finite_numbers_or_an_error(returned: Any) -> None:
    reward = Reward.of(returned)
    numbers = [*reward.steps, *reward.parts.values(), *([] if reward.value is None else [reward.value])]
    assert all(type(number) is float and math.isfinite(number) for number in numbers)
    assert reward.error is None or reward.value is None
    assert Reward.of(reward) == reward
    assert Reward.from_dict(orjson.loads(orjson.dumps(reward.to_dict()))) == reward


async def test_functions_of_every_kind() -> None:
    episode = finished()

    async def waits(episode: Episode) -> float:
        await asyncio.sleep(0)
        return 0.5

    async def with_task(task: Any, episode: Episode) -> bool:
        return task is episode.task

    class Rubric:
        def __call__(self, episode: Episode) -> bool:
            return episode.task.answer in episode.text

        async def judged(self, task: Any, episode: Episode) -> float:
            return 0.25

    class Judge:
        async def __call__(self, episode: Episode) -> float:
            return 0.125

    functions: list[tuple[Any, float]] = [
        (lambda episode: "4" in episode.text, 1.0),
        (lambda task, episode: len(task.prompt), 14.0),
        (lambda episode, weight=2: weight, 2.0),
        (lambda *all: len(all), 1.0),
        (waits, 0.5),
        (with_task, 1.0),
        (lambda episode: waits(episode), 0.5),
        (functools.partial(lambda scale, episode: scale, 3), 3.0),
        (functools.partial(waits), 0.5),
        (Rubric(), 1.0),
        (Rubric().judged, 0.25),
        (Judge(), 0.125),
    ]
    for function, value in functions:
        assert (await scored(function, episode)).value == value


@pytest.mark.parametrize("function", [7, lambda: 1, lambda a, b, c: 1, lambda episode, *, key: 1, lambda *, key=1: 1])
def test_function_with_other_arguments_is_rejected(function: Any) -> None:
    with pytest.raises(ConfigurationError):
        RewardRunner(function)


async def test_raised_errors_become_data() -> None:
    episode = finished()

    def divides(episode: Episode) -> float:
        return 1 / 0

    async def exits(episode: Episode) -> float:
        raise SystemExit(3)

    async def cancels(episode: Episode) -> float:
        raise asyncio.CancelledError

    def stops(episode: Episode) -> float:
        raise StopIteration

    def unprintable(episode: Episode) -> float:
        raise UnprintableError

    def elsewhere(episode: Episode) -> float:
        return float(orjson.loads(b"{"))

    reward = await scored(divides, episode)
    place = divides.__code__.co_firstlineno + 1
    assert reward == Reward(error=f"ZeroDivisionError: division by zero (test_reward.py:{place})")
    for function, kind in [
        (exits, "SystemExit: 3"),
        (lambda episode: exit(4), "SystemExit: 4"),
        (cancels, "CancelledError"),
        (stops, "StopIteration"),
        (unprintable, "UnprintableError: "),
        (elsewhere, "JSONDecodeError"),
    ]:
        reward = await scored(function, episode)
        assert reward.value is None
        assert reward.error is not None and reward.error.startswith(kind)
    assert len((await scored(lambda episode: {"x": "y" * 10_000}["z" * 10_000], episode)).error or "") < 600


async def test_keyboard_interrupt_is_raised() -> None:
    def interrupted(episode: Episode) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await RewardRunner(interrupted)._in_thread(finished(), {})


async def test_blocking_function_runs_in_a_thread_with_its_context() -> None:
    release = threading.Event()
    threads = []
    about = contextvars.ContextVar("about", default="nothing")
    about.set("this run")

    def blocks(episode: Episode) -> int:
        assert about.get() == "this run"
        threads.append(threading.current_thread())
        release.wait(10)
        return episode.sample

    scorer = RewardRunner(blocks, threads=4)
    tasks = [asyncio.ensure_future(scorer.score(finished(sample=sample))) for sample in range(8)]
    began = time.monotonic()
    for _ in range(20):
        await asyncio.sleep(0.005)
    assert time.monotonic() - began < 5
    assert len(threads) == 4, "at most `threads` calls run at the same time"
    assert all(thread.daemon for thread in threads), "a hanging call must not keep the interpreter alive"
    release.set()
    assert [reward.value for reward in await asyncio.gather(*tasks)] == list(range(8))


@pytest.mark.parametrize("kind", ["sync", "async", "stubborn"])
async def test_function_that_exceeds_its_timeout(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.runs.finalizer._GRACE", 0.05)
    hung, cancelled_calls = threading.Event(), []

    async def hangs(episode: Episode) -> float:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled_calls.append(kind)
            if kind == "stubborn":
                await asyncio.sleep(0.2)
            raise
        return 1.0

    function: Any = hangs if kind != "sync" else lambda episode: hung.wait(30)
    scorer = RewardRunner(function, timeout=0.05, threads=1)
    began = time.monotonic()
    for _ in range(3):  # hanging calls do not occupy slots
        reward = await scorer.score(finished())
        assert reward.error == "TimeoutError: the reward took longer than 0.05 s"
    assert time.monotonic() - began < 5
    assert len(cancelled_calls) == (0 if kind == "sync" else 3)
    hung.set()
    await asyncio.sleep(0.2 if kind == "stubborn" else 0)


async def test_steps_belong_to_the_agents_own_turns() -> None:
    episode = finished(turns=3)
    assert (await scored(lambda episode: [0.0, 0.5, 1.0], episode)).steps == (0.0, 0.5, 1.0)
    reward = await scored(lambda episode: [0.0, 1.0], episode)
    assert reward == Reward(error="ValueError: steps must have one number for each of the agent's 3 turns, got 2")


def test_own_turns_exclude_sub_agents_rejected_turns_and_side_turns() -> None:
    tree = grown("t/0", turns=2)
    first, second = tree.turns
    sub = tree.commit(tree.prepare(None, context=[7], caller=(first.id, "call-1")), [1], [-1.0])
    deeper = tree.commit(tree.prepare(sub, context=[8], join=Join.PROVED), [2], [-1.0])
    rejected = tree.commit(tree.prepare(second, context=[9], join=Join.PROVED), [3], [-1.0])
    tree.reject(rejected)
    side = tree.commit(tree.prepare(second, context=[9], join=Join.PROVED, purpose=TurnPurpose.SIDE), [3], [-1.0])
    rewritten = tree.commit(tree.prepare(None, context=[5], join=Join.FORKED, forked_from=second.id), [4], [-1.0])
    assert own_turns(tree) == [first, second, rewritten]
    assert {sub.id, deeper.id, rejected.id, side.id} == {2, 3, 4, 5}
    assert own_turns(TokenTree("empty")) == []


async def test_a_call_finds_no_event_loop_of_another_call() -> None:
    async def judge() -> float:
        return 1.0

    def reward(episode: Episode) -> float:
        try:
            loop = asyncio.get_event_loop()
        except RuntimeError:
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
        try:
            return loop.run_until_complete(judge())
        finally:
            loop.close()

    runner = RewardRunner(reward)
    for _ in range(3):
        assert await runner.score(finished()) == Reward(1.0)
