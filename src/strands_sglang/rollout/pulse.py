"""Whether the engine is alive while episodes wait for it: `Pulse`.

An engine that hangs fails no attempt: nothing comes back, and whoever waits cannot tell it from one that samples for
long. So it is asked for a sign of life whenever calls are under way and nothing has been answered for a while.

Invariant: a silence is told to every clock that has a call under way, from the last sign of life on; an engine that
answers is asked once, at the beginning. One worker of several that is silent is a silence: calls may be with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from strands_sglang.rollout.clock import Clock

_BEAT = 5.0  # seconds between two looks
_QUIET = 10.0  # seconds without an answer after which a sign of life is asked for
_PROMPT = 3.0  # seconds in which an engine that is merely busy gives it
_PATIENCE = 10.0  # seconds that a busy engine may take to give it


_Ask = Callable[[float], Awaitable[Mapping[str, bool]]]


class Pulse:
    """Watches the engine of one worker, on its event loop."""

    def __init__(self, engine: Any, *, beat: float = _BEAT, quiet: float = _QUIET, patience: float = _PATIENCE) -> None:
        """Watch an engine.

        Args:
            engine: With a `control` that can be asked for `signs_of_life`; any other is taken to be alive.
            beat: Seconds between two looks.
            quiet: Seconds without an answer after which a sign of life is asked for.
            patience: Seconds that the engine has to give it.
        """
        self._ask: _Ask | None = getattr(getattr(engine, "control", None), "signs_of_life", None)
        self._seen: set[str] = set()
        self._beat, self._quiet, self._patience = beat, quiet, patience
        self._clocks: set[Clock] = set()
        self._signed = time.monotonic()
        self._task: asyncio.Task[None] | None = None

    def answered(self) -> None:
        """Hear that the engine has answered."""
        self._signed = time.monotonic()

    @contextmanager
    def watching(self, clock: Clock) -> Iterator[None]:
        """Tell a clock of silences for as long as this block runs; on the worker's event loop."""
        if self._ask is None:
            yield
            return
        if not self._clocks:
            self._signed = time.monotonic()
            self._task = asyncio.ensure_future(self._look())
        self._clocks.add(clock)
        try:
            yield
        finally:
            self._clocks.discard(clock)
            if not self._clocks and self._task is not None:
                self._task.cancel()
                self._task = None

    async def alive(self) -> bool:
        """Ask the engine for a sign of life; where it gives none, the clocks are told."""
        if self._ask is None:
            return True
        # Answers come together with the sign that ends a silence: what was known when it was asked for counts.
        began, signed = time.monotonic(), self._signed
        try:
            signs = await self._ask(self._patience)
        except Exception:
            signs = {}
        # A worker that never answered here cannot be reached from here: that says nothing.
        alive = bool(signs) and all(sign or url not in self._seen for url, sign in signs.items())
        self._seen |= {url for url, sign in signs.items() if sign}
        if not alive or time.monotonic() - began > _PROMPT:  # one that comes late says that the silence is over
            for clock in tuple(self._clocks):
                clock.silent(signed)
        if alive:
            self._signed = time.monotonic()
        return alive

    async def _look(self) -> None:
        await self.alive()  # who can be asked at all
        while True:
            await asyncio.sleep(self._beat)
            waited_for = any(clock.asked_at is not None for clock in tuple(self._clocks))
            if waited_for and time.monotonic() - self._signed >= self._quiet:
                await self.alive()
