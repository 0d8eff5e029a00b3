"""The engines and the router of the simulation.

An engine works on up to `batch` requests at a time. Computing a prompt comes first and stops sampling; sampling gives
every running request the same speed, which falls with their number. It keeps the tokens of finished requests until it
needs the room, and drops the least recently used first: a conversation that comes back in time computes only what is
new. A paused or failed engine loses them.

One timer runs per engine. Sampling is followed by the number of tokens that each running request has got since the
start ("clock"): a request is complete when the clock has advanced by its tokens. So an event costs O(log requests).
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any
from zlib import crc32

import simpy

from growth.model import Engines


class Request:
    """One engine call."""

    __slots__ = ("done", "episode", "group", "group_tokens", "missing", "prompt", "sampled", "start")

    def __init__(self, episode: int, group: int, group_tokens: int, prompt: int, missing: int, done: Any) -> None:
        self.episode, self.group, self.group_tokens = episode, group, group_tokens
        self.prompt, self.missing, self.done = prompt, missing, done
        self.sampled = 0
        """Tokens that were sampled before the request was interrupted."""
        self.start = 0.0
        """Clock of the engine when it began to sample."""


class Engine:
    """One engine."""

    def __init__(self, env: simpy.Environment, number: int, about: Engines, counters: dict[str, float]) -> None:
        self.env, self.number, self.about, self.counters = env, number, about, counters
        self.load = 0
        """Requests that were sent to it and not answered."""
        self.up = True
        """Whether it answers requests."""
        self._paused = False
        self._waiting: deque[Request] = deque()
        self._prompts: deque[tuple[Request, int]] = deque()
        self._computing = False  # the first of `_prompts`
        self._running: list[tuple[float, int, Request]] = []
        self._clock = self._clock_at = 0.0
        self._pace = 0.0  # tokens per second and request; 0: sampling is stopped
        self._count = self._timer = 0
        self._active = 0  # requests that hold a place of the batch
        self._held = 0  # tokens of these
        self._cache: OrderedDict[int, int] = OrderedDict()  # tokens by episode; of shared prompts by -1 - group
        self._cached = 0
        self._steps = [about.step(count) for count in range(about.batch + 2)]

    def send(self, request: Request) -> None:
        """Accept a request; its event succeeds with True, or with False if the engine fails."""
        self.load += 1
        if not self.up:
            self._finish(request, False)
            return
        self._waiting.append(request)
        if not self._paused:
            self._admit()

    def remember(self, episode: int, tokens: int) -> None:
        """Put a conversation in the cache, if there is room."""
        if self._cached + self._held + tokens <= self.about.kv_tokens:
            self._cached += tokens - self._cache.pop(episode, 0)
            self._cache[episode] = tokens

    def forget(self, episode: int) -> None:
        """Drop a conversation that has ended: it becomes the first to be evicted."""
        if episode in self._cache:
            self._cache.move_to_end(episode, last=False)

    def pause(self) -> None:
        """Stop for a weight update: running requests keep their tokens, the cache is lost."""
        self._interrupt(keep=True)
        self._paused = True

    def resume(self) -> None:
        """Continue after a weight update."""
        self._paused = False
        self._admit()

    def fail(self) -> None:
        """Fail: all requests are answered with an error, and everything is lost."""
        lost = self._interrupt(keep=False)
        self.up = False
        for request in lost:
            self._finish(request, False)

    def restart(self) -> None:
        """Answer requests again, with an empty cache."""
        self.up = True

    def _interrupt(self, *, keep: bool) -> list[Request]:
        self._advance()
        self._pace, self._timer = 0.0, self._timer + 1
        interrupted = [request for _, _, request in sorted(self._running)]
        for request in interrupted:
            got = min(request.missing, int(self._clock - request.start))
            if keep:
                request.sampled += got
                request.missing = max(1, request.missing - got)
            else:
                self.counters["lost_tokens"] += got + request.sampled
        interrupted += [request for request, _ in self._prompts]
        rest, self._waiting = [*interrupted, *self._waiting], deque()
        self._running, self._prompts, self._computing = [], deque(), False
        self._active = self._held = self._cached = 0
        self._cache.clear()
        if keep:
            self._waiting.extend(rest)
            return []
        return rest

    def _admit(self) -> None:
        about, waiting = self.about, self._waiting
        while waiting and self._active < about.batch and self.up:
            request = waiting[0]
            prompt = request.prompt + request.sampled
            need = prompt + request.missing
            if self._active and self._held + need > about.kv_tokens:
                break
            waiting.popleft()
            known = self._cache.pop(request.episode, 0)
            self._cached -= known
            shared = -1 - request.group
            if shared in self._cache:
                self._cache.move_to_end(shared)
                known = max(known, request.group_tokens)
            else:
                self._cache[shared] = request.group_tokens
                self._cached += request.group_tokens
            known = min(known, prompt - 1)
            self._held += need
            self._active += 1
            while self._cached + self._held > about.kv_tokens and self._cache:
                self._cached -= self._cache.popitem(last=False)[1]
            self.counters["prompt_tokens"] += prompt
            self.counters["cached_tokens"] += known
            self._prompts.append((request, prompt - known))
        if self._prompts and not self._computing:
            self._compute()

    def _advance(self) -> None:
        now = self.env.now
        if self._pace:
            self._clock += (now - self._clock_at) * self._pace
        self._clock_at = now

    def _compute(self) -> None:
        """Compute the next prompt; sampling stops."""
        self._advance()
        self._pace, self._computing = 0.0, True
        seconds = self._prompts[0][1] / self.about.prefill_tokens_per_second
        self.counters["prefill_seconds"] += seconds
        self._schedule(seconds, self._computed)

    def _computed(self) -> None:
        request, _ = self._prompts.popleft()
        self._computing = False
        request.start = self._clock
        self._count += 1
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
        running, clock = self._running, self._clock + 1e-6
        while running and running[0][0] <= clock:
            _, _, request = heappop(running)
            tokens = request.prompt + request.sampled + request.missing
            self._active -= 1
            self._held -= tokens
            self._cache[request.episode] = tokens
            self._cached += tokens
            self._finish(request, True)
        self._pace = 0.0
        if self._waiting:
            self._admit()
        if not self._computing:
            self._continue()

    def _schedule(self, seconds: float, then: Callable[[], None]) -> None:
        self._timer += 1
        number = self._timer

        def fired(_: Any) -> None:
            if number == self._timer:
                then()

        event = self.env.timeout(seconds)
        assert event.callbacks is not None
        event.callbacks.append(fired)

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
        self._engines, self._policy = engines, policy
        self.by = by
        """Routing key: "task" or "episode"."""
        self._random = random.Random(seed)
        self._pinned: dict[int, int] = {}
        self._keys = [0] * len(engines)

    def _key(self, episode: int, group: int) -> int:
        return group if self.by == "task" else episode

    def route(self, episode: int, group: int) -> Engine:
        """Return the engine of a request."""
        engines, policy, key = self._engines, self._policy, self._key(episode, group)
        if policy == "scatter":
            return engines[self._any()]
        number = self._pinned.get(key)
        if number is not None and engines[number].up:
            if policy != "cache":
                return engines[number]
            loads = [engine.load for engine in engines]
            if not (max(loads) - min(loads) > 64 and max(loads) > 1.5 * min(loads)):
                return engines[number]
        if number is not None:
            self._keys[number] -= 1
        number = self._choose(key, first=number is None)
        self._pinned[key] = number
        self._keys[number] += 1
        return engines[number]

    def release(self, episode: int, group: int) -> None:
        """Forget a key whose last episode has ended."""
        number = self._pinned.pop(self._key(episode, group), None)
        if number is not None:
            self._keys[number] -= 1

    def _choose(self, key: int, *, first: bool) -> int:
        engines = self._engines
        if self._policy == "hash" and first:
            number = crc32(b"%d" % key) % len(engines)
            return number if engines[number].up else self._any()
        if self._policy == "random key":
            return self._any()
        if self._policy == "cache":
            return min((engine.load, self._random.random(), engine.number) for engine in engines if engine.up)[2]
        least = min(self._keys)
        number = self._keys.index(least)
        if engines[number].up:
            return number
        return min((keys, number) for number, keys in enumerate(self._keys) if engines[number].up)[1]

    def _any(self) -> int:
        while True:
            number = self._random.randrange(len(self._engines))
            if self._engines[number].up:
                return number
