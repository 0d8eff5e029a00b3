"""Putting a turn together from the requests it took.

Usually one request is the whole turn and nothing is copied. When the engine interrupts it, the tokens sampled so
far are kept here, the request goes on behind them, and the parts are joined in order: ids, logprobs, version
spans, routed experts.

Invariant: every sampled token is kept exactly once, or counted as discarded.
"""

from __future__ import annotations

from array import array

from strands_sglang.engine.generation import FinishReason, Generation, SpecInfo, VersionSpan
from strands_sglang.engine.request import GenerateRequest
from strands_sglang.engine.response import Leg
from strands_sglang.engine.routed_experts import RoutedExperts
from strands_sglang.errors import CountMismatchError


class Assembly:
    """The turn so far."""

    __slots__ = (
        "_cached",
        "_experts",
        "_logprobs",
        "_prompt_tokens",
        "_request",
        "_spans",
        "_spec",
        "_token_ids",
        "continuations",
        "discarded_tokens",
        "requests",
    )

    def __init__(self, request: GenerateRequest) -> None:
        self._request = request
        self._prompt_tokens = request.prompt_tokens
        self._token_ids: array[int] | None = None
        self._logprobs: array[float] | None = None
        self._spans: tuple[VersionSpan, ...] = ()
        self._experts: RoutedExperts | None = None
        self._spec: SpecInfo | None = None
        self._cached: int | None = None
        self.requests = 0
        """Requests sent so far; also the number of the next attempt."""
        self.continuations = 0
        """Times the turn went on behind tokens already sampled."""
        self.discarded_tokens = 0
        """Sampled tokens that were thrown away."""

    def __len__(self) -> int:
        return 0 if self._token_ids is None else len(self._token_ids)

    def interrupt(self, leg: Leg) -> bool:
        """Take the part of a turn that the engine cut, and prepare the request to go on behind it.

        Returns:
            Whether the part was kept. If not, the turn starts over.
        """
        if not len(leg.token_ids):
            return False
        if not self._request.continuable:
            self.discarded_tokens += len(leg.token_ids)
            return False
        self.keep(leg)
        return True

    def keep(self, leg: Leg) -> None:
        """Keep the tokens of `leg` and let the request go on behind them."""
        self._append(leg)
        experts = self._experts
        start = self._request.experts_start if experts is None else experts.start + len(experts)
        self._request.extend(leg.token_ids, start)
        self.continuations += 1

    @property
    def spent(self) -> bool:
        """Whether the budget was used up by what is kept."""
        return bool(len(self)) and (self._request.budget or 0) <= 0

    def finish(self, leg: Leg, rid: str) -> Generation:
        """Join the last part and make the `Generation`."""
        reason, detail = leg.finish_reason, leg.finish_detail
        self._append(leg)
        return self._make(reason or FinishReason.UNKNOWN, detail, leg, rid)

    def finish_spent(self, leg: Leg, rid: str) -> Generation:
        """Make the `Generation` of a turn that was interrupted exactly when its budget was used up."""
        return self._make(FinishReason.LENGTH, len(self), leg, rid)

    def _make(self, reason: FinishReason, detail: int | str | list[int] | None, leg: Leg, rid: str) -> Generation:
        return Generation(
            token_ids=array("i") if self._token_ids is None else self._token_ids,
            logprobs=array("d") if self._logprobs is None else self._logprobs,
            finish_reason=reason,
            finish_detail=detail,
            versions=self._spans,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached,
            rid=rid,
            requests=self.requests,
            continuations=self.continuations,
            discarded_tokens=self.discarded_tokens,
            routed_experts=self._experts,
            spec=self._spec,
            meta=leg.meta,
        )

    def _append(self, leg: Leg) -> None:
        if self._token_ids is None or self._logprobs is None:
            self._token_ids, self._logprobs = leg.token_ids, leg.logprobs
            self._spans = leg.spans
            self._cached, self._spec = leg.cached_tokens, leg.spec
        else:
            self._token_ids = self._token_ids + leg.token_ids
            self._logprobs = self._logprobs + leg.logprobs
            self._spans = joined_spans(self._spans, leg.spans)
            self._spec = _sum(self._spec, leg.spec)
        if leg.routed_experts is not None and self._request.experts_start is not None:
            start = self._request.experts_start
            rows = self._request.prompt_tokens + len(leg.token_ids) - 1 - start
            if rows < 0:
                raise CountMismatchError(f"routed experts asked from position {start}, behind the sequence's end")
            part = RoutedExperts((leg.routed_experts,), (rows,), start)
            self._experts = part if self._experts is None else self._experts.joined(part)


def joined_spans(first: tuple[VersionSpan, ...], second: tuple[VersionSpan, ...]) -> tuple[VersionSpan, ...]:
    """Return the spans of two runs of tokens, the second behind the first; neighbours of one version become one."""
    base = first[-1].end if first else 0
    spans = list(first)
    for span in second:
        if span.end == span.start:
            continue
        if spans and spans[-1].version == span.version:
            spans[-1] = VersionSpan(span.version, spans[-1].start, base + span.end)
        else:
            spans.append(VersionSpan(span.version, base + span.start, base + span.end))
    return tuple(spans)


def _sum(first: SpecInfo | None, second: SpecInfo | None) -> SpecInfo | None:
    if first is None or second is None:
        return first or second
    return SpecInfo(
        accepted_tokens=first.accepted_tokens + second.accepted_tokens,
        drafted_tokens=first.drafted_tokens + second.drafted_tokens,
        verify_count=first.verify_count + second.verify_count,
    )
