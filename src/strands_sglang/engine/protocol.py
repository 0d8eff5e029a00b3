"""The seam to wherever tokens come from: `TokenEngine`.

`SGLangClient` is one engine; a trainer's own handle or a replay of recorded answers is another. An engine takes
the ids of the whole prompt and gives back a whole `Generation`, or raises: it never hands out half a turn
without saying so in `finish_reason`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from enum import Enum
from typing import Any, Protocol, TypeAlias, Union, runtime_checkable

import numpy as np
import numpy.typing as npt

from strands_sglang.engine.generation import Generation

TokenIds: TypeAlias = Union[Sequence[int], "npt.NDArray[np.integer[Any]]"]
"""Token ids: a list, an `array`, a one-dimensional numpy array of integers."""


class AbortPolicy(str, Enum):
    """What to do with a turn that the engine itself ended with `abort` (a weight update, a drained worker)."""

    CONTINUE = "continue"
    """Go on where it stopped: prompt plus partial tokens go in again, the budget shrinks by what is used.

    Where going on would not be exact the turn starts over instead and the partial tokens are discarded: with
    stop strings, grammars, penalties or logit processors (their state lives in the interrupted request), and
    without `max_new_tokens` (the budget is not known). `Generation.discarded_tokens` counts them.
    """
    RETURN = "return"
    """Hand the partial turn back with `FinishReason.ABORT`."""


halting: ContextVar[Callable[[], bool] | None] = ContextVar("strands_sglang_halting", default=None)
"""Says whether the calls of this context may begin no more requests; what is under way is left to come back. None: they
may. A client looks at it before every attempt."""


class OutageWatch(Protocol):
    """Hears how one call fares, so that a caller's time limits leave out what it waited for in vain."""

    def failed(self, since: float) -> None:
        """Hear that an attempt failed and is made again; it began at `since`, by `time.monotonic`."""

    def answered(self, since: float) -> None:
        """Hear that an attempt was answered, behind others that were not."""


outages: ContextVar[OutageWatch | None] = ContextVar("strands_sglang_outages", default=None)
"""Who hears of the failed attempts of this context's calls; None: nobody."""


@runtime_checkable
class CancelSignal(Protocol):
    """Anything with `is_set()`: a `threading.Event` (as Strands passes), an `asyncio.Event`."""

    def is_set(self) -> bool:
        """Return True once the caller wants the call to end."""
        ...


@runtime_checkable
class TokenEngine(Protocol):
    """Token ids in, sampled ids and logprobs out."""

    async def generate(
        self,
        input_ids: TokenIds,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        routing_key: str | None = None,
        deadline: float | None = None,
        cancel_signal: CancelSignal | None = None,
        on_abort: AbortPolicy = AbortPolicy.CONTINUE,
        routed_experts_start: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Generation:
        """Sample a continuation of `input_ids`.

        Args:
            input_ids: The whole prompt; sent exactly as given.
            sampling_params: SGLang sampling parameters; read, never changed.
            routing_key: Requests with the same key go to the same worker (an episode id, say).
            deadline: Seconds this call may take in all, waiting and retries included; None: the engine's own.
            cancel_signal: Ends the call soon after it is set, on the engine too.
            on_abort: What to do when the engine ends the turn with `abort`.
            routed_experts_start: First token position whose routed experts are returned; None: none are.
            extra: Further fields for the engine's request, such as `lora_path`.

        Returns:
            The whole turn.
        """
        ...
