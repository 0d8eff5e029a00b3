"""Putting a turn together from the requests it took.

Usually one request is the whole turn and nothing is copied. When the engine interrupts it, the tokens sampled so
far are kept here, the request goes on behind them, and the parts are joined in order: ids, logprobs, version
spans, routed experts.

Invariant: every sampled token is kept exactly once, or counted as discarded.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from strands_sglang.engine.generation import FinishReason, Generation, SpecInfo
from strands_sglang.engine.request import GenerateRequest
from strands_sglang.engine.routed_experts import RoutedExperts
from strands_sglang.tokens.versions import VersionSpan, joined_spans


class Assembly:
    """The parts of a turn so far."""

    __slots__ = ("_discarded", "_parts", "_request")

    def __init__(self, request: GenerateRequest) -> None:
        self._request = request
        self._parts: list[Generation] = []
        self._discarded = 0

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    def interrupt(self, part: Generation) -> bool:
        """Take the part of a turn that the engine cut, and prepare the request to go on behind it.

        Returns:
            Whether the part was kept. If not, the turn starts over.
        """
        if not len(part):
            return False
        if not self._request.continuable:
            self._discarded += len(part)
            return False
        self.keep(part)
        return True

    def keep(self, part: Generation) -> None:
        """Keep the tokens of `part` and let the request go on behind them."""
        self._parts.append(part)
        experts = part.routed_experts
        start = self._request.experts_start if experts is None else experts.start + len(experts)
        self._request.extend(part.token_ids, start)

    @property
    def spent(self) -> bool:
        """Whether the budget was used up by what is kept."""
        return bool(self._parts) and (self._request.budget or 0) <= 0

    def finish(self, last: Generation) -> Generation:
        """Return the turn that ends with the part `last`."""
        if not self._parts:
            return replace(last, discarded_tokens=self._discarded) if self._discarded else last
        detail = last.finish_detail
        if last.finish_reason is FinishReason.LENGTH and isinstance(detail, int):
            detail += len(self)  # the last request had only what was left of the budget
        return self._join([*self._parts, last], last.finish_reason, detail)

    def finish_spent(self) -> Generation:
        """Return the turn that was interrupted exactly when its budget was used up."""
        return self._join(self._parts, FinishReason.LENGTH, len(self))

    def _join(self, parts: list[Generation], reason: FinishReason, detail: int | str | list[int] | None) -> Generation:
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
            finish_reason=reason,
            finish_detail=detail,
            versions=versions,
            prompt_tokens=parts[0].prompt_tokens,
            cached_tokens=parts[0].cached_tokens,
            continuations=len(self._parts) - (parts is self._parts),
            discarded_tokens=self._discarded,
            routed_experts=_joined_experts(part.routed_experts for part in parts),
            spec=_summed(part.spec for part in parts),
        )


def rest_of(
    prompt: array[int], sampling: Mapping[str, Any], kept: Generation, experts_start: int | None
) -> tuple[array[int], dict[str, Any], int | None]:
    """Return what to ask for behind the part of a turn that is kept from an earlier call.

    Args:
        prompt: Ids of the turn's prompt.
        sampling: How to sample the whole turn.
        kept: What was sampled of it.
        experts_start: First position whose routed experts are wanted for the whole turn; None: none are.

    Returns:
        Ids, sampling parameters and first position of the rest.
    """
    rest = dict(sampling)
    for name in ("max_new_tokens", "min_new_tokens"):
        if rest.get(name):
            rest[name] = max(0, rest[name] - len(kept))
    experts = kept.routed_experts
    return prompt + kept.token_ids, rest, experts_start if experts is None else experts.start + len(experts)


def joined(kept: Generation, last: Generation) -> Generation:
    """Return the turn that was cut behind `kept`, in an earlier call, and that `last` went on with."""
    detail = last.finish_detail
    if last.finish_reason is FinishReason.LENGTH and isinstance(detail, int):
        detail += len(kept)  # the last call had only what was left of the budget
    return replace(
        last,
        token_ids=kept.token_ids + last.token_ids,
        logprobs=kept.logprobs + last.logprobs,
        finish_detail=detail,
        versions=joined_spans(kept.versions, last.versions),
        prompt_tokens=kept.prompt_tokens,
        cached_tokens=kept.cached_tokens,
        requests=kept.requests + last.requests,
        continuations=kept.continuations + last.continuations + 1,
        discarded_tokens=kept.discarded_tokens + last.discarded_tokens,
        routed_experts=_joined_experts((kept.routed_experts, last.routed_experts)),
        spec=_summed((kept.spec, last.spec)),
    )


def _joined_experts(parts: Iterable[RoutedExperts | None]) -> RoutedExperts | None:
    joined: RoutedExperts | None = None
    for part in parts:
        if part is not None:
            joined = part if joined is None else joined.joined(part)
    return joined


def _summed(parts: Iterable[SpecInfo | None]) -> SpecInfo | None:
    known = [part for part in parts if part is not None]
    if not known:
        return None
    return SpecInfo(
        accepted_tokens=sum(part.accepted_tokens for part in known),
        drafted_tokens=sum(part.drafted_tokens for part in known),
        verify_count=sum(part.verify_count for part in known),
    )
