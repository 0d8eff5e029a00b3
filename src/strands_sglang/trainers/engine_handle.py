"""A trainer's own way to its engine, as a `TokenEngine`: `EngineHandle`.

verl, SkyRL and AReaL each hand their users an object that takes ids and gives sampled ids back. What is the same about
all of them is here; what is peculiar to one is in its `ask`.

Invariant: a turn comes back whole, every token with its logprob, or an error says so. Tokens of a turn that the engine
cut are kept and gone on from, or discarded and counted. Whatever a trainer's client raises arrives as an `EngineError`.
"""

from __future__ import annotations

import asyncio
import base64
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any
from uuid import uuid4

import numpy as np

from strands_sglang.engine import AbortPolicy, CancelSignal, FinishReason, Generation, RoutedExperts, TokenIds
from strands_sglang.engine.assembly import joined, rest_of
from strands_sglang.engine.guard import CallGuard, CancelWatch
from strands_sglang.engine.request import can_go_on
from strands_sglang.errors import ConfigurationError, CountMismatchError, EngineUnavailableError, StrandsSGLangError
from strands_sglang.tokens.versions import VersionSpan

_TRIES = 60  # times in a row that the engine may cut a turn before it has sampled anything
_PAUSE = 1.0  # seconds before a turn that was cut goes on: weights are being exchanged


class EngineHandle(ABC):
    """An engine that is somebody else's to reach. It has no retries of its own: its owner's client has them."""

    owner = "the trainer"
    """Whose it is, for messages."""

    def __init__(self) -> None:
        self.pause = _PAUSE
        """Seconds before a turn that was cut goes on."""
        self._watch: tuple[asyncio.AbstractEventLoop, CancelWatch] | None = None

    @abstractmethod
    async def ask(
        self, input_ids: list[int], sampling: dict[str, Any], key: str, experts_start: int | None
    ) -> Generation:
        """Send one request.

        Args:
            input_ids: The whole prompt; the callee's own.
            sampling: SGLang sampling parameters with `max_new_tokens`; the callee's own.
            key: Requests with the same key belong to one episode.
            experts_start: First position whose routed experts are wanted; None: none are.

        Returns:
            What was sampled, `FinishReason.ABORT` where the engine cut it.
        """

    async def generate(
        self,
        input_ids: TokenIds,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        routing_key: str | None = None,
        deadline: float | None = None,
        cancel_signal: CancelSignal | None = None,
        on_abort: AbortPolicy = AbortPolicy.CONTINUE,
        routed_experts_start: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Generation:
        """Sample a continuation of `input_ids`; `TokenEngine.generate` explains the arguments.

        Raises:
            EngineUnavailableError: The trainer's client failed; `__cause__` is its error.
            CountMismatchError: Ids, logprobs or versions do not add up.
            DeadlineExceededError: The deadline passed.
            CallCancelledError: The cancel signal was set.
        """
        if extra:
            raise ConfigurationError(f"{self.owner} passes no further fields on to the engine: leave out {list(extra)}")
        sampling = dict(sampling_params or {})
        if not isinstance(sampling.get("max_new_tokens"), int):
            raise ConfigurationError("sampling_params need max_new_tokens: whether a turn was cut depends on it")
        prompt: list[int] = input_ids.tolist() if hasattr(input_ids, "tolist") else list(input_ids)
        key = routing_key or uuid4().hex
        work = self._whole(prompt, sampling, key, on_abort, routed_experts_start)
        if deadline is None and cancel_signal is None:
            return await work
        loop = asyncio.get_running_loop()
        expires_at = None if deadline is None else loop.time() + deadline
        try:
            with CallGuard(loop, self._watch_of(loop), expires_at, deadline, cancel_signal):
                return await work
        finally:
            work.close()

    async def _whole(
        self, prompt: list[int], sampling: dict[str, Any], key: str, on_abort: AbortPolicy, experts_start: int | None
    ) -> Generation:
        goes_on, tries, discarded = can_go_on(sampling, None), 0, 0
        kept: Generation | None = None
        while True:
            part = await self._part(prompt, sampling, kept, key, experts_start)
            whole = part if kept is None else joined(kept, part)
            if part.finish_reason is not FinishReason.ABORT or on_abort is AbortPolicy.RETURN:
                return replace(whole, discarded_tokens=discarded) if discarded else whole
            if goes_on and len(whole):
                kept = whole
                if len(kept) >= sampling["max_new_tokens"]:
                    return replace(kept, finish_reason=FinishReason.LENGTH, finish_detail=len(kept))
            else:
                discarded += len(part)
            tries = 0 if len(part) else tries + 1
            if tries > _TRIES:
                raise EngineUnavailableError(
                    f"{self.owner}'s engine cut the turn {tries} times before it had sampled anything", attempts=tries
                )
            await asyncio.sleep(self.pause)

    async def _part(
        self, prompt: list[int], sampling: dict[str, Any], kept: Generation | None, key: str, experts_start: int | None
    ) -> Generation:
        """Ask for the rest of a turn."""
        ids, rest = array("i", prompt), dict(sampling)
        if kept is not None:
            ids, rest, experts_start = rest_of(ids, sampling, kept, experts_start)
        try:
            return await self.ask(ids.tolist(), rest, key, experts_start)
        except StrandsSGLangError:
            raise
        except Exception as error:
            raise EngineUnavailableError(
                f"{self.owner}'s engine failed: {type(error).__name__}: {error}", attempts=1
            ) from error

    def _watch_of(self, loop: asyncio.AbstractEventLoop) -> CancelWatch:
        if self._watch is None or self._watch[0] is not loop:
            self._watch = (loop, CancelWatch(loop))
        return self._watch[1]


def sampled(
    owner: str,
    token_ids: Sequence[int],
    logprobs: Sequence[float] | None,
    versions: tuple[VersionSpan, ...],
    finish: tuple[FinishReason, int | str | None],
    **more: Any,
) -> Generation:
    """Return a generation from what a trainer's client gave.

    Raises:
        CountMismatchError: There are tokens without logprobs.
    """
    if logprobs is None and len(token_ids):
        raise CountMismatchError(
            f"{owner}'s engine gave {len(token_ids)} tokens without logprobs, which were asked for"
        )
    ids, chances = array("i", token_ids), array("d", logprobs or ())
    return Generation(ids, chances, finish[0], finish[1], versions if len(ids) else (), **more)


def finished(reason: str | None, token_ids: Sequence[int], budget: int) -> tuple[FinishReason, int | str | None]:
    """Return why a turn ended, from the word of an engine.

    Some call a turn "completed" whether it ended or was cut: one that has used up its budget counts as cut here, and
    what is read off its last token later is whether it had ended just there.
    """
    if reason in ("abort", "aborted"):
        return FinishReason.ABORT, reason
    if reason == "length" or (reason in ("completed", None) and len(token_ids) >= budget):
        return FinishReason.LENGTH, budget
    if reason in ("stop", "completed", "tool_calls", None):
        return FinishReason.STOP, int(token_ids[-1]) if len(token_ids) else None
    return FinishReason.UNKNOWN, reason


def spans_of(versions: Sequence[Any]) -> tuple[VersionSpan, ...]:
    """Return runs of one version from the version of every token."""
    spans: list[VersionSpan] = []
    for version, run in groupby(versions):
        start = spans[-1].end if spans else 0
        spans.append(VersionSpan(None if version is None else str(version), start, start + len(list(run))))
    return tuple(spans)


def experts_from(choices: Any, start: int | None) -> RoutedExperts | None:
    """Return routed experts from an array with one row a position, beginning with the first of the prompt.

    Args:
        choices: Of shape (rows, ...); None: there are none.
        start: First position that is wanted; None: none is.
    """
    if choices is None or start is None:
        return None
    rows = np.asarray(choices)[start:]
    return RoutedExperts((base64.b64encode(rows.astype("<i4").tobytes()).decode(),), (len(rows),), start)
