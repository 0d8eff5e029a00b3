"""Runs a turn: prepares it, samples it, commits it, and yields its events to the framework.

Invariant: the framework receives a turn only after it was committed. (Streamed text is emitted earlier; if such a turn
fails, the framework receives the error, and nothing is committed.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from strands.types.exceptions import ContextWindowOverflowException

from strands_sglang._strands_compat.agents import name_of
from strands_sglang.engine import AbortPolicy, Capability, FinishReason, Generation, TokenEngine, can, streams
from strands_sglang.engine.protocol import prompt_images
from strands_sglang.engine.request import truncates
from strands_sglang.errors import (
    CallCancelledError,
    ConfigurationError,
    ContextOverflowError,
    KeptSetsMissingError,
    RequestRejectedError,
    TurnAbortedError,
)
from strands_sglang.provider.audit import ALARM_AFTER, AUDIT_SHARE, Auditor, ParserAlarm
from strands_sglang.provider.commit import commit_turn
from strands_sglang.provider.config import ArgumentCheck, FailedCallPolicy, RewritePolicy, kept_top_k
from strands_sglang.provider.episode import EpisodeTokens
from strands_sglang.provider.failed_calls import handle_failed_calls, stop_after_failed_calls
from strands_sglang.provider.images import ImageSupport
from strands_sglang.provider.planning import Planner
from strands_sglang.provider.preparation import CommittedTurn, PreparedCall, TurnRequest, prepare
from strands_sglang.provider.reply_tracking import TURN_KEY, can_track_reply, restore_kept_turns, track_reply
from strands_sglang.provider.stream_events import (
    Block,
    Event,
    LiveEvents,
    LiveText,
    block_events,
    closing_events,
)
from strands_sglang.provider.token_budget import Reservation, turn_budget
from strands_sglang.tokens import TokenTree, Turn
from strands_sglang.tool_parsers import ToolParser

logger = logging.getLogger(__name__)

_MANY_TURNS = 20_000
"""Turns of one episode after which a warning is logged."""
_SETS_REFUSED = ("sampling_mask", "sampling mask")
"""Words with which the engine refuses to return kept sets, as with speculative decoding."""
_AUDIT_EVERY = 16
"""Turns between two audits of an episode whose agent has not answered yet."""


class TurnRunner:
    """Runs the turns of one model, any number at the same time."""

    def __init__(
        self, engine: TokenEngine, planner: Planner, parser: ToolParser, images: ImageSupport, problem: str = ""
    ) -> None:
        self.engine = engine
        """Samples tokens."""
        self.planner = planner
        """Finds branches and builds prompts."""
        self.parser = parser
        """Parses sampled turns."""
        self.images = images
        """Knows how many positions an image takes."""
        self._problem = problem
        self._alarm = ParserAlarm(parser, tools_shown=planner.bridge.template.writes_tools)
        self._auditor = Auditor(planner.appender)
        self._no_kept_sets = False  # whether the engine was found not to return them, in "auto" mode
        self.context_limit: int | None = None
        """The engine's context length in tokens; None until an error of the engine reported it."""

    async def reply(
        self,
        episode: EpisodeTokens,
        request: TurnRequest,
        config: Mapping[str, Any],
        cancel_signal: Any,
        agent: Any = None,
    ) -> TurnReply:
        """Run one turn that is not streamed.

        Args:
            episode: The episode of the turn.
            request: The call.
            config: Settings of the model (`SGLangConfig`), validated.
            cancel_signal: Event that cancels the call when set; None: no cancellation.
            agent: The agent that makes the turn; None if not certain.
        """
        started = time.monotonic()
        prepared = await self._prepare(episode, request, config, agent)
        with episode.reserve(config.get("max_episode_tokens")) as hold:
            generation = await self._generate(episode, prepared, config, cancel_signal, hold)
            committed, tracked = self._commit(episode, prepared, generation, config, agent, started)
        return self._finish(episode, prepared, committed, generation, config, agent, tracked)

    def streams(self, config: Mapping[str, Any], episode: EpisodeTokens) -> bool:
        """Return whether the text of turns is streamed while it is sampled."""
        return bool(config.get("streaming")) and streams(self._engine_of(episode))

    async def stream(
        self,
        episode: EpisodeTokens,
        request: TurnRequest,
        config: Mapping[str, Any],
        cancel_signal: Any,
        agent: Any = None,
    ) -> AsyncGenerator[Event, None]:
        """Run one turn and yield its events while it is sampled; see `reply`."""
        started = time.monotonic()
        prepared = await self._prepare(episode, request, config, agent)
        live = LiveEvents(LiveText(self.planner.bridge.encoder, self.parser, reasoning_open=prepared.reasoning_open))
        yield {"messageStart": {"role": "assistant"}}
        generation: Generation | None = None
        with episode.reserve(config.get("max_episode_tokens")) as hold:
            async with aclosing(self._sample(episode, prepared, config, cancel_signal, live, hold)) as sampling:
                async for item in sampling:
                    if isinstance(item, Generation):
                        generation = item
                    else:
                        yield item
            if generation is None:
                raise TurnAbortedError("the engine's stream ended before the turn was complete")
            committed, tracked = self._commit(episode, prepared, generation, config, agent, started, live)
        with self._finish(episode, prepared, committed, generation, config, agent, tracked) as reply:
            for event in [*live.finish(reply.blocks), *reply.closing_events()]:
                reply.check_not_cancelled(cancel_signal)
                yield event

    async def _prepare(
        self, episode: EpisodeTokens, request: TurnRequest, config: Mapping[str, Any], agent: Any
    ) -> PreparedCall:
        """Return a turn that can be sampled."""
        if self._problem and request.tool_specs and request.schema is None:
            raise ConfigurationError(f"tool_parser='auto' cannot determine the format of tool calls: {self._problem}")
        prepared = await prepare(
            self.planner,
            episode,
            request,
            self.parser,
            self.images,
            turns_in_messages=() if agent is None else restore_kept_turns(agent, episode),
            on_rewrite=config.get("on_template_rewrite", RewritePolicy.KEEP),
            on_trim=config.get("on_trim", RewritePolicy.FORK),
            on_reminder=config.get("on_reminder", RewritePolicy.KEEP),
        )
        stop_after_failed_calls(episode, prepared)
        return prepared

    def _commit(
        self,
        episode: EpisodeTokens,
        prepared: PreparedCall,
        generation: Generation,
        config: Mapping[str, Any],
        agent: Any,
        started: float,
        live: LiveEvents | None = None,
    ) -> tuple[CommittedTurn, bool]:
        """Commit a sampled turn; return it, and whether its reply is tracked."""
        tracked = can_track_reply(agent, prepared.request)
        committed = commit_turn(
            self.planner,
            episode,
            prepared,
            generation,
            self.parser,
            schemas=prepared.request.schemas(),
            latency_ms=int(1000 * (time.monotonic() - started)),
            live=live,
            check=config.get("arguments_checked_by", ArgumentCheck.TOOL),
            ends=config.get("on_failed_call") is FailedCallPolicy.END,
            tracked=tracked,
            agent=None if agent is None else name_of(agent),
            temperature=_temperature(config),
        )
        if episode.observer is not None:
            try:
                episode.observer.committed(committed.turn, generation)
            except BaseException:
                prepared.tree.reject(committed.turn)
                raise
        return committed, tracked

    def _finish(
        self,
        episode: EpisodeTokens,
        prepared: PreparedCall,
        committed: CommittedTurn,
        generation: Generation,
        config: Mapping[str, Any],
        agent: Any,
        tracked: bool,
    ) -> TurnReply:
        """Return what the framework receives of a committed turn, and do what is due before it receives it."""
        turn, request = committed.turn, prepared.request
        if generation.finish_reason is FinishReason.ABORT:
            prepared.tree.reject(turn)
            raise TurnAbortedError(
                f"the engine aborted turn {turn.id} after {len(generation)} tokens "
                f"({generation.finish_detail}); they are recorded as a rejected turn. Set on_abort='continue' to "
                "continue such turns"
            )
        if len(episode.tree) == _MANY_TURNS:
            logger.warning(
                "turns=<%d> | one episode keeps growing; start a new one with reset() or model.episode()", _MANY_TURNS
            )
        try:
            episode.set_last_turn(turn)
            self._audit(episode, prepared, committed, config)
            if not committed.truncated and request.schema is None:
                alarm_after = config.get("alarm_after", ALARM_AFTER)
                self._alarm.check(committed.text, committed.parsed, request.schemas(), alarm_after)
            if episode.observer is not None and agent is not None:
                episode.observer.observe_agent(agent)
            handle_failed_calls(episode, committed, agent, config.get("on_failed_call", FailedCallPolicy.TELL))
            if tracked:
                track_reply(agent, prepared.tree, turn, committed.entry)
            return TurnReply(
                prepared.tree,
                turn,
                committed.blocks,
                _stop_reason(committed, generation),
                _usage(generation),
                _metrics(episode, committed),
            )
        except BaseException:
            # The framework adds a message completely or not at all: this reply is not part of any conversation.
            prepared.tree.reject(turn)
            raise

    def _engine_of(self, episode: EpisodeTokens) -> TokenEngine:
        return self.engine if episode.observer is None else episode.observer.engine

    async def _generate(
        self,
        episode: EpisodeTokens,
        prepared: PreparedCall,
        config: Mapping[str, Any],
        cancel_signal: Any,
        hold: Reservation,
    ) -> Generation:
        """Sample a turn that is not streamed."""
        engine, limit = self._engine_of(episode), self._context_limit(config)
        while True:
            try:
                sampling, arguments = await self._engine_arguments(episode, prepared, config, limit, hold)
                return await engine.generate(prepared.turn.ids, sampling, cancel_signal=cancel_signal, **arguments)
            except ContextOverflowError as error:
                limit = self._reported_limit(error, prepared, limit, hold)
            except (KeptSetsMissingError, RequestRejectedError) as error:
                self._without_kept_sets(error, config, hold)

    async def _sample(
        self,
        episode: EpisodeTokens,
        prepared: PreparedCall,
        config: Mapping[str, Any],
        cancel_signal: Any,
        live: LiveEvents,
        hold: Reservation,
    ) -> AsyncGenerator[Event | Generation, None]:
        """Yield the events that can be emitted while the turn is sampled, then the complete generation."""
        engine, limit = self._engine_of(episode), self._context_limit(config)
        while True:
            try:
                sampling, arguments = await self._engine_arguments(episode, prepared, config, limit, hold)
                assert streams(engine)  # `streams` decided that this turn is streamed
                arguments.pop("routed_experts_start", None)
                chunks = engine.stream(prepared.turn.ids, sampling, cancel_signal=cancel_signal, **arguments)
                async with aclosing(chunks):
                    async for chunk in chunks:
                        for event in live.feed(chunk.token_ids):
                            yield event
                        if chunk.generation is not None:
                            yield chunk.generation
                return
            except ContextOverflowError as error:
                limit = self._reported_limit(error, prepared, limit, hold, final=live.started)
            except (KeptSetsMissingError, RequestRejectedError) as error:
                if live.started:
                    raise
                self._without_kept_sets(error, config, hold)

    def _context_limit(self, config: Mapping[str, Any]) -> int | None:
        return min(filter(None, (config.get("context_window_limit"), self.context_limit)), default=None)

    def _reported_limit(
        self,
        error: ContextOverflowError,
        prepared: PreparedCall,
        limit: int | None,
        hold: Reservation,
        *,
        final: bool = False,
    ) -> int:
        """Return the context length that the engine reported: the call is repeated with a smaller budget.

        Raises:
            ContextWindowOverflowException: A smaller budget does not help, or `final` is True.
        """
        hold.release()
        known = error.limit_tokens
        if known is None or limit == known or len(prepared.turn.ids) >= known or final:
            raise ContextWindowOverflowException(str(error)) from error
        logger.info("context=<%d> | engine reported its context length", known)
        self.context_limit = known  # used from now on
        return known

    async def _engine_arguments(
        self,
        episode: EpisodeTokens,
        prepared: PreparedCall,
        config: Mapping[str, Any],
        limit: int | None,
        hold: Reservation,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the sampling parameters of a turn, and the other arguments of the engine call."""
        sampling = dict(config.get("sampling_params") or {})
        sampling["max_new_tokens"] = turn_budget(
            sampling,
            prompt_tokens=len(prepared.turn.ids),
            context_limit=limit,
            used=episode.sampled_tokens,
            episode_limit=config.get("max_episode_tokens"),
            response=prepared.response if (response_limit := config.get("max_response_tokens")) else 0,
            response_limit=response_limit,
        )
        if prepared.request.schema is not None:
            sampling["json_schema"] = prepared.request.schema
        routing_key = None if episode.observer is None else episode.observer.routing_key
        arguments: dict[str, Any] = {"routing_key": routing_key or episode.id}
        arguments["on_abort"] = config.get("on_abort", AbortPolicy.CONTINUE)
        if prepared.turn.images:
            sampling["stop_token_ids"] = self.images.stop_ids(sampling)
            files = prepared.images
            arguments["images"] = prompt_images(prepared.turn.images, lambda digest: files[digest].png)
        for name in ("deadline", "extra"):
            if config.get(name) is not None:
                arguments[name] = config[name]
        if self._wants_kept_sets(config, sampling, prepared.request.schema is not None):
            # The engine returns sets only below a bound. What it leaves out then is left out of the set as well.
            sampling["top_k"] = kept_top_k(sampling)
            arguments["kept_sets"] = True
        if config.get("routed_experts"):
            parent = prepared.turn.parent
            arguments["routed_experts_start"] = max(0, parent.end - 1) if parent is not None else 0
        if episode.observer is None:
            sampling["max_new_tokens"] = await hold.tokens(sampling["max_new_tokens"])
        else:
            arguments["hold"] = hold
        return sampling, arguments

    def _wants_kept_sets(self, config: Mapping[str, Any], sampling: Mapping[str, Any], constrained: bool) -> bool:
        wanted, possible = config.get("kept_sets", "auto"), can(self.engine, Capability.KEPT_SETS)
        if wanted is True and not possible:
            raise ConfigurationError(
                f"kept_sets must not be True with a {type(self.engine).__name__}, which does not return kept sets: use "
                "an SGLangClient, or sample without top_p, top_k and min_p"
            )
        if wanted is True:
            return True
        return wanted == "auto" and possible and not self._no_kept_sets and not constrained and truncates(sampling)

    def _without_kept_sets(self, error: Exception, config: Mapping[str, Any], hold: Reservation) -> None:
        """Sample without kept sets from now on, because the engine does not return them; raise if that is no reason."""
        mentioned = isinstance(error, KeptSetsMissingError) or any(word in str(error) for word in _SETS_REFUSED)
        if config.get("kept_sets", "auto") != "auto" or self._no_kept_sets or not mentioned:
            raise error
        hold.release()
        self._no_kept_sets = True
        logger.warning(
            "error=<%s> | the engine returns no kept sets, so truncated sampling (top_p, top_k, min_p) is recorded "
            "without them, and importance ratios are biased. SGLang 0.5.21 and newer have them; kept_sets=True makes "
            "this an error (logged once)",
            error,
        )

    def _audit(
        self, episode: EpisodeTokens, prepared: PreparedCall, committed: CommittedTurn, config: Mapping[str, Any]
    ) -> None:
        """Audit the conversation when the agent answers, and every `_AUDIT_EVERY` turns before that."""
        entry = prepared.index.get(committed.turn.id)
        if entry is not None and (not entry.shape.calls or committed.turn.id % _AUDIT_EVERY == _AUDIT_EVERY - 1):
            self._auditor.share = config.get("audit_share", AUDIT_SHARE)
            self._auditor.submit(episode, entry)


class TurnReply(NamedTuple):
    """What the framework receives of a committed turn.

    It is a context manager: if the framework does not receive all of it, because of an exception, the turn is rejected.
    """

    tree: TokenTree
    """The tree of the turn."""
    turn: Turn
    """The turn."""
    blocks: list[Block]
    """Its content blocks."""
    stop_reason: str
    """Why it ended, in the framework's words."""
    usage: dict[str, int]
    """Its token counts."""
    metrics: dict[str, Any]
    """Its latency, and its place in the tree."""

    def events(self) -> list[Event]:
        """Return the stream events of the whole turn."""
        events: list[Event] = [{"messageStart": {"role": "assistant"}}]
        for block in self.blocks:
            events += block_events(block)
        return events + self.closing_events()

    def closing_events(self) -> list[Event]:
        """Return the stream events that end the message."""
        return closing_events(self.stop_reason, self.usage, self.metrics)

    def check_not_cancelled(self, cancel_signal: Any) -> None:
        """Raise CallCancelledError if the call was cancelled before the framework has received the whole turn."""
        if cancel_signal is not None and cancel_signal.is_set():
            raise CallCancelledError("the call was cancelled while its events were sent to the framework")

    def __enter__(self) -> TurnReply:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # The framework adds a message completely or not at all: this reply is not part of any conversation.
        if kind is not None:
            self.tree.reject(self.turn)


def _temperature(config: Mapping[str, Any]) -> float | None:
    """Return the temperature of sampling, 1.0 if none is set; None if it is not a number."""
    value = (config.get("sampling_params") or {}).get("temperature", 1.0)
    return float(value) if isinstance(value, (int, float)) else None


def _stop_reason(committed: CommittedTurn, generation: Generation) -> str:
    if committed.truncated:
        return "max_tokens"
    if any("toolUse" in block for block in committed.blocks):
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


def _metrics(episode: EpisodeTokens, committed: CommittedTurn) -> dict[str, Any]:
    turn = committed.turn
    place = {"tree": episode.id, "branch": committed.entry.branch, "turn": turn.id, "parent": turn.parent}
    return {"latencyMs": turn.detail["latency_ms"], TURN_KEY: place}
