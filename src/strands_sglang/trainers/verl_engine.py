"""verl's servers as a `TokenEngine`: `VerlEngine`.

verl hands an agent loop a client of its inference servers (Ray actors, SGLang or vLLM). Its `generate` is all that
is used here: ids in, a `TokenOutput` out.

Invariant: a token's weight version is what verl says of it: the global step its server had, or the range of steps where
verl joined the parts of a turn itself and tells no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol

from strands_sglang.engine import Generation
from strands_sglang.tokens.versions import VersionSpan
from strands_sglang.trainers.engine_handle import EngineHandle, experts_from, finished, sampled

_RANGE = ".."


class TokenOutput(Protocol):
    """What verl's servers answer, as far as it is looked at."""

    token_ids: list[int]
    """What was sampled."""
    log_probs: list[float] | None
    """One a token; None when not asked for, and when nothing was sampled."""
    routed_experts: Any
    """Of shape (prompt and sampled tokens but the last, layers, top k); None when verl does not replay them."""
    stop_reason: str | None
    """SGLang: "stop", "length", "abort". vLLM: "completed", whether it ended or was cut, or "aborted"."""
    extra_fields: dict[str, Any]
    """Among others `min_global_steps` and `max_global_steps`: which weights."""


class ServerClient(Protocol):
    """verl's client of its servers, as far as it is used."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        """Sample; requests with the same id go to the same server."""
        ...


class VerlEngine(EngineHandle):
    """Asks verl's servers."""

    owner = "verl"
    newest_step: ClassVar[int | None] = None
    """The newest global step that a server was heard to have, in this process; None: none told."""

    def __init__(self, servers: ServerClient) -> None:
        """Take the client that verl gives its agent loops."""
        super().__init__()
        self.servers = servers
        """verl's own client."""

    async def ask(
        self, input_ids: list[int], sampling: dict[str, Any], key: str, experts_start: int | None
    ) -> Generation:
        """Send one request."""
        budget, count = int(sampling["max_new_tokens"]), len(input_ids)
        output = await self.servers.generate(
            request_id=key, prompt_ids=input_ids, sampling_params={**sampling, "logprobs": True}
        )
        ids, told = output.token_ids, output.extra_fields
        first, last = _steps_told(told)
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
            cached_tokens=told.get("num_cached_tokens"),
            rid=key,
            routed_experts=experts_from(output.routed_experts, experts_start) if ids else None,
        )


def global_steps(versions: Iterable[str | None]) -> tuple[int, int] | None:
    """Return the first and the last global step in the weight versions of tokens; None: no server told."""
    ends = [int(end) for name in set(versions) if name is not None for end in name.split(_RANGE)]
    return (min(ends), max(ends)) if ends else None


def _steps_told(told: Mapping[str, Any]) -> tuple[int | None, int | None]:
    step = told.get("global_steps")
    first, last = told.get("min_global_steps", step), told.get("max_global_steps", step)
    if first is None or last is None:
        return None, None
    return int(first), int(last)
