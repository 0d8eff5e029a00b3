"""What one call to a token engine gives back: `Generation`, flat and complete.

Invariant: `token_ids`, `logprobs` and the union of `versions` always have the same length, and position i in
each of them is the i-th sampled token. Ids are not negative, and logprobs are those of something that can happen. A
`Generation` that breaks this cannot be made, whichever engine it comes from.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from strands_sglang.engine.routed_experts import RoutedExperts
from strands_sglang.errors import CountMismatchError, MalformedResponseError
from strands_sglang.tokens.arrays import LARGEST_LOGPROB
from strands_sglang.tokens.versions import VersionSpan, check_spans

__all__ = ["FinishReason", "Generation", "SpecInfo", "VersionSpan"]

_NOTHING: Mapping[str, Any] = {}


class FinishReason(str, Enum):
    """Why the engine stopped sampling."""

    STOP = "stop"
    """A stop token or stop string was matched."""
    LENGTH = "length"
    """The budget, or the engine's context, was used up: the turn is cut."""
    ABORT = "abort"
    """The engine ended the request from outside (a weight update, an abort): the turn is partial."""
    UNKNOWN = "unknown"
    """A reason this version does not know; `finish_detail` holds its name."""


# Where SGLang's answer keeps the detail of a reason.
_DETAILS = {FinishReason.STOP: "matched", FinishReason.LENGTH: "length", FinishReason.ABORT: "message"}


@dataclass(frozen=True, slots=True)
class SpecInfo:
    """Counts of speculative decoding, summed over the call."""

    accepted_tokens: int
    """Draft tokens the target model accepted."""
    drafted_tokens: int
    """Draft tokens proposed."""
    verify_count: int
    """Forward passes of the target model that verified drafts."""


@dataclass(slots=True)
class Generation:
    """The tokens sampled by one call, with everything a trainer needs to know about them.

    To be read, not changed. (Not frozen: that alone would cost more than all its checks, on every call.)
    """

    token_ids: array[int]
    """Sampled ids (32-bit), the stop token included when one was sampled."""
    logprobs: array[float]
    """Log-probability of each sampled token as the engine reports it; same length as `token_ids`."""
    finish_reason: FinishReason
    """Why sampling ended."""
    finish_detail: int | str | list[int] | None = None
    """The matched stop token(s) or string (STOP), the limit in tokens (LENGTH), the engine's words (ABORT)."""
    versions: tuple[VersionSpan, ...] = ()
    """Spans of weight versions, in order, without gaps, covering every sampled token; empty without tokens."""
    prompt_tokens: int = 0
    """Tokens of the prompt as it was sent; checked against the engine's count."""
    cached_tokens: int | None = None
    """Prompt tokens the engine served from its prefix cache; None when it does not say."""
    rid: str = ""
    """Request id of the last request of the call on the engine."""
    requests: int = 1
    """HTTP requests the call took: 1 plus retries plus continuations."""
    continuations: int = 0
    """Times the turn was interrupted by the engine and went on where it had stopped."""
    discarded_tokens: int = 0
    """Sampled tokens thrown away because the turn had to start over (see `AbortPolicy.CONTINUE`)."""
    routed_experts: RoutedExperts | None = None
    """Expert choices per token position, decoded on demand; None when not asked for."""
    spec: SpecInfo | None = None
    """Speculative decoding counts; None when the engine does not speculate."""
    meta: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    """The rest of the engine's `meta_info`, as it came with the last request."""
    text: str | None = field(default=None, compare=False, repr=False)
    """The tokens as the engine wrote them out, without special tokens or not, as it was asked; None where the turn took
    several requests, or does not come from a server."""

    def __post_init__(self) -> None:
        count = len(self.token_ids)
        if len(self.logprobs) != count:
            raise CountMismatchError(f"{count} sampled tokens but {len(self.logprobs)} logprobs")
        check_spans(self.versions, count)
        if count:
            self._check_values()

    def _check_values(self) -> None:
        lowest = int(np.asarray(self.token_ids).min())
        if lowest < 0:
            raise MalformedResponseError(f"the engine sampled {lowest}, which is not a token id")
        logprobs = np.asarray(self.logprobs)
        least, most = float(logprobs.min()), float(logprobs.max())
        if not (math.isfinite(least) and most <= LARGEST_LOGPROB):  # both are NaN where one of them is
            at = int((~(np.isfinite(logprobs) & (logprobs <= LARGEST_LOGPROB))).argmax())
            raise MalformedResponseError(f"the engine gave sampled token {at} the logprob {self.logprobs[at]}")

    def __len__(self) -> int:
        return len(self.token_ids)

    def __getitem__(self, key: str) -> Any:
        """Return a part by its name in SGLang's answer: `text`, `output_ids`, `meta_info`; made anew each time."""
        if key == "text" and self.text is not None:
            return self.text
        if key == "output_ids":
            return self.token_ids.tolist()
        if key == "meta_info":
            return self._meta_info()
        raise KeyError(f"{key!r} is not in this Generation; its text is tokenizer.decode(token_ids)")

    def _meta_info(self) -> dict[str, Any]:
        finish: dict[str, Any] = {"type": self.finish_reason.value}
        if (name := _DETAILS.get(self.finish_reason)) is not None:
            finish[name] = self.finish_detail
        told: dict[str, Any] = {
            **self.meta,
            "id": self.rid,
            "finish_reason": finish,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": len(self),
            "cached_tokens": self.cached_tokens or 0,
            "weight_version": self.weight_version,
            "output_token_logprobs": [
                [logprob, token, None] for logprob, token in zip(self.logprobs, self.token_ids, strict=True)
            ],
        }
        if self.routed_experts is not None and len(self.routed_experts.parts) == 1:
            told["routed_experts"] = self.routed_experts.parts[0]
        return told

    @property
    def weight_version(self) -> str | None:
        """Weight version of the last sampled token; None without tokens or when unknown."""
        return self.versions[-1].version if self.versions else None

    def versions_per_token(self) -> list[str | None]:
        """Return the weight version of each sampled token."""
        return [span.version for span in self.versions for _ in range(span.start, span.end)]
