"""A run, simulated event by event: episodes, rollout workers, engines, router, tools, weight updates and failures.

Every episode is a process of SimPy that takes its turns one after another: CPU time of its worker, a request to the
engine that the router chooses, CPU time again, a tool. An episode that ends is replaced by a new one. At the start, all
episodes are at a random turn, and the engines have their conversations in the cache as far as they fit: let the run
settle before you measure it.

An engine works on up to `batch` requests at a time. Computing a prompt comes first and stops sampling; sampling gives
every running request the same speed, which falls with their number. It keeps the tokens of finished requests until it
needs the room, and drops the least recently used first. A paused or failed engine loses them. One timer runs per
engine: a request is complete when the tokens that each running request has got since the start ("clock") have advanced
by its own, so an event costs O(log requests).
"""

from __future__ import annotations

import gc
import math
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any
from zlib import crc32

import simpy

from growth.model import Coefficients, Engines, Workload

STEP = 5.0
"""Seconds between two points of `Simulation.series`."""
_COUNTS = """turns sampled prompt_tokens cached_tokens lost_tokens lost_with_workers failed_requests resumed_episodes
engine_failures worker_failures updates worker_seconds in_call_seconds"""


@dataclass(slots=True)
class Request:
    """One engine call: `prompt` tokens, of which the task's other samples share `group_tokens`, and `missing` ones."""

    episode: int
    group: int
    group_tokens: int
    prompt: int
    missing: int
    done: Any
    sampled: int = 0
    """Tokens that were sampled before the request was interrupted."""
    start: float = 0.0
    """Clock of the engine when it began to sample."""


class Engine:
    """One engine."""

    def __init__(self, env: simpy.Environment, number: int, about: Engines, counts: dict[str, float]) -> None:
        self.env, self.number, self.about, self.counts = env, number, about, counts
        self.load = 0  # requests that were sent to it and not answered
        self.up = True
        self._paused = False
        self._waiting: deque[Request] = deque()
        self._prompts: deque[tuple[Request, int]] = deque()
        self._computing = False  # the first of `_prompts`
        self._running: list[tuple[float, int, Request]] = []
        self._clock = self._clock_at = 0.0
        self._pace = 0.0  # tokens per second and request; 0: sampling is stopped
        self._count = self._timer = 0
        self._active = self._held = 0  # requests that hold a place of the batch, and their tokens
        self._cache: OrderedDict[int, int] = OrderedDict()  # tokens by episode; of shared prompts by -1 - group
        self._cached = 0
        self._steps = [about.step(count) for count in range(about.batch + 2)]

    def send(self, request: Request) -> None:
        """Accept a request; its event succeeds with True, or with False if the engine fails."""
        self.load += 1
        if not self.up:
            return self._finish(request, False)
        self._waiting.append(request)
        if not self._paused:
            self._admit()

    def remember(self, episode: int, tokens: int) -> None:
        """Put a conversation in the cache, if there is room."""
        if self._cached + self._held + tokens <= self.about.kv_tokens:
            self._cached += tokens - self._cache.pop(episode, 0)
            self._cache[episode] = tokens

    def forget(self, episode: int) -> None:
        """Make a conversation that has ended the first to be evicted."""
        if episode in self._cache:
            self._cache.move_to_end(episode, last=False)

    def pause(self) -> None:
        """Stop for a weight update: running requests keep their tokens, the cache is lost."""
        for request in (interrupted := self._interrupt()):
            got = min(request.missing, int(self._clock - request.start)) if request.start >= 0 else 0
            request.sampled, request.missing = request.sampled + got, max(1, request.missing - got)
        self._waiting.extendleft(reversed(interrupted))
        self._paused = True

    def resume(self) -> None:
        """Continue after a weight update."""
        self._paused = False
        self._admit()

    def fail(self) -> None:
        """Answer all requests with an error, and lose everything."""
        self.up = False
        for request in self._interrupt():
            if request.start >= 0:
                got = min(request.missing, int(self._clock - request.start))
                self.counts["lost_tokens"] += got + request.sampled
            self._finish(request, False)
        while self._waiting:
            self._finish(self._waiting.popleft(), False)

    def _interrupt(self) -> list[Request]:
        """Take all requests off the engine; those that were not sampling have a start below 0."""
        self._advance()
        self._pace, self._timer = 0.0, self._timer + 1
        waiting = [request for request, _ in self._prompts]
        for request in waiting:
            request.start = -1.0
        interrupted = [request for _, _, request in sorted(self._running)] + waiting
        self._running, self._prompts, self._computing = [], deque(), False
        self._active = self._held = self._cached = 0
        self._cache.clear()
        return interrupted

    def _admit(self) -> None:
        about, waiting, cache = self.about, self._waiting, self._cache
        while waiting and self._active < about.batch and self.up:
            request = waiting[0]
            prompt = request.prompt + request.sampled
            if self._active and self._held + prompt + request.missing > about.kv_tokens:
                break
            waiting.popleft()
            known, shared = cache.pop(request.episode, 0), -1 - request.group
            self._cached -= known
            if shared in cache:
                cache.move_to_end(shared)
                known = max(known, request.group_tokens)
            else:
                cache[shared] = request.group_tokens
                self._cached += request.group_tokens
            known = min(known, prompt - 1)
            self._held += prompt + request.missing
            self._active += 1
            while self._cached + self._held > about.kv_tokens and cache:
                self._cached -= cache.popitem(last=False)[1]
            self.counts["prompt_tokens"] += prompt
            self.counts["cached_tokens"] += known
            self._prompts.append((request, prompt - known))
        if self._prompts and not self._computing:
            self._compute()

    def _advance(self) -> None:
        self._clock += (self.env.now - self._clock_at) * self._pace
        self._clock_at = self.env.now

    def _compute(self) -> None:
        """Compute the next prompt; sampling stops."""
        self._advance()
        self._pace, self._computing = 0.0, True
        self._schedule(self._prompts[0][1] / self.about.prefill_tokens_per_second, self._computed)

    def _computed(self) -> None:
        request, _ = self._prompts.popleft()
        self._computing, request.start, self._count = False, self._clock, self._count + 1
        heappush(self._running, (self._clock + request.missing, self._count, request))
        self._continue()

    def _continue(self) -> None:
        if self._prompts:
            self._compute()
        elif self._running:
            self._advance()
            self._pace = 1.0 / self._steps[min(len(self._running), len(self._steps) - 1)]
            self._schedule(max(0.0, self._running[0][0] - self._clock) / self._pace, self._sampled)

    def _sampled(self) -> None:
        self._advance()
        while self._running and self._running[0][0] <= self._clock + 1e-6:
            _, _, request = heappop(self._running)
            tokens = request.prompt + request.sampled + request.missing
            self._active, self._held, self._cached = self._active - 1, self._held - tokens, self._cached + tokens
            self._cache[request.episode] = tokens
            self._finish(request, True)
        self._pace = 0.0
        if self._waiting:
            self._admit()
        if not self._computing:
            self._continue()

    def _schedule(self, seconds: float, then: Callable[[], None]) -> None:
        self._timer += 1
        number, event = self._timer, self.env.timeout(seconds)
        assert event.callbacks is not None
        event.callbacks.append(lambda _: then() if number == self._timer else None)

    def _finish(self, request: Request, ok: bool) -> None:
        self.load -= 1
        request.done.succeed(ok)


class Router:
    """Chooses the engine of a request.

    Policies: "least" keeps a key on the engine with the fewest keys when it came, "random key" on a random one, "hash"
    on the one its hash says; "scatter" takes a random one for every request; "cache" keeps a key, too, but moves it to
    the engine with the fewest requests while loads differ by more than 64 and by a factor of 1.5.
    """

    def __init__(self, engines: list[Engine], policy: str, by: str, seed: int = 0) -> None:
        self._engines, self._policy, self.by = engines, policy, by
        self._random = random.Random(seed)
        self._pinned: dict[int, int] = {}
        self._keys = [0] * len(engines)

    def route(self, episode: int, group: int) -> Engine:
        """Return the engine of a request."""
        key = group if self.by == "task" else episode
        if self._policy == "scatter":
            return self._engines[self._any()]
        number = self._pinned.get(key)
        if number is not None:
            if self._engines[number].up and not (self._policy == "cache" and self._uneven()):
                return self._engines[number]
            self._keys[number] -= 1
        number = self._choose(key, first=number is None)
        self._pinned[key] = number
        self._keys[number] += 1
        return self._engines[number]

    def release(self, episode: int, group: int) -> None:
        """Forget a key whose last episode has ended."""
        number = self._pinned.pop(group if self.by == "task" else episode, None)
        if number is not None:
            self._keys[number] -= 1

    def _uneven(self) -> bool:
        loads = [engine.load for engine in self._engines]
        return max(loads) - min(loads) > 64 and max(loads) > 1.5 * min(loads)

    def _choose(self, key: int, *, first: bool) -> int:
        engines = self._engines
        if self._policy == "hash" and first and engines[number := crc32(b"%d" % key) % len(engines)].up:
            return number
        if self._policy == "random key" or (self._policy == "hash" and first):
            return self._any()
        if self._policy == "cache":
            return min((engine.load, self._random.random(), engine.number) for engine in engines if engine.up)[2]
        return min((keys, number) for number, keys in enumerate(self._keys) if engines[number].up)[1]

    def _any(self) -> int:
        while not self._engines[number := self._random.randrange(len(self._engines))].up:
            pass
        return number


@dataclass(frozen=True)
class Events:
    """What happens to a run, besides its episodes; all values are seconds."""

    update_every: float = math.inf
    update_seconds: float = 20.0
    """Engines are paused for an update; they lose their cache."""
    engine_mtbf: float = math.inf
    """Mean time between two failures of one engine."""
    engine_restart: float = 120.0
    worker_mtbf: float = math.inf
    """Mean time between two failures of one rollout worker."""
    retry_seconds: float = 1.0
    """Time after which the client repeats a failed request."""


class Simulation:
    """One simulated run with `workers` rollout workers of one core; `tool_seconds` makes all tool calls equal."""

    def __init__(
        self, work: Workload, engines: Engines, known: Coefficients, *, workers: int, events: Events | None = None,
        policy: str = "least", by: str = "task", seed: int = 1, tool_seconds: float | None = None,
    ) -> None:  # fmt: skip
        self.work, self.known, self.rare = work, known, events or Events()
        self.env, self.counts = simpy.Environment(), dict.fromkeys(_COUNTS.split(), 0.0)
        self.engines = [Engine(self.env, number, engines, self.counts) for number in range(engines.engines)]
        self.router = Router(self.engines, policy, by, seed)
        self.series: list[tuple[float, float]] = []  # turns per second over time
        self._random, self._tool = random.Random(seed), tool_seconds
        self._free_at = [0.0] * workers
        self._next = self._in_call = 0
        self._left: dict[int, int] = {}  # episodes of a group that have not ended
        self._latencies: list[float] = []
        self._running_on = [-1] * work.episodes  # worker of each episode; -1: it waits for a worker
        self._slots = [self.env.process(self._episodes(slot)) for slot in range(work.episodes)]
        for process in (self._watch, self._updates, self._engine_failures, self._worker_failures):
            self.env.process(process())

    def run(self, until: float) -> dict[str, float]:
        """Continue the run until a simulated time in seconds; return the counts and rates of this part."""
        before, span, self._latencies = self.counts.copy(), until - self.env.now, []
        gc.disable()  # events are freed by their reference counts
        self.env.run(until=until)
        gc.enable()
        found = {name: value - before[name] for name, value in self.counts.items()}
        times = sorted(self._latencies) or [0.0]
        found["turns_per_second"], found["tokens_per_second"] = found["turns"] / span, found["sampled"] / span
        found["engine_seconds_p99"] = times[int(0.99 * (len(times) - 1))]
        found["cached"] = found["cached_tokens"] / max(1.0, found["prompt_tokens"])
        found["worker_busy"] = found["worker_seconds"] / len(self._free_at) / span
        found["in_call"] = found["in_call_seconds"] / span / self.work.episodes
        return found

    def _episodes(self, slot: int) -> Generator[Any, Any, None]:
        """One episode after another."""
        env, work, known, rng, counts = self.env, self.work, self.known, self._random, self.counts
        fixed, median = known.cpu_ms_turn + known.cpu_ms_episode / work.turns, 1 / math.exp(work.spread**2 / 2)
        worker, turn = slot % len(self._free_at), rng.randrange(work.turns)
        first = True
        while True:
            number, self._next = self._next, self._next + 1  # episodes of a task start together
            group = number // work.samples
            context = work.prompt + turn * (work.sampled + work.result)
            if first:
                engine = self.router.route(number, group)
                if turn:
                    engine.remember(number, context)
                yield env.timeout(rng.random() * 2 * work.tool_mean)
                first = False
            while turn < work.turns:
                sampled = max(8, int(rng.lognormvariate(0.0, work.spread) * work.sampled * median))
                result = max(8, int(rng.lognormvariate(0.0, work.spread) * work.result * median))
                ms = fixed + 1e-3 * (known.cpu_us_earlier_turn * turn + known.cpu_us_prompt_token * context)
                ms += 1e-3 * (known.cpu_us_sampled_token * sampled + known.cpu_us_context_token * result)
                self._running_on[slot], asked = worker, math.inf
                try:
                    yield env.timeout(self._cpu(worker, ms / 2e3))
                    asked = env.now
                    self._in_call += 1
                    try:
                        while True:
                            engine, done = self.router.route(number, group), env.event()
                            engine.send(Request(number, group, work.prompt, context, sampled, done))
                            if (yield done):
                                break
                            counts["failed_requests"] += 1
                            yield env.timeout(self.rare.retry_seconds)
                    finally:
                        self._in_call -= 1
                    self._latencies.append(env.now - asked)
                    context, turn, asked = context + sampled, turn + 1, math.inf
                    counts["turns"] += 1
                    counts["sampled"] += sampled
                    wait = self._cpu(worker, ms / 2e3)
                    if turn < work.turns:
                        wait, context = wait + self._tool_seconds(), context + result
                    yield env.timeout(wait)
                except simpy.Interrupt:  # the worker died: the turn is run again, on another one
                    self._running_on[slot] = -1
                    counts["resumed_episodes"] += 1
                    counts["lost_with_workers"] += sampled if env.now > asked else 0  # completed for nobody
                    worker = (worker + 1 + rng.randrange(max(1, len(self._free_at) - 1))) % len(self._free_at)
                    self._cpu(worker, turn * fixed / 1e3)  # repeats the recorded turns without the engine
                    yield env.timeout(known.worker_start_seconds)
            self._running_on[slot], turn = -1, 0
            engine.forget(number)
            if left := self._left.pop(group, work.samples) - 1:
                self._left[group] = left
            if not left or self.router.by == "episode":
                self.router.release(number, group)

    def _cpu(self, worker: int, seconds: float) -> float:
        """Use CPU time of a worker, in the order of arrival; return the seconds until it is done."""
        self._free_at[worker] = max(self._free_at[worker], self.env.now) + seconds
        self.counts["worker_seconds"] += seconds
        return self._free_at[worker] - self.env.now

    def _tool_seconds(self) -> float:
        work = self.work
        if self._tool is not None:
            return self._tool
        return min(work.tool_limit, work.tool_median * self._random.lognormvariate(0.0, work.tool_spread))

    def _watch(self) -> Generator[Any, Any, None]:
        while True:
            before = self.counts["turns"]
            yield self.env.timeout(STEP)
            self.series.append((self.env.now, (self.counts["turns"] - before) / STEP))
            self.counts["in_call_seconds"] += self._in_call * STEP

    def _updates(self) -> Generator[Any, Any, None]:
        while self.rare.update_every < math.inf:
            yield self.env.timeout(self.rare.update_every)
            self.counts["updates"] += 1
            up = [engine for engine in self.engines if engine.up]
            for engine in up:
                engine.pause()
            yield self.env.timeout(self.rare.update_seconds)
            for engine in up:
                engine.resume()

    def _engine_failures(self) -> Generator[Any, Any, None]:
        while self.rare.engine_mtbf < math.inf:
            yield self.env.timeout(self._random.expovariate(len(self.engines) / self.rare.engine_mtbf))
            engine = self._random.choice(self.engines)
            if engine.up and sum(one.up for one in self.engines) > 1:
                self.counts["engine_failures"] += 1
                engine.fail()
                self.env.process(self._restart(engine))

    def _restart(self, engine: Engine) -> Generator[Any, Any, None]:
        yield self.env.timeout(self.rare.engine_restart)
        engine.up = True

    def _worker_failures(self) -> Generator[Any, Any, None]:
        count = len(self._free_at)
        while self.rare.worker_mtbf < math.inf:
            yield self.env.timeout(self._random.expovariate(count / self.rare.worker_mtbf))
            self.counts["worker_failures"] += 1
            failed = self._random.randrange(count)
            for slot, worker in enumerate(self._running_on):
                if worker == failed:
                    self._slots[slot].interrupt()
