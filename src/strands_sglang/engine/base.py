"""`BaseEngine`: a `TokenEngine` for anything that takes ids and returns sampled ids and logprobs.

A subclass implements `request` and declares its `capabilities`, as the engines of verl, SkyRL and AReaL do.

Invariant: a turn is returned complete, every token with its logprob, or an error is raised. Tokens of an interrupted
turn are kept and continued, or discarded and counted. What an engine does not declare is refused before a request is
sent, and any exception of `request` is raised as an `EngineError`.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any
from uuid import uuid4

import numpy as np

from strands_sglang.engine.cancellation import CancelPoller, CancelScope
from strands_sglang.engine.continuation import Continuation, NextStep, no_progress
from strands_sglang.engine.protocol import (
    AbortPolicy,
    CancelSignal,
    Capability,
    FinishReason,
    Generation,
    PromptImage,
    RoutedExperts,
    TokenIds,
)
from strands_sglang.engine.request import has_kept_sets
from strands_sglang.engine.retry import Backoff, Retries, RetryPolicy
from strands_sglang.errors import ConfigurationError, CountMismatchError, EngineUnavailableError, StrandsSGLangError
from strands_sglang.tokens.arrays import VersionSpan

logger = logging.getLogger(__name__)

_DELAY_SECONDS = 1.0
_MAX_RETRIES = 60  # requests in a row that the engine may interrupt before a token is kept


class BaseEngine(ABC):
    """An engine that samples one request at a time.

    `request` retries failed requests if it can; only interrupted turns are sent again here. Images and kept sets need
    an own `generate`. `examples/other_engine` is an engine on plain transformers.
    """

    owner = "this program"
    capabilities: frozenset[Capability] = frozenset()

    def __init__(self) -> None:
        self.delay = _DELAY_SECONDS
        """Seconds before an interrupted turn is continued: weights are being updated."""
        self._poller: tuple[asyncio.AbstractEventLoop, CancelPoller] | None = None

    @abstractmethod
    async def request(
        self, input_ids: list[int], sampling: dict[str, Any], key: str, experts_start: int | None
    ) -> Generation:
        """Send one request; `input_ids` (the whole prompt) and `sampling` (with `max_new_tokens`) may be modified.

        None for `experts_start`: no routed experts are returned. `FinishReason.ABORT`: the engine interrupted the turn.
        """

    def loses_kept_sets(self, sampling: Mapping[str, Any]) -> bool:
        """Return whether sampling has kept sets that the answer does not tell."""
        return has_kept_sets(sampling)

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
        images: Sequence[PromptImage] = (),
    ) -> Generation:
        """Sample a continuation of `input_ids`; `TokenEngine.generate` explains the arguments."""
        if extra:
            raise ConfigurationError(
                f"extra must be empty, got {list(extra)}: {self.owner} passes no further fields to the engine"
            )
        if images:
            raise ConfigurationError(
                f"images cannot be sent through {self.owner}'s engine: it does not report the ids that it computed, so "
                "nothing proves that the trainer has images at the same positions. Train with slime or Miles, or make "
                "your own batches of rollout(client=SGLangClient(...))"
            )
        if routed_experts_start is not None and Capability.ROUTED_EXPERTS not in self.capabilities:
            raise ConfigurationError(f"routed experts must not be requested: {self.owner}'s engine returns none")
        sampling = dict(sampling_params or {})
        if not isinstance(sampling.get("max_new_tokens"), int):
            raise ConfigurationError(
                "sampling_params must contain an int max_new_tokens: it decides whether a turn was truncated"
            )
        if self.loses_kept_sets(sampling) and self.owner not in _logged:
            _logged.add(self.owner)
            logger.warning(
                "engine=<%s> | sampling with top_p, top_k or min_p has kept sets that the engine does not return, "
                "so importance ratios are biased: sample without them, or train with slime or "
                "Miles (logged once)",
                self.owner,
            )
        prompt: list[int] = input_ids.tolist() if hasattr(input_ids, "tolist") else list(input_ids)
        key = routing_key or uuid4().hex
        work = self._whole(prompt, Continuation(sampling, on_abort=on_abort), key, routed_experts_start)
        if deadline is None and cancel_signal is None:
            return await work
        loop = asyncio.get_running_loop()
        expires_at = None if deadline is None else loop.time() + deadline
        try:
            with CancelScope(loop, self._poller_of(loop), expires_at, deadline, cancel_signal):
                return await work
        finally:
            work.close()

    async def _whole(
        self, prompt: list[int], continuation: Continuation, key: str, experts_start: int | None
    ) -> Generation:
        policy = RetryPolicy(_MAX_RETRIES, Backoff(base=0.0, cap=0.0))  # the delay is set by each fault
        retries = Retries(policy, f"{self.owner}'s engine")
        while True:
            ids, sampling, start = continuation.rest(prompt, experts_start)
            part = await self._part(list(ids), sampling, key, start)
            step = continuation.add(part)
            if step is NextStep.WHOLE or step is NextStep.SPENT:
                return continuation.turn()
            if step is NextStep.CONTINUE:
                retries.progressed()
                await asyncio.sleep(self.delay)
            else:
                await retries.after(no_progress(part, retry_after=self.delay))

    async def _part(
        self, input_ids: list[int], sampling: dict[str, Any], key: str, experts_start: int | None
    ) -> Generation:
        try:
            return await self.request(input_ids, sampling, key, experts_start)
        except StrandsSGLangError:
            raise
        except Exception as error:
            raise EngineUnavailableError(
                f"{self.owner}'s engine failed: {type(error).__name__}: {error}", attempts=1
            ) from error

    def _poller_of(self, loop: asyncio.AbstractEventLoop) -> CancelPoller:
        if self._poller is None or self._poller[0] is not loop:
            self._poller = (loop, CancelPoller(loop))
        return self._poller[1]


_logged: set[str] = set()


def sampled(
    owner: str,
    token_ids: Sequence[int],
    logprobs: Sequence[float] | None,
    versions: tuple[VersionSpan, ...],
    finish: tuple[FinishReason, int | str | None],
    **more: Any,
) -> Generation:
    """Return a `Generation`; tokens without logprobs raise `CountMismatchError`."""
    if logprobs is None and len(token_ids):
        raise CountMismatchError(
            f"{owner}'s engine returned {len(token_ids)} tokens without logprobs, which were requested"
        )
    ids, chances = array("i", token_ids), array("d", logprobs or ())
    return Generation(ids, chances, finish[0], finish[1], versions if len(ids) else (), **more)


def finished(reason: str | None, token_ids: Sequence[int], budget: int) -> tuple[FinishReason, int | str | None]:
    """Return why a turn ended, for an engine's own stop reason.

    Some engines report "completed" both for a turn that ended and for one that was truncated. A turn that used up its
    budget counts as truncated here; whether its last token ended it is decided later, from the token itself.
    """
    if reason in ("abort", "aborted"):
        return FinishReason.ABORT, reason
    if reason == "length" or (reason in ("completed", None) and len(token_ids) >= budget):
        return FinishReason.LENGTH, budget
    if reason in ("stop", "completed", "tool_calls", None):
        return FinishReason.STOP, int(token_ids[-1]) if len(token_ids) else None
    return FinishReason.UNKNOWN, reason


def spans_of(versions: Sequence[Any]) -> tuple[VersionSpan, ...]:
    """Return the version spans for the version of each token."""
    spans: list[VersionSpan] = []
    for version, run in groupby(versions):
        start = spans[-1].end if spans else 0
        spans.append(VersionSpan(None if version is None else str(version), start, start + len(list(run))))
    return tuple(spans)


def experts_from(choices: Any, start: int | None) -> RoutedExperts | None:
    """Return the routed experts from position `start` on; `choices` has one row per position."""
    if choices is None or start is None:
        return None
    rows = np.asarray(choices)[start:]
    return RoutedExperts((base64.b64encode(rows.astype("<i4").tobytes()).decode(),), (len(rows),), start)
