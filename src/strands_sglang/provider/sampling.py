"""Samples a prepared turn, streamed or as a whole: the arguments of the engine call, and what to do if it is refused.

The engine is asked again with a smaller budget after it reported its context length, and without kept sets if it does
not return them; both are remembered.

Invariant: a turn of which something was emitted is not sampled again. A call that is repeated holds no tokens of the
one before it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from strands.types.exceptions import ContextWindowOverflowException

from strands_sglang.engine import Capability, Generation, TokenEngine, can, has_sessions, streams
from strands_sglang.engine.protocol import prompt_images
from strands_sglang.engine.request import has_kept_sets
from strands_sglang.errors import (
    ConfigurationError,
    ContextOverflowError,
    KeptSetsMissingError,
    RequestRejectedError,
)
from strands_sglang.provider.config import Settings, kept_top_k
from strands_sglang.provider.images import ImageSupport
from strands_sglang.provider.stream_events import Event, LiveEvents
from strands_sglang.provider.token_budget import Reservation, turn_budget
from strands_sglang.provider.turn import PreparedCall, TurnRequest

logger = logging.getLogger(__name__)

_SETS_REFUSED = ("sampling_mask", "sampling mask")
"""The engine refuses to return kept sets, as with speculative decoding."""


class Sampler:
    """Samples the turns of one model, any number at the same time."""

    def __init__(self, engine: TokenEngine, images: ImageSupport) -> None:
        self.engine = engine
        self.context_limit: int | None = None
        """In tokens; None until an error of the engine reported it."""
        self._images = images
        self._no_kept_sets = False  # whether the engine was found not to return them, in "auto" mode

    def streams(self, request: TurnRequest) -> bool:
        """Return whether the text of a turn is streamed while it is sampled."""
        return bool(request.settings.streaming) and streams(self._engine_of(request))

    async def sample(
        self, call: PreparedCall, live: LiveEvents | None, hold: Reservation
    ) -> AsyncGenerator[Event | Generation, None]:
        """Yield the events that can be emitted while the turn is sampled, then the complete generation."""
        request, engine = call.request, self._engine_of(call.request)
        limit = min(filter(None, (request.settings.context_window_limit, self.context_limit)), default=None)
        while True:
            try:
                sampling, arguments = await self._arguments(call, limit, hold)
                arguments["cancel_signal"] = request.cancel_signal
                if live is None:
                    yield await engine.generate(call.turn.ids, sampling, **arguments)
                    return
                assert streams(engine)  # decided by `Sampler.streams`
                arguments.pop("routed_experts_start", None)
                chunks = engine.stream(call.turn.ids, sampling, **arguments)
                async with aclosing(chunks):
                    async for chunk in chunks:
                        for event in live.feed(chunk.token_ids):
                            yield event
                        if chunk.generation is not None:
                            yield chunk.generation
                return
            except ContextOverflowError as error:
                limit = self._reported_limit(error, call, limit, hold, final=_emitted(live))
            except (KeptSetsMissingError, RequestRejectedError) as error:
                if _emitted(live):
                    raise
                self._without_kept_sets(error, request.settings, hold)

    def _engine_of(self, request: TurnRequest) -> TokenEngine:
        observer = request.episode.observer
        return self.engine if observer is None else observer.engine

    def _reported_limit(
        self, error: ContextOverflowError, call: PreparedCall, limit: int | None, hold: Reservation, *, final: bool
    ) -> int:
        """Return the context length that the engine reported; raise if `final`, or if a smaller budget is no help."""
        hold.release()
        known = error.limit_tokens
        if known is None or limit == known or len(call.turn.ids) >= known or final:
            raise ContextWindowOverflowException(str(error)) from error
        logger.info("context=<%d> | engine reported its context length", known)
        self.context_limit = known  # used from now on
        return known

    async def _arguments(
        self, call: PreparedCall, limit: int | None, hold: Reservation
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        request = call.request
        episode, settings = request.episode, request.settings
        sampling = dict(settings.sampling_params)
        sampling["max_new_tokens"] = turn_budget(
            settings,
            prompt_tokens=len(call.turn.ids),
            context_limit=limit,
            used=episode.sampled_tokens,
            response=call.response if settings.max_response_tokens else 0,
        )
        if request.schema is not None:
            sampling["json_schema"] = request.schema
        observer = episode.observer
        routing_key = None if observer is None else observer.routing_key
        arguments: dict[str, Any] = {"routing_key": routing_key or episode.id, "on_abort": settings.on_abort}
        if call.turn.images:
            self._require(Capability.IMAGES, "takes no images")
            sampling["stop_token_ids"] = self._images.stop_ids(sampling)
            files = call.images
            arguments["images"] = prompt_images(call.turn.images, lambda digest: files[digest].png)
        if settings.deadline is not None:
            arguments["deadline"] = settings.deadline
        if settings.extra is not None:
            arguments["extra"] = settings.extra
        adapter = settings.adapter if observer is None else observer.adapter or settings.adapter
        if adapter is not None:
            self._require(Capability.ADAPTERS, "has no LoRA adapters to choose from")
            arguments["adapter"] = adapter
        if observer is not None and has_sessions(self.engine):
            arguments["session"] = observer.session
        if self._wants_kept_sets(settings, sampling, constrained=request.schema is not None):
            # The engine returns sets only below a bound. What it leaves out then is left out of the set as well.
            sampling["top_k"] = kept_top_k(sampling)
            arguments["kept_sets"] = True
        if settings.routed_experts:
            self._require(Capability.ROUTED_EXPERTS, "does not report routed experts")
            parent = call.turn.parent
            arguments["routed_experts_start"] = max(0, parent.end - 1) if parent is not None else 0
        if observer is None:
            sampling["max_new_tokens"] = await hold.tokens(sampling["max_new_tokens"])
        else:
            arguments["hold"] = hold
        return sampling, arguments

    def _require(self, capability: Capability, lack: str) -> None:
        if not can(self.engine, capability):
            name = type(self.engine).__name__
            raise ConfigurationError(f"a {name} {lack} (Capability.{capability.name}): use an SGLangClient")

    def _wants_kept_sets(self, settings: Settings, sampling: Mapping[str, Any], *, constrained: bool) -> bool:
        wanted, possible = settings.kept_sets, can(self.engine, Capability.KEPT_SETS)
        if wanted is True and not possible:
            raise ConfigurationError(
                f"kept_sets must not be True with a {type(self.engine).__name__}, which does not return kept sets: use "
                "an SGLangClient, or sample without top_p, top_k and min_p"
            )
        if wanted is True:
            return True
        return wanted == "auto" and possible and not self._no_kept_sets and not constrained and has_kept_sets(sampling)

    def _without_kept_sets(self, error: Exception, settings: Settings, hold: Reservation) -> None:
        """Sample without kept sets from now on; raise if the error is no reason."""
        mentioned = isinstance(error, KeptSetsMissingError) or any(word in str(error) for word in _SETS_REFUSED)
        if settings.kept_sets != "auto" or self._no_kept_sets or not mentioned:
            raise error
        hold.release()
        self._no_kept_sets = True
        logger.warning(
            "error=<%s> | the engine returns no kept sets, so sampling with top_p, top_k or min_p is recorded "
            "without them, and importance ratios are biased. SGLang 0.5.21 and newer have them; kept_sets=True makes "
            "this an error (logged once)",
            error,
        )


def _emitted(live: LiveEvents | None) -> bool:
    return live is not None and live.started
