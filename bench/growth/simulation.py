"""A run, simulated event by event: episodes, rollout workers, engines, router, tools, weight updates and failures.

Every episode is a process of SimPy that takes its turns one after another: CPU time of its worker, a request to the
engine that the router chooses, CPU time again, a tool. An episode that ends is replaced by a new one, so their number
stays the same. Workers run one thing at a time, in the order of arrival, and so does the driver, which receives the
episodes that end.

At the start, all episodes are at a random turn, and the engines have their conversations in the cache as far as they
fit. Let the run settle before you measure it.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import simpy

from growth.coefficients import Coefficients
from growth.engines import Engine, Request, Router
from growth.model import Engines, Workload


@dataclass(frozen=True)
class Events:
    """What happens to a run, besides its episodes."""

    update_every: float = math.inf
    """Seconds between two weight updates."""
    update_seconds: float = 20.0
    """Seconds that engines are paused for an update; they lose their cache."""
    engine_mtbf: float = math.inf
    """Mean seconds between two failures of one engine."""
    engine_restart: float = 120.0
    """Seconds until a failed engine answers again."""
    worker_mtbf: float = math.inf
    """Mean seconds between two failures of one rollout worker."""
    retry_seconds: float = 1.0
    """Seconds after which the client repeats a failed request."""


@dataclass
class Outcome:
    """Measurements of a part of a simulated run."""

    turns_per_second: float = 0.0
    episodes_per_second: float = 0.0
    tokens_per_second: float = 0.0
    """Sampled tokens per second."""
    engine_seconds: float = 0.0
    """Mean seconds from request to response."""
    engine_seconds_p99: float = 0.0
    cached: float = 0.0
    """Share of the prompt tokens that were in the cache."""
    prefill: float = 0.0
    """Share of the time of the engines that went into prompts."""
    worker_busy: float = 0.0
    """Mean share of a worker's core that is used."""
    driver_busy: float = 0.0
    """Share of the driver's core that is used."""
    load_max_over_mean: float = 0.0
    """Requests at the engine with the most, divided by the mean; mean over time."""
    live_tokens: float = 0.0
    """Mean number of tokens of a live episode."""
    in_call: float = 0.0
    """Mean share of the episodes that wait for an engine."""
    engine_failures: int = 0
    worker_failures: int = 0
    lost_tokens: float = 0.0
    """Sampled tokens that were lost with engines."""
    lost_with_workers: float = 0.0
    """Sampled tokens of requests whose worker died."""
    failed_requests: int = 0
    resumed_episodes: int = 0
    updates: int = 0
    cpu_seconds: float = 0.0
    """CPU seconds that the simulation took."""


STEP = 5.0
"""Seconds between two samples of what changes over time."""


class Simulation:
    """One simulated run."""

    def __init__(
        self,
        work: Workload,
        engines: Engines,
        known: Coefficients,
        *,
        workers: int,
        events: Events | None = None,
        policy: str = "least",
        by: str = "task",
        seed: int = 1,
        tool_seconds: float | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            work: The episodes.
            engines: The engines.
            known: The measured coefficients.
            workers: Rollout workers, one core each.
            events: Weight updates and failures; None: none.
            policy: Policy of the router; see `Router`.
            by: Routing key: "task" or "episode".
            seed: Seed of everything random.
            tool_seconds: Duration of every tool call; None: drawn from the distribution of `work`.
        """
        self.work, self.about, self.known, self.rare = work, engines, known, events or Events()
        self.env = simpy.Environment()
        self.counters: dict[str, float] = dict.fromkeys(
            (
                "prompt_tokens",
                "cached_tokens",
                "prefill_seconds",
                "lost_tokens",
                "lost_with_workers",
                "turns",
                "episodes",
                "sampled",
            ),
            0.0,
        )
        self.engines = [Engine(self.env, number, engines, self.counters) for number in range(engines.engines)]
        self.router = Router(self.engines, policy, by, seed)
        self.out = Outcome()
        self._random = random.Random(seed)
        self._tool = tool_seconds
        self._free_at = [0.0] * workers
        self._busy = [0.0] * workers
        self._driver_free = self._driver_busy = 0.0
        self._slots: list[simpy.Process] = []
        self._next = 0  # number of the next episode
        self._left: dict[int, int] = {}  # episodes of a group that have not ended
        self._latencies: list[float] = []
        self._sums = [0.0] * 4  # samples, and sums over them: uneven load, live tokens, share in a call
        self.series: list[tuple[float, float]] = []
        """Turns per second over time, in steps of `STEP` seconds."""
        self._context = [0] * work.episodes
        self._running_on = [-1] * work.episodes  # worker of each episode; -1: it waits for a worker
        self._in_call = 0
        mean = 1 / math.exp(work.spread**2 / 2)
        self._sampled_median, self._result_median = work.sampled * mean, work.result * mean
        for slot in range(work.episodes):
            self._slots.append(self.env.process(self._episodes(slot)))
        self.env.process(self._watch())
        if self.rare.update_every < math.inf:
            self.env.process(self._updates())
        if self.rare.engine_mtbf < math.inf:
            self.env.process(self._engine_failures())
        if self.rare.worker_mtbf < math.inf:
            self.env.process(self._worker_failures())

    def run(self, seconds: float) -> Outcome:
        """Continue the run and return the measurements of this part.

        Args:
            seconds: Simulated seconds since the start of the run at which this part ends.
        """
        env, began, start = self.env, time.process_time(), self.env.now
        before, self.out, self._latencies = dict(self.counters), Outcome(), []
        self._busy, self._driver_busy, self._sums = [0.0] * len(self._busy), 0.0, [0.0] * 4
        gc.collect()
        gc.disable()  # events are freed by their reference counts
        try:
            env.run(until=seconds)
        finally:
            gc.enable()
        out, span = self.out, seconds - start
        counted = {name: value - before[name] for name, value in self.counters.items()}
        out.turns_per_second = counted["turns"] / span
        out.episodes_per_second = counted["episodes"] / span
        out.tokens_per_second = counted["sampled"] / span
        latencies = sorted(self._latencies)
        out.engine_seconds = sum(latencies) / max(1, len(latencies))
        out.engine_seconds_p99 = latencies[int(0.99 * (len(latencies) - 1))] if latencies else 0.0
        out.cached = counted["cached_tokens"] / max(1.0, counted["prompt_tokens"])
        out.prefill = counted["prefill_seconds"] / span / len(self.engines)
        out.worker_busy = sum(self._busy) / len(self._busy) / span
        out.driver_busy = self._driver_busy / span
        out.lost_tokens, out.lost_with_workers = counted["lost_tokens"], counted["lost_with_workers"]
        samples = max(1.0, self._sums[0])
        out.load_max_over_mean, out.live_tokens, out.in_call = (value / samples for value in self._sums[1:])
        out.cpu_seconds = time.process_time() - began
        return out

    def _episodes(self, slot: int) -> Generator[Any, Any, None]:
        """One episode after another."""
        env, work, known, rng, counters = self.env, self.work, self.known, self._random, self.counters
        worker = slot % len(self._free_at)
        done_turns = rng.randrange(work.turns)
        first = True
        while True:
            # Episodes of a task start together.
            number, self._next = self._next, self._next + 1
            group = number // work.samples
            context = work.prompt
            turn = 0
            engine: Engine | None = None
            if first:
                turn = done_turns
                context += turn * (work.sampled + work.result)
                engine = self.router.route(number, group)
                if turn:
                    engine.remember(number, context)
                self._context[slot] = context
                yield env.timeout(rng.random() * 2 * work.tool_mean)
                first = False
            fixed = known.cpu_ms_turn + known.cpu_ms_episode / work.turns
            while turn < work.turns:
                self._context[slot] = context
                sampled = max(8, int(rng.lognormvariate(0.0, work.spread) * self._sampled_median))
                result = max(8, int(rng.lognormvariate(0.0, work.spread) * self._result_median))
                ms = (
                    fixed
                    + (
                        known.cpu_us_earlier_turn * turn
                        + known.cpu_us_prompt_token * context
                        + known.cpu_us_sampled_token * sampled
                        + known.cpu_us_context_token * result
                    )
                    / 1e3
                )
                # A turn is lost if its worker dies: it is run again, on another worker.
                self._running_on[slot] = worker
                asked, turn_before = 0.0, turn
                try:
                    yield env.timeout(self._cpu(worker, ms / 2e3))
                    asked = env.now
                    self._in_call += 1
                    try:
                        while True:
                            engine = self.router.route(number, group)
                            request = Request(number, group, work.prompt, context, sampled, env.event())
                            engine.send(request)
                            if (yield request.done):
                                break
                            self.out.failed_requests += 1
                            yield env.timeout(self.rare.retry_seconds)
                    finally:
                        self._in_call -= 1
                    self._latencies.append(env.now - asked)
                    context += sampled
                    turn += 1
                    counters["turns"] += 1
                    counters["sampled"] += sampled
                    wait = self._cpu(worker, ms / 2e3)
                    if turn < work.turns:
                        wait += self._tool_seconds()
                        context += result
                    yield env.timeout(wait)
                except simpy.Interrupt:
                    self._running_on[slot] = -1
                    self.out.resumed_episodes += 1
                    if asked and env.now > asked and turn_before == turn:
                        counters["lost_with_workers"] += sampled  # the engine completes it for nobody
                    worker = (worker + 1 + rng.randrange(max(1, len(self._free_at) - 1))) % len(self._free_at)
                    # A new worker starts, reads the ledger, and repeats the recorded turns without the engine.
                    replay = turn * fixed / 1e3
                    self._cpu(worker, replay)
                    yield env.timeout(known.worker_start_seconds)
            self._running_on[slot] = -1
            counters["episodes"] += 1
            cost = known.driver_ms_episode / 1e3
            self._driver_free = max(self._driver_free, env.now) + cost
            self._driver_busy += cost
            if engine is not None:
                engine.forget(number)
            left = self._left.pop(group, work.samples) - 1
            if left:
                self._left[group] = left
            if not left or self.router.by == "episode":
                self.router.release(number, group)

    def _cpu(self, worker: int, seconds: float) -> float:
        """Use CPU time of a worker; return the seconds until it is done."""
        now = self.env.now
        end = max(self._free_at[worker], now) + seconds
        self._free_at[worker] = end
        self._busy[worker] += seconds
        return end - now

    def _tool_seconds(self) -> float:
        if self._tool is not None:
            return self._tool
        work = self.work
        return min(work.tool_limit, work.tool_median * self._random.lognormvariate(0.0, work.tool_spread))

    def _watch(self) -> Generator[Any, Any, None]:
        """Sample what changes over time."""
        last = 0.0
        while True:
            yield self.env.timeout(STEP)
            turns = self.counters["turns"]
            self.series.append((self.env.now, (turns - last) / STEP))
            last = turns
            loads, count = [engine.load for engine in self.engines], len(self._context)
            uneven = max(loads) / max(1e-9, sum(loads) / len(loads))
            sample = (1.0, uneven, sum(self._context) / count, self._in_call / count)
            self._sums = [total + one for total, one in zip(self._sums, sample, strict=True)]

    def _updates(self) -> Generator[Any, Any, None]:
        while True:
            yield self.env.timeout(self.rare.update_every)
            self.out.updates += 1
            up = [engine for engine in self.engines if engine.up]
            for engine in up:
                engine.pause()
            yield self.env.timeout(self.rare.update_seconds)
            for engine in up:
                engine.resume()

    def _engine_failures(self) -> Generator[Any, Any, None]:
        while True:
            yield self.env.timeout(self._random.expovariate(len(self.engines) / self.rare.engine_mtbf))
            engine = self._random.choice(self.engines)
            if engine.up and sum(one.up for one in self.engines) > 1:
                self.out.engine_failures += 1
                engine.fail()
                self.env.process(self._restart(engine))

    def _restart(self, engine: Engine) -> Generator[Any, Any, None]:
        yield self.env.timeout(self.rare.engine_restart)
        engine.restart()

    def _worker_failures(self) -> Generator[Any, Any, None]:
        count = len(self._free_at)
        while True:
            yield self.env.timeout(self._random.expovariate(count / self.rare.worker_mtbf))
            self.out.worker_failures += 1
            failed = self._random.randrange(count)
            for slot, worker in enumerate(self._running_on):
                if worker == failed:
                    self._slots[slot].interrupt()
