"""Running a turn: prepare, sample, record, tell the framework.

Invariant: the framework hears of a turn only when it is recorded. (Live text is shown before; if such a turn fails,
the framework gets the error, and nothing is recorded.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from strands.types.exceptions import ContextWindowOverflowException

from strands_sglang.engine import AbortPolicy, FinishReason, Generation, TokenEngine
from strands_sglang.errors import CallCancelledError, ConfigurationError, ContextOverflowError, TurnAbortedError
from strands_sglang.provider.alarm import ALARM_AFTER, ParserAlarm
from strands_sglang.provider.answer import end_behind_failure, settle_failed_calls
from strands_sglang.provider.audit import AUDIT_SHARE, Auditor
from strands_sglang.provider.blocks import Event, block_events, closing_events
from strands_sglang.provider.budget import turn_budget
from strands_sglang.provider.episode import Episode
from strands_sglang.provider.live import LiveEvents, LiveText
from strands_sglang.provider.names import name_of
from strands_sglang.provider.plan import Planner
from strands_sglang.provider.policy import ArgumentCheck, FailedCallPolicy, RewritePolicy
from strands_sglang.provider.prepare import prepare
from strands_sglang.provider.record import record
from strands_sglang.provider.reserve import Hold
from strands_sglang.provider.standing import PLACE_KEY, acknowledge, await_reply, tells
from strands_sglang.provider.turn import Ready, Recorded, Request
from strands_sglang.tool_parsers import ToolParser

logger = logging.getLogger(__name__)

_MANY_TURNS = 20_000
_AUDIT_EVERY = 16


class TurnRunner:
    """Runs the turns of one model, any number at once."""

    def __init__(self, engine: TokenEngine, planner: Planner, parser: ToolParser, problem: str = "") -> None:
        self.engine = engine
        """Where tokens come from."""
        self.planner = planner
        """Finds branches and makes prompts."""
        self.parser = parser
        """Takes sampled turns apart."""
        self._problem = problem
        self._alarm = ParserAlarm(parser, tools_shown=planner.bridge.template.tools)
        self._auditor = Auditor(planner.appender)
        self.context_limit: int | None = None
        """The engine's context length in tokens, once it has told; None before."""

    async def run(
        self,
        episode: Episode,
        request: Request,
        config: Mapping[str, Any],
        cancel_signal: Any,
        agent: Any = None,
    ) -> AsyncGenerator[Event, None]:
        """Run one turn and yield its events; `agent`: whose turn it is, None when that is not certain."""
        if self._problem and request.tool_specs and request.schema is None:
            raise ConfigurationError(f"tool_parser='auto' cannot tell how this model calls tools: {self._problem}")
        began = time.monotonic()
        on_failed = config.get("on_failed_call", FailedCallPolicy.TELL)
        ready = await prepare(
            self.planner,
            episode,
            request,
            self.parser,
            named=() if agent is None else acknowledge(agent, episode),
            on_rewrite=config.get("on_template_rewrite", RewritePolicy.KEEP),
            on_trim=config.get("on_trim", RewritePolicy.FORK),
            on_reminder=config.get("on_reminder", RewritePolicy.KEEP),
        )
        end_behind_failure(episode, ready)
        engine = self.engine if episode.witness is None else episode.witness.engine
        live = self._live(engine, ready, config)
        if live is not None:
            yield {"messageStart": {"role": "assistant"}}
        generation: Generation | None = None
        schemas, told = request.schemas(), tells(agent, request)
        with episode.hold(config.get("max_episode_tokens")) as hold:
            async with aclosing(self._sample(engine, episode, ready, config, cancel_signal, live, hold)) as sampling:
                async for item in sampling:
                    if isinstance(item, Generation):
                        generation = item
                    else:
                        yield item
            if generation is None:
                raise TurnAbortedError("the engine's stream ended without a whole turn")
            recorded = record(
                self.planner,
                episode,
                ready,
                generation,
                self.parser,
                schemas=schemas,
                latency_ms=int(1000 * (time.monotonic() - began)),
                live=live,
                check=config.get("arguments_checked_by", ArgumentCheck.TOOL),
                ends=on_failed is FailedCallPolicy.END,
                told=told,
                agent=None if agent is None else name_of(agent),
            )
            if episode.witness is not None:
                try:
                    episode.witness.committed(recorded.turn, generation)
                except BaseException:
                    ready.tree.reject(recorded.turn)
                    raise
        if generation.finish_reason is FinishReason.ABORT:
            ready.tree.reject(recorded.turn)
            raise TurnAbortedError(
                f"the engine cut turn {recorded.turn.id} after {len(generation)} tokens ({generation.finish_detail}); "
                "they are recorded as a rejected turn. on_abort='continue' goes on with such turns"
            )
        if len(episode.tree) == _MANY_TURNS:
            logger.warning(
                "turns=<%d> | one episode grows without end: reset() or model.episode() begin new ones", _MANY_TURNS
            )
        try:
            episode.made(recorded.turn)
            self._audit(episode, ready, recorded, config)
            if not recorded.cut and request.schema is None:
                self._alarm.look(recorded.text, recorded.parsed, schemas, config.get("alarm_after", ALARM_AFTER))
            if episode.witness is not None and agent is not None:
                episode.witness.calls(agent)
            settle_failed_calls(episode, recorded, agent, on_failed)
            if told:
                await_reply(agent, ready.tree, recorded.turn, recorded.entry)
            for event in _told(episode, recorded, generation, live):
                if cancel_signal is not None and cancel_signal.is_set():
                    raise CallCancelledError("cancelled while the framework was told of the turn")
                yield event
        except BaseException:
            # The framework takes a message whole or not at all: this reply is part of no conversation.
            ready.tree.reject(recorded.turn)
            raise

    async def _sample(
        self,
        engine: TokenEngine,
        episode: Episode,
        ready: Ready,
        config: Mapping[str, Any],
        cancel_signal: Any,
        live: LiveEvents | None,
        hold: Hold,
    ) -> AsyncGenerator[Event | Generation, None]:
        """Yield what can be shown while the turn is sampled, and at last the whole of it."""
        limit = min(filter(None, (config.get("context_window_limit"), self.context_limit)), default=None)
        while True:
            try:
                sampling, asked = self._asked(episode, ready, config, limit)
                if episode.witness is None:
                    sampling["max_new_tokens"] = await hold.tokens(sampling["max_new_tokens"])
                else:
                    asked["hold"] = hold
                if live is None:
                    yield await engine.generate(ready.prepared.ids, sampling, cancel_signal=cancel_signal, **asked)
                    return
                stream = engine.stream  # type: ignore[attr-defined]
                asked.pop("routed_experts_start", None)
                chunks = stream(ready.prepared.ids, sampling, cancel_signal=cancel_signal, **asked)
                async with aclosing(chunks):
                    async for chunk in chunks:
                        for event in live.feed(chunk.token_ids):
                            yield event
                        if chunk.generation is not None:
                            yield chunk.generation
                return
            except ContextOverflowError as error:
                hold.release()
                known, prompt = error.limit_tokens, len(ready.prepared.ids)
                if known is None or limit == known or prompt >= known or (live is not None and live.shown):
                    raise ContextWindowOverflowException(str(error)) from error
                # The engine knows its context best: keep to it from now on, and ask again for less.
                logger.info("context=<%d> | learned the engine's context length", known)
                self.context_limit = limit = known

    def _asked(
        self, episode: Episode, ready: Ready, config: Mapping[str, Any], limit: int | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the sampling parameters of a turn, and the other arguments of the engine."""
        sampling = dict(config.get("sampling_params") or {})
        sampling["max_new_tokens"] = turn_budget(
            sampling,
            prompt_tokens=len(ready.prepared.ids),
            context_limit=limit,
            used=episode.sampled_tokens,
            episode_limit=config.get("max_episode_tokens"),
            response=ready.response if (response_limit := config.get("max_response_tokens")) else 0,
            response_limit=response_limit,
        )
        if ready.request.schema is not None:
            sampling["json_schema"] = ready.request.schema
        kept_together = None if episode.witness is None else episode.witness.routing_key
        asked: dict[str, Any] = {"routing_key": kept_together or episode.id}
        asked["on_abort"] = config.get("on_abort", AbortPolicy.CONTINUE)
        for name in ("deadline", "extra"):
            if config.get(name) is not None:
                asked[name] = config[name]
        if config.get("routed_experts"):
            parent = ready.prepared.parent
            asked["routed_experts_start"] = max(0, parent.end - 1) if parent is not None else 0
        return sampling, asked

    def _audit(self, episode: Episode, ready: Ready, recorded: Recorded, config: Mapping[str, Any]) -> None:
        """Have the conversation audited where an agent stops, and now and then on its way."""
        entry = ready.lineage.entry(recorded.turn.id)
        if entry is not None and (not entry.shape.calls or recorded.turn.id % _AUDIT_EVERY == _AUDIT_EVERY - 1):
            self._auditor.share = config.get("audit_share", AUDIT_SHARE)
            self._auditor.look(episode, entry)

    def _live(self, engine: TokenEngine, ready: Ready, config: Mapping[str, Any]) -> LiveEvents | None:
        if not config.get("streaming") or not hasattr(engine, "stream"):
            return None
        encoder = self.planner.bridge.encoder
        return LiveEvents(LiveText(encoder, self.parser, reasoning_open=ready.reasoning_open))


def _told(episode: Episode, recorded: Recorded, generation: Generation, live: LiveEvents | None) -> Iterator[Event]:
    """Yield the events of a recorded turn, but for those that were shown while it was sampled."""
    if live is not None:
        yield from live.finish(recorded.blocks)
    else:
        yield {"messageStart": {"role": "assistant"}}
        for block in recorded.blocks:
            yield from block_events(block)
    yield from closing_events(_stop_reason(recorded, generation), _usage(generation), _metrics(episode, recorded))


def _stop_reason(recorded: Recorded, generation: Generation) -> str:
    if recorded.cut:
        return "max_tokens"
    if any("toolUse" in block for block in recorded.blocks):
        return "tool_use"
    return "stop_sequence" if isinstance(generation.finish_detail, str) else "end_turn"


def _usage(generation: Generation) -> dict[str, int]:
    sampled = len(generation)
    usage = {
        "inputTokens": generation.prompt_tokens,
        "outputTokens": sampled,
        "totalTokens": generation.prompt_tokens + sampled,
    }
    if generation.cached_tokens is not None:
        usage["cacheReadInputTokens"] = generation.cached_tokens
    return usage


def _metrics(episode: Episode, recorded: Recorded) -> dict[str, Any]:
    turn = recorded.turn
    place = {"tree": episode.id, "branch": recorded.entry.branch, "turn": turn.id, "parent": turn.parent}
    return {"latencyMs": turn.detail["latency_ms"], PLACE_KEY: place}
