"""verl's servers as a `TokenEngine`: `VerlEngine`.

verl gives an agent loop a client of its inference servers (Ray actors that run SGLang or vLLM). Only its `generate` is
used: token ids in, a `TokenOutput` out.

Invariant: a token's weight version is what verl reports for it: the global step of the server, or a range of steps if
verl joined several parts of a turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol

from strands_sglang.engine import BaseEngine, Capability, Generation
from strands_sglang.engine.base import experts_from, finished, sampled
from strands_sglang.tokens.arrays import VersionSpan

_RANGE = ".."


class TokenOutput(Protocol):
    """The response of verl's servers, as far as it is read."""

    token_ids: list[int]
    """The sampled tokens."""
    log_probs: list[float] | None
    """One per token; None if not requested, or if nothing was sampled."""
    routed_experts: Any
    """Shape (prompt and sampled tokens except the last, layers, top k); None if verl does not replay them."""
    stop_reason: str | None
    """SGLang: "stop", "length", "abort". vLLM: "completed", also if truncated, or "aborted"."""
    extra_fields: dict[str, Any]
    """Includes `min_global_steps` and `max_global_steps`: the weights used."""


class ServerClient(Protocol):
    """verl's client of its servers, as far as it is used here."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        """Sample; requests with the same id go to the same server."""
        ...


class VerlEngine(BaseEngine):
    """Sends requests to verl's servers.

    Example:
        >>> engine = VerlEngine(agent_loop.server_manager)
    """

    owner = "verl"
    capabilities = frozenset({Capability.ROUTED_EXPERTS})
    newest_step: ClassVar[int | None] = None
    """The newest global step that a server reported to this process; None if none did."""

    def __init__(self, servers: ServerClient) -> None:
        """Wrap the client that verl gives its agent loops."""
        super().__init__()
        self.servers = servers
        """verl's client."""

    async def request(
        self, input_ids: list[int], sampling: dict[str, Any], key: str, experts_start: int | None
    ) -> Generation:
        """Send one request."""
        budget, count = int(sampling["max_new_tokens"]), len(input_ids)
        output = await self.servers.generate(
            request_id=key, prompt_ids=input_ids, sampling_params={**sampling, "logprobs": True}
        )
        ids, extra = output.token_ids, output.extra_fields
        first, last = _reported_steps(extra)
        if last is not None:
            VerlEngine.newest_step = max(last, VerlEngine.newest_step or 0)
        name = None if first is None else str(first) if first == last else f"{first}{_RANGE}{last}"
        return sampled(
            self.owner,
            ids,
            output.log_probs,
            (VersionSpan(name, 0, len(ids)),),
            finished(output.stop_reason, ids, budget),
            prompt_tokens=count,
            cached_tokens=extra.get("num_cached_tokens"),
            rid=key,
            routed_experts=experts_from(output.routed_experts, experts_start) if ids else None,
        )


def global_steps(versions: Iterable[str | None]) -> tuple[int, int] | None:
    """Return the first and last global step in the weight versions of tokens; None if no version was reported."""
    ends = [int(end) for name in set(versions) if name is not None for end in name.split(_RANGE)]
    return (min(ends), max(ends)) if ends else None


def _reported_steps(extra: Mapping[str, Any]) -> tuple[int | None, int | None]:
    step = extra.get("global_steps")
    first, last = extra.get("min_global_steps", step), extra.get("max_global_steps", step)
    if first is None or last is None:
        return None, None
    return int(first), int(last)
