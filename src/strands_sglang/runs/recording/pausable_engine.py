"""The engine of one episode that may be paused at any time: `PausableEngine`.

A pause ends an episode in this process so that it can be resumed later, here or elsewhere. A turn that is being sampled
at that moment becomes a `PartialTurn`.

Invariant: once the episode is paused no request starts. Tokens already sampled of a turn are kept, and a later call
with the same prompt continues after them; if that would not be exact they are discarded and counted.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from strands_sglang.engine import AbortPolicy, FinishReason, Generation, TokenEngine
from strands_sglang.engine.continuation import Continuation, NextStep, no_progress
from strands_sglang.engine.protocol import CancelSignal, TokenIds, pause_requested
from strands_sglang.engine.retry import Backoff, Retries, RetryPolicy
from strands_sglang.errors import CallCancelledError, StrandsSGLangError

# A pause requested by another process may arrive this many seconds after the engine aborted the turn.
_SETTLE_SECONDS = 0.3
# For requests that were interrupted without a token that could be kept.
_POLICY = RetryPolicy(max_retries=60, backoff=Backoff(base=0.02, cap=1.0))


class PartialTurn(NamedTuple):
    """A turn that was interrupted because its episode was paused."""

    prompt: array[int]
    sampled: Generation
    """The tokens sampled for exactly this prompt."""
    within: tuple[str, ...]
    """Ids of the tool calls during which it was sampled; empty for a turn of the agent itself."""


class PausedError(StrandsSGLangError):
    """An engine call ended because its episode is paused."""

    def __init__(self, part: Generation | None) -> None:
        super().__init__("the episode is paused")
        self.part = part
        """The part of the turn that can be continued; None if there is none."""


class PausableEngine:
    """Samples the turns of one episode.

    Args:
        engine: The engine that samples.
        pause_signal: Once it is set, no request starts; None if only `pause` can pause the episode.
        pausable: Whether the episode can be paused at all; otherwise turns are passed to the engine unchanged.
        on_pause: Called once, from any thread, when `pause_signal` is first seen to be set.
    """

    def __init__(
        self,
        engine: TokenEngine,
        pause_signal: CancelSignal | None = None,
        *,
        pausable: bool = False,
        on_pause: Callable[[], object] | None = None,
    ) -> None:
        self._engine, self._pause_signal = engine, pause_signal
        self._pausable = pausable or pause_signal is not None
        self._paused, self._on_pause = False, on_pause
        self.in_flight = 0
        """Calls that have not returned yet."""

    @property
    def paused(self) -> bool:
        """Whether no more requests may start. It stays True even if `pause_signal` is cleared."""
        if not self._paused and self._pause_signal is not None and self._pause_signal.is_set():
            self._paused = True
            if self._on_pause is not None:
                self._on_pause()
        return self._paused

    def pause(self) -> None:
        """Start no more requests."""
        self._paused = True

    async def generate(
        self,
        input_ids: TokenIds,
        sampling_params: Mapping[str, Any] | None = None,
        kept: Generation | None = None,
        *,
        on_abort: AbortPolicy = AbortPolicy.CONTINUE,
        **arguments: Any,
    ) -> Generation:
        """Return a complete turn.

        Args:
            input_ids: The prompt.
            sampling_params: Sampling parameters of the whole turn.
            kept: The part of the turn that an earlier call sampled; None if there is none.
            on_abort: What to do when the engine interrupts the turn and the episode is not paused.
            **arguments: Further arguments of `TokenEngine.generate`.

        Raises:
            PausedError: The episode was paused; with the part of the turn sampled so far.
        """
        if not self._pausable and kept is None:
            return await self._engine.generate(input_ids, sampling_params, on_abort=on_abort, **arguments)
        sampling = dict(sampling_params or {})
        continuation = Continuation(
            sampling,
            arguments.get("extra"),
            on_abort=on_abort,
            kept=kept,
            kept_sets=bool(arguments.get("kept_sets")),
        )
        self.in_flight += 1
        token = pause_requested.set(lambda: self.paused)
        try:
            return await self._whole(input_ids, continuation, on_abort, arguments)
        except CallCancelledError:
            if self.paused:
                raise PausedError(continuation.partial) from None
            raise
        finally:
            pause_requested.reset(token)
            self.in_flight -= 1

    async def _whole(
        self, input_ids: TokenIds, continuation: Continuation, on_abort: AbortPolicy, arguments: dict[str, Any]
    ) -> Generation:
        retries = Retries(_POLICY, "the engine")
        while True:
            if self.paused:
                raise PausedError(continuation.partial)
            if continuation.spent:
                return continuation.turn()
            part = await self._part(input_ids, continuation, arguments)
            aborted = part.finish_reason is FinishReason.ABORT
            if aborted and not self._paused and self._pause_signal is None:
                await asyncio.sleep(_SETTLE_SECONDS)
            # A part is kept for later if the episode is paused, even if `on_abort` is RETURN.
            step = continuation.add(part, interrupted=aborted and (self.paused or on_abort is AbortPolicy.CONTINUE))
            if step is NextStep.WHOLE:
                return continuation.turn()
            if step is NextStep.CONTINUE:
                retries.progressed()
            elif step is not NextStep.SPENT and not self.paused:
                await retries.after(no_progress(part))

    async def _part(self, input_ids: TokenIds, continuation: Continuation, arguments: dict[str, Any]) -> Generation:
        """Request the rest of the turn."""
        ids, sampling, start = continuation.rest(input_ids, arguments.get("routed_experts_start"))
        if start is not None:
            arguments = {**arguments, "routed_experts_start": start}
        return await self._engine.generate(ids, sampling, on_abort=AbortPolicy.RETURN, **arguments)
