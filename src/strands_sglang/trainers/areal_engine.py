"""AReaL's inference engine as a `TokenEngine`: `ArealEngine`.

AReaL's engines take a `ModelRequest` and give a `ModelResponse`. One that is interrupted by a weight update goes on by
itself, and tells of every token which version of the weights sampled it.

Invariant: what is sampled follows AReaL's generation parameters; a parameter that they do not have is refused, not
dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from strands_sglang.engine import Generation
from strands_sglang.errors import ConfigurationError
from strands_sglang.trainers.engine_handle import EngineHandle, finished, sampled, spans_of


class ModelResponse(Protocol):
    """What AReaL's engines answer, as far as it is looked at."""

    output_tokens: list[int]
    """What was sampled."""
    output_logprobs: list[float]
    """One a token."""
    output_versions: list[int]
    """One a token: the weights that sampled it."""
    stop_reason: str
    """ "stop", "length", "tool_calls" or "abort"."""


class InferenceEngine(Protocol):
    """AReaL's engine, as far as it is used."""

    async def agenerate(self, req: Any) -> ModelResponse:
        """Sample; requests with the same `rid` go to the same server."""
        ...


class ArealEngine(EngineHandle):
    """Asks an engine of AReaL's."""

    owner = "AReaL"

    def __init__(self, engine: InferenceEngine, request: Callable[..., Any], gconfig: Any, tokenizer: Any) -> None:
        """Take what a workflow has.

        Args:
            engine: Who is asked.
            request: AReaL's `ModelRequest`.
            gconfig: AReaL's `GenerationHyperparameters`.
            tokenizer: Handed on with every request, as AReaL's own workflows do.
        """
        super().__init__()
        self._engine, self._request, self._gconfig, self._tokenizer = engine, request, gconfig, tokenizer

    async def ask(
        self, input_ids: list[int], sampling: dict[str, Any], key: str, experts_start: int | None
    ) -> Generation:
        """Send one request."""
        unknown = [name for name in sampling if not hasattr(self._gconfig, name)]
        if unknown or experts_start is not None:
            what = ", ".join(unknown) or "routed experts"
            raise ConfigurationError(f"AReaL's generation parameters have no {what}")
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
