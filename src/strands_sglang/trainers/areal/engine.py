"""AReaL's inference engine as a `TokenEngine`: `ArealEngine`.

AReaL's engines take a `ModelRequest` and return a `ModelResponse`. They continue a request that a weight update
interrupted, and report the weight version of every token.

Invariant: sampling follows AReaL's generation parameters; a parameter that they do not have raises, and is not dropped
silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from strands_sglang.engine import Generation
from strands_sglang.errors import ConfigurationError
from strands_sglang.trainers.engine_adapter import TrainerEngine, finished, sampled, spans_of

_ALL_TOKENS = 10**8  # AReaL's `top_k` for all tokens


class ModelResponse(Protocol):
    """The response of AReaL's engines, as far as it is read."""

    output_tokens: list[int]
    """The sampled tokens."""
    output_logprobs: list[float]
    """One per token."""
    output_versions: list[int]
    """One per token: the version of the weights that sampled it."""
    stop_reason: str
    """ "stop", "length", "tool_calls" or "abort"."""


class InferenceEngine(Protocol):
    """AReaL's engine, as far as it is used here."""

    async def agenerate(self, req: Any) -> ModelResponse:
        """Sample; requests with the same `rid` go to the same server."""
        ...


class ArealEngine(TrainerEngine):
    """Sends requests to AReaL's engine.

    Example:
        >>> engine = ArealEngine(areal_engine, ModelRequest, gconfig, tokenizer)
    """

    owner = "AReaL"

    def __init__(self, engine: InferenceEngine, request: Callable[..., Any], gconfig: Any, tokenizer: Any) -> None:
        """Wrap AReaL's engine.

        Args:
            engine: The engine that AReaL passes to workflows.
            request: AReaL's `ModelRequest`.
            gconfig: AReaL's `GenerationHyperparameters`.
            tokenizer: Passed on with every request, as AReaL's own workflows do.
        """
        super().__init__()
        self._engine, self._request, self._gconfig, self._tokenizer = engine, request, gconfig, tokenizer

    def loses_kept_sets(self, sampling: Mapping[str, Any]) -> bool:
        """Return whether sampling has kept sets; the parameters that decide are in `gconfig`."""
        own = self._gconfig
        top_k = -1 if own.top_k >= _ALL_TOKENS else own.top_k
        return not own.greedy and super().loses_kept_sets({"top_p": own.top_p, "top_k": top_k, **sampling})

    async def request(
        self, input_ids: list[int], sampling: dict[str, Any], key: str, experts_start: int | None
    ) -> Generation:
        """Send one request."""
        unknown = [name for name in sampling if not hasattr(self._gconfig, name)]
        if unknown or experts_start is not None:
            what = ", ".join(unknown) or "routed experts"
            raise ConfigurationError(
                f"sampling parameters must be fields of AReaL's GenerationHyperparameters, got {what}: remove them"
            )
        budget, count = int(sampling["max_new_tokens"]), len(input_ids)
        request = self._request(
            rid=key,
            input_ids=input_ids,
            gconfig=self._gconfig.new(n_samples=1, **sampling),
            tokenizer=self._tokenizer,
        )
        response = await self._engine.agenerate(request)
        ids = response.output_tokens
        return sampled(
            self.owner,
            ids,
            response.output_logprobs,
            spans_of(response.output_versions),
            finished(response.stop_reason, ids, budget),
            prompt_tokens=count,
            rid=key,
        )
