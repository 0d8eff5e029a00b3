"""SkyRL's inference engine client as a `TokenEngine`: `SkyrlEngine`.

SkyRL gives its generators a client of its vLLM servers, which accepts token ids and vLLM's sampling parameters. The
servers freeze requests during a weight update and continue them afterwards, so a turn may have two weight versions, and
the boundary is not reported.

Invariant: a token's weight version is the client's count of weight updates when its turn began and when it ended: one
number, or a range if they differ.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from strands_sglang.engine import Generation
from strands_sglang.errors import MalformedResponseError
from strands_sglang.tokens import KeptSets
from strands_sglang.tokens.arrays import VersionSpan, logprob_array
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

    def __init__(self, client: InferenceClient, model: str | None = None, *, kept_sets: bool = False) -> None:
        """Wrap SkyRL's client.

        Args:
            client: The client that SkyRL gives its generators.
            model: Name of the model to sample from; None: the servers' base model.
            kept_sets: Whether the servers return kept sets
                (`enable_return_sample_support_set`).
        """
        super().__init__()
        self._client, self._model, self._kept_sets = client, model, kept_sets
        self.salts: dict[str, str] = {}
        """Cache salts by session: they separate the prefix caches of different weights."""
        self.expert_shape: tuple[int, ...] = ()
        """Layers and top k of routed experts; empty until the first response that has them."""

    @property
    def version(self) -> int | None:
        """Number of weight updates so far; None if the client does not count them."""
        return getattr(self._client, "weight_version", None)

    def loses_kept_sets(self, sampling: Mapping[str, Any]) -> bool:
        """Return whether sampling has kept sets that the answer does not tell."""
        return super().loses_kept_sets(sampling) and not (self._kept_sets and has_bounded_support(sampling))

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
        bounded = self._kept_sets and has_bounded_support(sampling)
        if bounded:
            batch["return_sample_support"] = True
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
            kept=kept_sets_of(output.get("rollout_sample_support"), logprobs or ()) if bounded else None,
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


def has_bounded_support(sampling: Mapping[str, Any]) -> bool:
    """Return whether SkyRL's servers return kept sets with these sampling parameters: only below a `top_k`."""
    top_k = sampling.get("top_k")
    return top_k is not None and top_k > 1


def kept_sets_of(supports: Any, logprobs: Sequence[float]) -> KeptSets:
    """Return what SkyRL's client returned for one prompt as kept sets.

    Args:
        supports: For each prompt an array of shape (tokens, top k) with -1 after the ids of each set.
        logprobs: Logprobs of the sampled tokens. vLLM computes them over the kept sets if it runs with
            `logprobs_mode="processed_logprobs"`.

    Raises:
        MalformedResponseError: There is no array with a row for every token.
    """
    rows = None if not supports else np.asarray(supports[0])
    if not len(logprobs):
        return KeptSets.of((), ())
    if rows is None or rows.ndim != 2 or len(rows) != len(logprobs):
        raise MalformedResponseError(
            f"SkyRL's engine must return a kept set for each of {len(logprobs)} tokens (rollout_sample_support), got "
            f"{None if rows is None else rows.shape}: check generator.inference_engine.enable_return_sample_support_set"
        )
    kept = rows >= 0
    offsets = array("i", [0, *np.cumsum(kept.sum(1)).tolist()])
    return KeptSets(array("i", rows[kept].tolist()), offsets, logprob_array(logprobs))
