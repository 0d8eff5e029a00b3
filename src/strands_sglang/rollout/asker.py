"""Asking the engine for the turns of one episode, which may be told to stop at any time: `Asker`.

Invariant: once the episode is halted no request begins. What was sampled of a turn by then is kept, and a later call
for the same prompt goes on behind it; where going on would not be exact it is given up, and counted.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from strands_sglang.engine import AbortPolicy, FinishReason, Generation, TokenEngine
from strands_sglang.engine.assembly import joined, rest_of
from strands_sglang.engine.protocol import CancelSignal, TokenIds, halting
from strands_sglang.engine.request import can_go_on
from strands_sglang.errors import CallCancelledError, EngineUnavailableError, StrandsSGLangError

_SETTLE = 0.3  # seconds: who halts us from another process may be heard a little after the engine cut the turn
_TRIES = 60  # times that the engine may cut a turn before it has sampled anything
_LONGEST_PAUSE = 1.0  # seconds


class HaltedError(StrandsSGLangError):
    """An engine call ended because its episode is halted."""

    def __init__(self, part: Generation | None) -> None:
        super().__init__("the episode is halted")
        self.part = part
        """What was sampled of the turn; None: nothing that could be gone on from."""


class Asker:
    """Asks for the turns of one episode."""

    def __init__(
        self,
        engine: TokenEngine,
        halt: CancelSignal | None = None,
        *,
        haltable: bool = False,
        on_halt: Callable[[], object] | None = None,
    ) -> None:
        """Begin.

        Args:
            engine: Who is asked.
            halt: Once it is set, no request begins; None: only `stop` says so.
            haltable: Whether the episode may be halted at all; else turns are left to the engine's own care.
            on_halt: Called once, from any thread, when `halt` is seen to be set.
        """
        self._engine, self._halt, self._haltable = engine, halt, haltable or halt is not None
        self._stopped, self._on_halt = False, on_halt
        self.under_way = 0
        """Engine calls that were not answered yet."""

    @property
    def halted(self) -> bool:
        """Whether no more requests may begin. It stays so, even when `halt` is taken back."""
        if not self._stopped and self._halt is not None and self._halt.is_set():
            self._stopped = True
            if self._on_halt is not None:
                self._on_halt()
        return self._stopped

    def stop(self) -> None:
        """Begin no more requests."""
        self._stopped = True

    async def ask(
        self,
        input_ids: TokenIds,
        sampling_params: Mapping[str, Any] | None,
        kept: Generation | None = None,
        *,
        on_abort: AbortPolicy = AbortPolicy.CONTINUE,
        **asked: Any,
    ) -> Generation:
        """Return a whole turn.

        Args:
            input_ids: The prompt.
            sampling_params: How to sample the whole turn.
            kept: What was sampled of it in an earlier call; None: nothing.
            on_abort: What to do when the engine cuts the turn, and the episode is not halted.
            **asked: Further arguments of the engine.

        Raises:
            HaltedError: The episode was halted; with what there is of the turn.
        """
        if not self._haltable and kept is None:
            return await self._engine.generate(input_ids, sampling_params, on_abort=on_abort, **asked)
        self.under_way += 1
        try:
            return await self._whole(input_ids, dict(sampling_params or {}), kept, on_abort, asked)
        finally:
            self.under_way -= 1

    async def _whole(
        self,
        input_ids: TokenIds,
        sampling: dict[str, Any],
        kept: Generation | None,
        on_abort: AbortPolicy,
        asked: dict[str, Any],
    ) -> Generation:
        goes_on, tries, discarded = can_go_on(sampling, asked.get("extra")), 0, 0
        if kept is not None and not goes_on:
            discarded, kept = len(kept), None
        while True:
            if self.halted:
                raise HaltedError(kept)
            if kept is not None and len(kept) >= sampling["max_new_tokens"]:
                return replace(kept, finish_reason=FinishReason.LENGTH, finish_detail=len(kept))
            part = await self._part(input_ids, sampling, kept, asked)
            whole = part if kept is None else joined(kept, part)
            given = replace(whole, discarded_tokens=whole.discarded_tokens + discarded) if discarded else whole
            if part.finish_reason is not FinishReason.ABORT:
                return given
            if goes_on and len(whole):
                kept = whole
            else:
                discarded += len(whole)
            if not self._stopped and self._halt is None:
                await asyncio.sleep(_SETTLE)
            if self.halted:
                raise HaltedError(kept)
            if on_abort is AbortPolicy.RETURN:
                return given
            tries = 0 if len(part) else tries + 1
            if tries > _TRIES:
                raise EngineUnavailableError(f"the engine aborted the request: {part.finish_detail}", attempts=tries)
            if tries:
                await asyncio.sleep(min(_LONGEST_PAUSE, 0.01 * 2**tries))

    async def _part(
        self, input_ids: TokenIds, sampling: dict[str, Any], kept: Generation | None, asked: dict[str, Any]
    ) -> Generation:
        """Ask for the rest of a turn."""
        if kept is not None:
            wanted = asked.get("routed_experts_start")
            input_ids, sampling, wanted = rest_of(array("i", input_ids), sampling, kept, wanted)
            asked = {**asked, "routed_experts_start": wanted}
        token = halting.set(lambda: self.halted)
        try:
            return await self._engine.generate(input_ids, sampling, on_abort=AbortPolicy.RETURN, **asked)
        except CallCancelledError:
            if self.halted:
                raise HaltedError(kept) from None
            raise
        finally:
            halting.reset(token)
