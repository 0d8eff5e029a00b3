"""Driving an agent through its task, and saying how that ended.

Invariant: whatever the agent does, driving it returns an `Outcome`. Only cancellation passes through.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from dataclasses import dataclass
from typing import Any

from strands.types.exceptions import (
    ContextWindowOverflowException,
    EventLoopException,
    MaxTokensReachedException,
)

from strands_sglang.chat.failed_call import ends_here
from strands_sglang.errors import (
    ContextOverflowError,
    EngineError,
    FailedCallError,
    TokenBudgetError,
    TurnAbortedError,
)
from strands_sglang.limits import STATE_KEY
from strands_sglang.provider.episode import Episode as TokenEpisode
from strands_sglang.rollout.bounds import Limits
from strands_sglang.rollout.ended import Ended, LimitReachedError
from strands_sglang.rollout.episode import Failure
from strands_sglang.rollout.pieces import Pieces
from strands_sglang.rollout.task import Task


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an agent came to its end."""

    ended: Ended
    """Why."""
    text: str = ""
    """Its last words."""
    failure: Failure | None = None
    """What broke; None when nothing did."""


async def drive(agent: Any, task: Task, limits: Limits, episode: TokenEpisode) -> Outcome:
    """Let an agent work on its task until it ends or a limit is reached.

    Args:
        agent: A Strands agent, a graph or swarm of them; or a function without arguments that does the work, and may
            be async.
        task: What it is asked.
        limits: How far it may go. Time is not looked at here.
        episode: Where its turns are recorded.

    Returns:
        How it ended.
    """
    try:
        if not hasattr(agent, "invoke_async"):
            # A plain function may wait for whatever it likes: it has a thread.
            result = await agent() if inspect.iscoroutinefunction(agent) else await asyncio.to_thread(agent)
            result = await result if inspect.isawaitable(result) else result
            return Outcome(Ended.ANSWERED, "" if result is None else str(result))
        if not hasattr(agent, "messages"):  # a graph or a swarm: its agents have loops, it has none
            return _of_several(await agent.invoke_async(task.prompt))
        result = await Pieces(agent, limits.turns).invoke(task.prompt)
        ended = Ended.TURN_LIMIT if result.stop_reason == "limit_turns" else _ended(result, agent)
        return Outcome(ended, str(result).strip())
    except (Exception, SystemExit) as error:
        return outcome_of(error, limits, episode)


def outcome_of(error: BaseException, limits: Limits, episode: TokenEpisode) -> Outcome:
    """Return what an error of the agent's says about the end of its episode."""
    while isinstance(error, EventLoopException):
        error = error.original_exception
    if isinstance(error, LimitReachedError):
        return Outcome(error.ended)
    if isinstance(error, MaxTokensReachedException):
        return Outcome(_cut(limits, episode))
    for kind, ended in _ENDS.items():
        if isinstance(error, kind):
            return Outcome(ended, failure=None if not ended.failed else failure_of(error))
    return Outcome(Ended.AGENT, failure=failure_of(error))


def failure_of(error: BaseException) -> Failure:
    """Return an error as data."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    try:
        words = str(error)
    except Exception:
        words = "(its words could not be had)"
    return Failure(type(error).__name__, words, "".join(lines)[-4000:])


_ENDS: dict[type[BaseException], Ended] = {
    ContextWindowOverflowException: Ended.CONTEXT,
    ContextOverflowError: Ended.CONTEXT,
    TokenBudgetError: Ended.TOKEN_LIMIT,
    FailedCallError: Ended.FAILED_CALL,
    TurnAbortedError: Ended.ENGINE,
    EngineError: Ended.ENGINE,
}


def _cut(limits: Limits, episode: TokenEpisode) -> Ended:
    """Return which budget cut the last turn."""
    if limits.tokens_per_episode is not None and episode.sampled_tokens >= limits.tokens_per_episode:
        return Ended.TOKEN_LIMIT
    last = episode.tree.turns[-1]
    begun = episode.tree.path(last)[0].sampled_start
    if limits.response is not None and last.end - begun >= limits.response:
        return Ended.TOKEN_LIMIT
    if limits.tokens_per_turn is None or len(last.sampled) < limits.tokens_per_turn:
        return Ended.CONTEXT if limits.context is not None and last.end >= limits.context else Ended.TURN_CUT
    return Ended.TURN_CUT


def _of_several(result: Any) -> Outcome:
    """Return how a graph or a swarm ended; its last words are those of the agent that came last."""
    last = list(result.results.values())[-1:]
    ended = Ended.ANSWERED if result.status.value == "completed" else Ended.STOPPED
    return Outcome(ended, str(last[0].result).strip() if last else "")


def _ended(result: Any, agent: Any) -> Ended:
    if result.stop_reason not in ("cancelled", "interrupt"):
        return Ended.ANSWERED if result.stop_reason in ("end_turn", "stop_sequence") else Ended.STOPPED
    if (result.state or {}).get(STATE_KEY):
        return Ended.TOOL_LIMIT
    replies = (message["content"] for message in reversed(agent.messages) if message["role"] == "assistant")
    if any("toolUse" in block and ends_here(block["toolUse"]) for block in next(replies, ())):
        return Ended.FAILED_CALL
    return Ended.STOPPED
