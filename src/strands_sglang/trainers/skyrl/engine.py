"""SkyRL's inference engine client as a `TokenEngine`: `SkyrlEngine`.

SkyRL gives its generators a client of its vLLM servers, which accepts token ids and vLLM's sampling parameters. The
servers freeze requests during a weight update and continue them afterwards, so a turn may have two weight versions, and
the boundary is not reported.

Invariant: a token's weight version is the client's count of weight updates when its turn began and when it ended: one
number, or a range if they differ.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from strands_sglang.engine import Generation
from strands_sglang.tokens.arrays import VersionSpan
from strands_sglang.trainers.engine_adapter import TrainerEngine, experts_from, finished, sampled


class InferenceClient(Protocol):
    """SkyRL's client, as far as it is used here; its attribute `weight_version` is read if it exists."""

    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        """Sample for a batch of prompts; requests of one session go to the same server."""
        ...

    async def finish_session(self, session_id: str) -> None:
        """Called when a session has ended; never raises."""
        ...


class SkyrlEngine(TrainerEngine):
    """Sends requests to SkyRL's servers.

    Example:
        >>> engine = SkyrlEngine(inference_engine_client)
    """

    owner = "SkyRL"

    def __init__(self, client: InferenceClient, model: str | None = None) -> None:
        """Wrap SkyRL's client.

        Args:
            client: The client that SkyRL gives its generators.
            model: Name of the model to sample from; None: the servers' base model.
        """
        super().__init__()
        self._client, self._model = client, model
        self.salts: dict[str, str] = {}
        """Cache salts by session: they separate the prefix caches of different weights."""
        self.expert_shape: tuple[int, ...] = ()
        """Layers and top k of routed experts; empty until the first response that has them."""

    @property
    def version(self) -> int | None:
        """Number of weight updates so far; None if the client does not count them."""
        return getattr(self._client, "weight_version", None)

    async def request(
        self, input_ids: list[int], sampling: dict[str, Any], key: str, experts_start: int | None
    ) -> Generation:
        """Send one request."""
        budget, count, before = int(sampling.pop("max_new_tokens")), len(input_ids), self.version
        batch: dict[str, Any] = {
            "prompt_token_ids": [input_ids],
            "session_ids": [key],
            "sampling_params": {**sampling, "max_tokens": budget, "logprobs": sampling.get("logprobs") or 1},
        }
        if key in self.salts:
            batch["cache_salt"] = self.salts[key]
        output = await self._client.generate(batch, model=self._model)
        ids = output["response_ids"][0]
        logprobs = (output.get("response_logprobs") or [None])[0]
        return sampled(
            self.owner,
            ids,
            logprobs,
            (VersionSpan(self._name(before), 0, len(ids)),),
            finished(output["stop_reasons"][0], ids, budget),
            prompt_tokens=count,
            rid=key,
            routed_experts=self._experts(output, experts_start, count + len(ids) - 1) if ids else None,
        )

    def _name(self, before: int | None) -> str | None:
        after = self.version
        if before is None or after is None:
            return None
        return str(before) if before == after else f"{before}..{after}"

    def _experts(self, output: Any, start: int | None, rows: int) -> Any:
        choices = output.get("rollout_expert_indices")
        if choices is None or choices[0] is None or start is None:
            return None
        chosen = np.asarray(choices[0])
        self.expert_shape = chosen.shape[1:]
        return experts_from(chosen[:rows], start)
