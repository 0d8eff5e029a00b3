"""SkyRL's inference engine client as a `TokenEngine`: `SkyrlEngine`.

SkyRL's generators are given a client of its (vLLM) servers, which takes token ids, and sampling parameters in vLLM's
words. Its servers freeze requests while weights are exchanged and go on afterwards, so a turn may be of two versions,
and nobody tells where the second begins.

Invariant: a token's weight version is what the client had counted when its turn began and when it ended: one number, or
a range.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from strands_sglang.engine import Generation
from strands_sglang.tokens.versions import VersionSpan
from strands_sglang.trainers.engine_handle import EngineHandle, experts_from, finished, sampled


class InferenceClient(Protocol):
    """SkyRL's client, as far as it is used; `weight_version` is looked at where it has one."""

    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        """Sample for a batch of prompts; requests of one session go to the same server."""
        ...

    async def finish_session(self, session_id: str) -> None:
        """Hear that a session is over; never raises."""
        ...


class SkyrlEngine(EngineHandle):
    """Asks SkyRL's servers."""

    owner = "SkyRL"

    def __init__(self, client: InferenceClient, model: str | None = None) -> None:
        """Take the client that SkyRL gives its generators, and the name of the policy; None: the servers' own."""
        super().__init__()
        self._client, self._model = client, model
        self.salts: dict[str, str] = {}
        """What keeps the prefix cache of an episode apart from that of other weights, by the episode's session."""
        self.expert_shape: tuple[int, ...] = ()
        """Layers and top k of routed experts, once some were heard of."""

    @property
    def version(self) -> int | None:
        """Weight syncs so far; None where the client does not count them."""
        return getattr(self._client, "weight_version", None)

    async def ask(
        self, input_ids: list[int], sampling: dict[str, Any], key: str, experts_start: int | None
    ) -> Generation:
        """Send one request."""
        budget, count, before = int(sampling.pop("max_new_tokens")), len(input_ids), self.version
        asked: dict[str, Any] = {
            "prompt_token_ids": [input_ids],
            "session_ids": [key],
            "sampling_params": {**sampling, "max_tokens": budget, "logprobs": sampling.get("logprobs") or 1},
        }
        if key in self.salts:
            asked["cache_salt"] = self.salts[key]
        output = await self._client.generate(asked, model=self._model)
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
