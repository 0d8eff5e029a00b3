"""Runs a turn: prepares it, samples it, commits it, and passes its reply to the framework.

Malformed tool calls: the SDK answers a call of an unknown tool with "Unknown tool". Hooks on the calling agent answer
with the parse error instead, and stop the agent if that is the policy. If the calling agent is not certain, the SDK's
answer is replaced when the conversation is rendered (`chat/failed_call.py`), and the agent is stopped by an error at
its next model call. Hooks are added only to the agent that makes the call (`_strands_compat/agents.py` finds it).

Invariant: the framework receives a turn only after it was committed. (Streamed text is emitted earlier; if such a turn
fails, the framework receives the error, and nothing is committed.)
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from strands.hooks import AfterToolsEvent, BeforeToolCallEvent

from strands_sglang.chat.failed_call import ends_agent, failed_call_error
from strands_sglang.engine import FinishReason, Generation, TokenEngine
from strands_sglang.errors import CallCancelledError, ConfigurationError, FailedCallError, TurnAbortedError
from strands_sglang.provider.audit import Auditor, ParserAlarm
from strands_sglang.provider.commit import commit_turn
from strands_sglang.provider.config import FailedCallPolicy
from strands_sglang.provider.images import ImageSupport
from strands_sglang.provider.planning import Planner
from strands_sglang.provider.preparation import prepare
from strands_sglang.provider.reply_tracking import track_reply
from strands_sglang.provider.sampling import Sampler
from strands_sglang.provider.stream_events import Event, LiveEvents, LiveText
from strands_sglang.provider.tool_outage import raise_outages
from strands_sglang.provider.turn import CommittedTurn, PreparedCall, TurnReply, TurnRequest

logger = logging.getLogger(__name__)

_MANY_TURNS = 20_000
_AUDIT_EVERY = 16
"""Turns between two audits of an episode whose agent has not answered yet."""


class TurnRunner:
    """Runs the turns of one model, any number at the same time."""

    def __init__(self, engine: TokenEngine, planner: Planner, images: ImageSupport, problem: str = "") -> None:
        """Create a runner; `problem` says why no parser of tool calls was found, "" if one was."""
        self.planner = planner
        self.sampler = Sampler(engine, images)
        self._images = images
        self.problem = problem
        self._alarm = ParserAlarm(planner.parser, tools_shown=planner.bridge.template.writes_tools)
        self._auditor = Auditor(planner.appender)

    async def stream(self, request: TurnRequest) -> AsyncGenerator[Event, None]:
        """Run one turn and yield its events, while it is sampled if that is set and the engine can."""
        call = await self._prepare(request)
        live: LiveEvents | None = None
        if self.sampler.streams(request):
            encoder, parser = self.planner.bridge.encoder, self.planner.parser
            live = LiveEvents(LiveText(encoder, parser, reasoning_open=call.reasoning_open))
            yield {"messageStart": {"role": "assistant"}}
        generation: Generation | None = None
        with request.episode.reserve(request.settings.max_episode_tokens) as hold:
            async with aclosing(self.sampler.sample(call, live, hold)) as sampling:
                async for item in sampling:
                    if isinstance(item, Generation):
                        generation = item
                    else:
                        yield item
            if generation is None:
                raise TurnAbortedError("the engine's stream ended before the turn was complete")
            committed = commit_turn(self.planner, call, generation, live)
        with self._finish(committed) as reply:
            for event in reply.events():
                if request.cancel_signal is not None and request.cancel_signal.is_set():
                    raise CallCancelledError("the call was cancelled while its events were sent to the framework")
                yield event

    async def reply(self, request: TurnRequest) -> TurnReply:
        """Run one turn that is not streamed; return its reply."""
        call = await self._prepare(request)
        with request.episode.reserve(request.settings.max_episode_tokens) as hold:
            async with aclosing(self.sampler.sample(call, None, hold)) as sampling:
                generation = await anext(sampling)  # nothing is emitted before it
            assert isinstance(generation, Generation)
            committed = commit_turn(self.planner, call, generation)
        return self._finish(committed)

    async def _prepare(self, request: TurnRequest) -> PreparedCall:
        if self.problem and request.conversation.preamble.tools and request.schema is None:
            raise ConfigurationError(f"tool_parser='auto' cannot determine the format of tool calls: {self.problem}")
        request = replace(request, conversation=request.conversation.at(request.episode.time))
        call = await prepare(self.planner, self._images, request)
        stop_after_failed_calls(call)
        return call

    def _finish(self, committed: CommittedTurn) -> TurnReply:
        turn, generation, request = committed.turn, committed.generation, committed.call.request
        episode, settings = request.episode, request.settings
        if generation.finish_reason is FinishReason.ABORT:
            raise TurnAbortedError(
                f"the engine aborted turn {turn.id} after {len(generation)} tokens "
                f"({generation.finish_detail}); they are recorded as a rejected turn. Set on_abort='continue' to "
                "continue such turns"
            )
        if len(episode.tree) == _MANY_TURNS:
            logger.warning(
                "turns=<%d> | one episode keeps growing; start a new one with reset() or model.episode()", _MANY_TURNS
            )
        episode.set_last_turn(turn)
        # Audited when the agent answers, and every so many turns before that.
        if not committed.entry.shape.calls or turn.id % _AUDIT_EVERY == _AUDIT_EVERY - 1:
            self._auditor.submit(episode, committed.entry, settings.audit_share)
        if not committed.truncated and request.schema is None:
            self._alarm.check(
                committed.text, committed.parsed, request.conversation.preamble.schemas, settings.alarm_after
            )
        if request.agent is not None and episode.observer is not None:
            episode.observer.observe_agent(request.agent)
        elif request.agent is not None:
            raise_outages(request.agent)
        handle_failed_calls(committed)
        if request.is_tracked:
            track_reply(request.agent, committed.call.tree, turn, committed.entry)
        return TurnReply(committed)


_hooked: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.Lock()


def handle_failed_calls(committed: CommittedTurn) -> None:
    """Add hooks to the agent that answer the failed calls of its turn, and stop it after them if that is the policy."""
    if not committed.parsed.failures or committed.truncated:
        return
    request = committed.call.request
    agent = request.agent
    if agent is None:
        if request.settings.on_failed_call is FailedCallPolicy.END:
            request.episode.stop_after.add(committed.turn.id)
        return
    with _lock:
        has_hooks = agent in _hooked
        _hooked.add(agent)
    if not has_hooks:
        agent.add_hook(_answer, BeforeToolCallEvent)
        agent.add_hook(_stop, AfterToolsEvent)


def stop_after_failed_calls(call: PreparedCall) -> None:
    """Stop a conversation whose last turn had failed calls, if its agent could not be stopped by a hook."""
    parent, request = call.plan.lineage.parent, call.request
    if parent is None or parent.turn not in request.episode.stop_after or request.is_side:
        return
    if request.conversation.ends_with_results:
        kinds = call.tree[parent.turn].detail.get("failed_calls", ())
        raise FailedCallError(
            f"turn {parent.turn} has malformed tool calls ({', '.join(sorted(set(kinds)))}) and on_failed_call is "
            "'end'; 'tell' returns the parse errors to the model instead",
            turn=parent.turn,
        )


def _answer(event: BeforeToolCallEvent) -> None:
    answer = failed_call_error(event.tool_use)
    if answer is not None and not event.cancel_tool:
        event.cancel_tool = answer


def _stop(event: AfterToolsEvent) -> None:
    """Stop the agent only if all results are there: an interrupted turn is repeated."""
    uses = [block["toolUse"] for block in event.agent.messages[-1]["content"] if "toolUse" in block]
    if len(event.message["content"]) >= len(uses) and any(ends_agent(use) for use in uses):
        event.agent.cancel(after_current_tools=True)
