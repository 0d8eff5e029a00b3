"""Bounds of speed, wide enough for a busy machine: what was gained is not lost unnoticed.

Counts of Python calls do not depend on the machine and are bounded closely; times are compared within one run. The
figures themselves are on docs/operate/speed.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import pytest

from loopback_process import AgentLoopback
from played_agent import TOKENIZER
from suite.environments import own
from suite.processes import Contestant
from suite.stats import alternate

MOST_CALLS = {"rollout": 1.5, "plain": 1.85}
"""Most Python calls of a turn over those of the bare SDK, in episodes of 8 turns."""
MOST_CPU = {1: 6.0, 8: 4.0, 32: 2.5}
"""Most CPU of a turn in `rollout` over the bare SDK, by turns of an episode."""


@pytest.fixture(scope="module")
def server() -> Iterator[AgentLoopback]:
    with AgentLoopback(TOKENIZER, [0, 7, 31], cpu=0) as server:
        yield server


@pytest.fixture(scope="module")
def contestant() -> Iterator[Contestant]:
    with Contestant(own(), str(TOKENIZER)) as contestant:
        yield contestant


@pytest.mark.parametrize("way", MOST_CALLS)
def test_python_calls_of_a_turn(server: AgentLoopback, contestant: Contestant, way: str) -> None:
    job: dict[str, Any] = {"url": server.urls[7], "turns": 8, "episodes": 4}
    for warm in (way, "bare"):
        contestant.run(way=warm, **job)
    ours, bare = (contestant.run(way=one, count_calls=True, **job)["calls"] for one in (way, "bare"))
    assert ours <= MOST_CALLS[way] * bare, f"{ours:.0f} calls a turn, the bare SDK makes {bare:.0f}"


@pytest.mark.parametrize("turns", MOST_CPU)
@pytest.mark.soak
def test_cpu_of_a_turn(server: AgentLoopback, contestant: Contestant, turns: int) -> None:
    job: dict[str, Any] = {"url": server.urls[turns - 1], "turns": turns, "episodes": max(4, 160 // turns)}
    found = alternate(["bare", "rollout"], 3, lambda way, number: contestant.run(way=way, **job))
    ratios = [a / b for a, b in zip(found["rollout"]["cpu_ms"], found["bare"]["cpu_ms"], strict=True)]
    assert statistics.median(ratios) <= MOST_CPU[turns], ratios


@pytest.mark.soak
def test_a_client_call_costs_little_more_than_a_bare_one(server: AgentLoopback, contestant: Contestant) -> None:
    job: dict[str, Any] = {"url": server.urls[0], "prompt_tokens": 16_000, "count": 20, "at_once": 4}
    found = alternate(["ours", "bare"], 3, lambda client, number: contestant.run(client=client, **job))
    ratios = [a / b for a, b in zip(found["ours"]["cpu_ms"], found["bare"]["cpu_ms"], strict=True)]
    assert statistics.median(ratios) <= 1.8, ratios
