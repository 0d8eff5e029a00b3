"""The state machine that assembles one turn from the requests it takes.

An engine may interrupt a turn (a weight update, an abort, a broken stream). Every caller that handles this feeds the
parts it receives to a `Continuation` and follows the returned `NextStep`.

Invariant: every sampled token is kept exactly once and in order, or counted in `Generation.discarded_tokens`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from functools import reduce
from typing import Any

from strands_sglang.engine.protocol import AbortPolicy, FinishReason, Generation, RoutedExperts, SpecInfo, TokenIds
from strands_sglang.engine.request import can_continue, remaining_sampling
from strands_sglang.engine.response import TransientFault
from strands_sglang.errors import EngineUnavailableError
from strands_sglang.tokens.arrays import VersionSpan, joined_spans
from strands_sglang.tokens.kept_sets import KeptSets


class NextStep(Enum):
    """What to do after a part of a turn arrived."""

    WHOLE = "whole"
    SPENT = "spent"
    """The turn was interrupted after its last token within `max_new_tokens`: return `Continuation.turn()`."""
    CONTINUE = "continue"
    RESTART = "restart"
    """The part cannot be continued exactly and is discarded: request the whole turn again."""
    NO_PROGRESS = "no_progress"
    """The part has no tokens: send the same request again."""


def is_interrupted(part: Generation, on_abort: AbortPolicy) -> bool:
    """Return whether the engine interrupted this part and the turn is to be continued."""
    return part.finish_reason is FinishReason.ABORT and on_abort is AbortPolicy.CONTINUE


def no_progress(part: Generation | None, retry_after: float | None = None) -> TransientFault:
    """Return the fault of a request that was aborted without a token that is kept; `retry_after` is in seconds."""
    detail = None if part is None else part.finish_detail
    error = EngineUnavailableError(f"the engine aborted the request: {detail}", attempts=1)
    return TransientFault(error, retry_after=retry_after)


class Continuation:
    """The parts of one turn received so far; `kept` is a part from an earlier call.

    With `kept_sets`, a part that lacks them is discarded: only a turn that has all of them can be trained.
    """

    def __init__(
        self,
        sampling: Mapping[str, Any],
        extra: Mapping[str, Any] | None = None,
        *,
        on_abort: AbortPolicy = AbortPolicy.CONTINUE,
        kept: Generation | None = None,
        kept_sets: bool = False,
    ) -> None:
        self._sampling = sampling
        self._on_abort = on_abort
        self._kept_sets = kept_sets
        # None: parts of this turn cannot be continued.
        self._budget: int | None = sampling["max_new_tokens"] if can_continue(sampling, extra) else None
        self._parts: list[Generation] = []
        self._whole = False
        self._discarded = 0
        self._dropped_requests = 0
        if kept is not None:
            self._keep_or_discard(kept)

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    @property
    def spent(self) -> bool:
        """Whether the tokens kept use up `max_new_tokens`."""
        return self._budget is not None and bool(self._parts) and len(self) >= self._budget

    @property
    def partial(self) -> Generation | None:
        """The tokens kept so far, as one part; None if there are none."""
        if not self._parts:
            return None
        return self._parts[0] if len(self._parts) == 1 else self._joined()

    @property
    def experts_end(self) -> int | None:
        """First position whose routed experts have not been received; None if none have been."""
        for part in reversed(self._parts):
            if (experts := part.routed_experts) is not None:
                return experts.start + len(experts)
        return None

    def add(self, part: Generation, *, interrupted: bool | None = None) -> NextStep:
        """Take the next part and return what to do.

        `interrupted`: whether the turn is to be continued; None to decide by its finish reason and `on_abort`.
        """
        if interrupted is None:
            interrupted = is_interrupted(part, self._on_abort)
        if not interrupted:
            self._parts.append(part)
            self._whole = True
            return NextStep.WHOLE
        if not len(part):
            self._dropped_requests += part.requests
            return NextStep.NO_PROGRESS
        if not self._keep_or_discard(part):
            return NextStep.RESTART
        return NextStep.SPENT if self.spent else NextStep.CONTINUE

    def rest(self, prompt: TokenIds, experts_start: int | None) -> tuple[TokenIds, dict[str, Any], int | None]:
        """Return what to request next: ids, sampling parameters, and the first position of routed experts."""
        if not self._parts:
            return prompt, dict(self._sampling), experts_start
        ids = array("i", prompt)
        for part in self._parts:
            ids += part.token_ids
        end = self.experts_end
        return ids, remaining_sampling(self._sampling, len(self)), experts_start if end is None else end

    def turn(self) -> Generation:
        """Return the complete turn, after `NextStep.WHOLE` or once it is `spent`."""
        last = self._parts[-1]
        if self._whole and len(self._parts) == 1 and not self._discarded and not self._dropped_requests:
            return last
        turn = self._joined(self._discarded, self._dropped_requests)
        if not self._whole:
            return replace(turn, finish_reason=FinishReason.LENGTH, finish_detail=len(turn))
        detail = last.finish_detail
        if last.finish_reason is FinishReason.LENGTH and isinstance(detail, int):
            # The last request was given only the rest of the budget.
            return replace(turn, finish_detail=detail + len(turn) - len(last))
        return turn

    def _keep_or_discard(self, part: Generation) -> bool:
        if self._budget is None or (self._kept_sets and part.kept is None):
            self._discarded += len(part) + part.discarded_tokens
            self._dropped_requests += part.requests
            return False
        self._parts.append(part)
        return True

    def _joined(self, discarded: int = 0, dropped_requests: int = 0) -> Generation:
        parts = self._parts
        token_ids, logprobs = array("i"), array("d")
        versions: tuple[VersionSpan, ...] = ()
        for part in parts:
            token_ids += part.token_ids
            logprobs += part.logprobs
            versions = joined_spans(versions, part.versions)
        return replace(
            parts[-1],
            token_ids=token_ids,
            logprobs=logprobs,
            versions=versions,
            prompt_tokens=parts[0].prompt_tokens,
            cached_tokens=parts[0].cached_tokens,
            requests=dropped_requests + sum(part.requests for part in parts),
            continuations=len(parts) - 1 + sum(part.continuations for part in parts),
            discarded_tokens=discarded + sum(part.discarded_tokens for part in parts),
            routed_experts=_joined_experts(part.routed_experts for part in parts),
            kept=_joined_kept(part.kept for part in parts),
            spec=_summed(part.spec for part in parts),
            text=parts[-1].text if len(parts) == 1 else None,
        )


def _joined_experts(parts: Iterable[RoutedExperts | None]) -> RoutedExperts | None:
    joined: RoutedExperts | None = None
    for part in parts:
        if part is not None:
            joined = part if joined is None else joined.joined(part)
    return joined


def _joined_kept(parts: Iterable[KeptSets | None]) -> KeptSets | None:
    """Return the kept sets of all parts; None if some part has none."""
    every = list(parts)
    known = [part for part in every if part is not None]
    return reduce(KeptSets.joined, known) if known and len(known) == len(every) else None


def _summed(parts: Iterable[SpecInfo | None]) -> SpecInfo | None:
    known = [part for part in parts if part is not None]
    if not known:
        return None
    return SpecInfo(
        accepted_tokens=sum(part.accepted_tokens for part in known),
        drafted_tokens=sum(part.drafted_tokens for part in known),
        verify_count=sum(part.verify_count for part in known),
    )
