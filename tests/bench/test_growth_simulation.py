"""The simulation of growth, against known results of queueing theory and against the model."""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

simpy = pytest.importorskip("simpy", reason="needs the extra `bench`")

from growth.model import Engines, Workload, load, predict  # noqa: E402
from growth.simulation import Engine, Events, Request, Router, Simulation  # noqa: E402

KNOWN = load()
WORK, ENGINES = Workload(episodes=300, samples=4), Engines(engines=3)


def engine(about: Engines) -> tuple[Any, Engine, dict[str, float]]:
    counters = dict.fromkeys(("prompt_tokens", "cached_tokens", "lost_tokens"), 0.0)
    env = simpy.Environment()
    return env, Engine(env, 0, about, counters), counters


def test_engine_shares_its_speed_like_a_processor_sharing_queue() -> None:
    """The mean time in such a queue is the mean work / (1 - load), whatever its distribution."""
    # The time of a token is proportional to the number of requests, and prompts cost nothing.
    about = Engines(1, 1000.0, 10_000, 1.0, 1e15, 10**12)
    env, one, _ = engine(about)
    rng, times = random.Random(4), []

    def asked(number: int) -> Generator[Any, Any, None]:
        start = env.now
        done = env.event()
        one.send(Request(number, number, 1, 2, max(1, round(rng.lognormvariate(3.9, 0.8))), done))
        yield done
        times.append(env.now - start)

    def arrivals() -> Generator[Any, Any, None]:
        for number in range(10_000):
            yield env.timeout(rng.expovariate(9.0))
            env.process(asked(number))

    env.process(arrivals())
    env.run()
    mean = 2.718281828 ** (3.9 + 0.8**2 / 2) / 1000
    assert len(times) == 10_000 and sum(times) / len(times) == pytest.approx(mean / (1 - 9.0 * mean), rel=0.1)


def test_prefix_cache_evicts_what_was_not_used_longest() -> None:
    env, one, counters = engine(Engines(1, 1000.0, 4, 1.0, 1000.0, 1000))

    def ask(episode: int, prompt: int) -> float:
        before = counters["cached_tokens"]
        done = env.event()
        one.send(Request(episode, 0, 10, prompt, 10, done))
        env.run(until=done)
        return counters["cached_tokens"] - before

    assert ask(1, 200) == 0
    assert ask(2, 200) == 10  # only the prompt of the task
    assert ask(1, 300) == 210
    assert ask(3, 600) == 10  # evicts episode 2
    assert ask(1, 320) == 310
    assert ask(2, 220) == 10


def test_prompts_are_computed_first_and_a_pause_keeps_tokens() -> None:
    env, one, counters = engine(Engines(1, 100.0, 1, 10.0, 1000.0, 10_000))
    done = env.event()
    one.send(Request(1, 0, 10, 500, 100, done))  # 0.5 s of prompt, then 1 s of sampling
    env.run(until=1.0)
    one.pause()
    env.run(until=3.0)
    one.resume()
    env.run(until=done)
    # Half of the tokens are kept; prompt and these tokens are computed again.
    assert env.now == pytest.approx(3.0 + 0.55 + 0.5, abs=0.02) and done.value is True
    failed = env.event()
    one.send(Request(2, 1, 10, 500, 100, failed))
    env.run(until=env.now + 1.0)
    one.fail()
    env.run(until=failed)
    assert failed.value is False and counters["lost_tokens"] == pytest.approx(50, abs=2)
    refused = env.event()
    one.send(Request(2, 1, 10, 500, 100, refused))
    env.run(until=refused)
    assert refused.value is False and one.load == 0


def test_router_keeps_keys_and_moves_them_from_a_failed_engine() -> None:
    env = simpy.Environment()
    engines = [Engine(env, number, ENGINES, {"lost_tokens": 0.0}) for number in range(4)]
    router = Router(engines, "least", "task")
    first = [router.route(8 * group, group).number for group in range(8)]
    assert sorted(first) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [router.route(8 * group + 1, group).number for group in range(8)] == first
    engines[first[0]].fail()
    assert router.route(2, 0).number != first[0]
    by_hash = Router(engines[1:], "hash", "episode")
    numbers = [by_hash.route(episode, 0).number for episode in range(300)]
    assert numbers == [by_hash.route(episode, 0).number for episode in range(300)] and len(set(numbers)) == 3
    assert len({Router(engines[1:], "scatter", "task", seed).route(0, 0).number for seed in range(20)}) == 3


def test_simulation_matches_the_model() -> None:
    for episodes in (60, 300):
        work = replace(WORK, episodes=episodes)
        simulation = Simulation(work, ENGINES, KNOWN, workers=4)
        simulation.run(60)
        outcome = simulation.run(360)
        predicted = predict(work, ENGINES, KNOWN)
        assert outcome["turns_per_second"] == pytest.approx(predicted.turns_per_second, rel=0.12)
        assert outcome["cached"] > 0.9


def test_too_many_conversations_collapse_the_cache_in_both() -> None:
    work = replace(WORK, episodes=750)
    simulation = Simulation(work, ENGINES, KNOWN, workers=4)
    simulation.run(100)
    outcome = simulation.run(300)
    assert outcome["cached"] < 0.4
    assert outcome["turns_per_second"] == pytest.approx(predict(work, ENGINES, KNOWN).turns_per_second, rel=0.35)


def test_lost_stickiness_and_a_single_core_are_seen() -> None:
    def rate(**options: Any) -> float:
        simulation = Simulation(WORK, ENGINES, KNOWN, **{"workers": 4, **options})
        simulation.run(60)
        return simulation.run(160)["turns_per_second"]

    sticky = rate()
    assert rate(policy="scatter") < 0.6 * sticky
    slow = replace(KNOWN, cpu_ms_turn=100.0)
    simulation = Simulation(WORK, ENGINES, slow, workers=1)
    simulation.run(60)
    outcome = simulation.run(160)
    assert outcome["worker_busy"] == pytest.approx(1.0, abs=0.05) and outcome["turns_per_second"] < 10


def test_failures_and_updates_lose_work_but_no_episode() -> None:
    rare = Events(update_every=100.0, update_seconds=10.0, engine_mtbf=200.0, engine_restart=20.0, worker_mtbf=200.0)
    large = replace(ENGINES, kv_tokens=8_000_000, prefill_tokens_per_second=100_000.0)
    simulation = Simulation(WORK, large, KNOWN, workers=4, events=rare)
    outcome = simulation.run(220)
    assert outcome["updates"] == 2 and outcome["engine_failures"] and outcome["worker_failures"]
    assert outcome["lost_tokens"] > 0 and outcome["lost_with_workers"] > 0
    assert outcome["failed_requests"] > 0 and outcome["resumed_episodes"] > 0
    calm = Simulation(WORK, large, KNOWN, workers=4).run(220)
    assert 0.3 * calm["turns_per_second"] < outcome["turns_per_second"] < calm["turns_per_second"]
    assert all(process.is_alive for process in simulation._slots)
    again = Simulation(WORK, large, KNOWN, workers=4, events=rare).run(220)
    assert again["turns_per_second"] == outcome["turns_per_second"]  # the same seed gives the same run
