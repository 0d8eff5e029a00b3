"""Builds and runs the agent of one episode (`EpisodeRun`), and determines how its run ended (`run_agent`).

`workers/local.py` decides the end reasons that come from outside the agent: `timeout`, `paused`, `not_needed`, and
`engine_error`, `tool_unavailable` or `other_model_error` if the agent did not let the outage pass.

Invariant: whatever the agent does, an `AgentOutcome` is returned; only cancellation is raised. The episode scope and
the recording of its tools are set only in the task that runs `EpisodeRun.run`.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from strands.models import Model
from strands.types.exceptions import (
    ContextWindowOverflowException,
    EventLoopException,
    MaxTokensReachedException,
)

from strands_sglang._async import grouped
from strands_sglang._strands_compat.agents import name_nodes
from strands_sglang._strands_compat.fast_agents import result_only
from strands_sglang._strands_compat.logs import drop_expected_errors
from strands_sglang.chat.failed_call import ends_agent
from strands_sglang.errors import (
    CallCancelledError,
    ConfigurationError,
    ContextOverflowError,
    DivergedError,
    EngineError,
    FailedCallError,
    OtherModelError,
    TokenBudgetError,
    ToolUnavailableError,
    TurnAbortedError,
)
from strands_sglang.gateway.process import Gateways, OnResume, RemoteAgent
from strands_sglang.gateway.session import Session
from strands_sglang.model import SGLangModel
from strands_sglang.provider.episode import EpisodeTokens as EpisodeTokens
from strands_sglang.runs.end_reason import EndReason, LimitReachedError
from strands_sglang.runs.episode import Failure
from strands_sglang.runs.limits import Limits, MultiAgentLimits
from strands_sglang.runs.main_branch import answer_of, main_turn
from strands_sglang.runs.recording.opened import close_with
from strands_sglang.runs.recording.other_models import OtherModels, takes_models
from strands_sglang.runs.recording.recorder import EpisodeRecorder, within
from strands_sglang.runs.recording.replay_log import RecordEndedError
from strands_sglang.runs.recording.tool_recorder import ToolRecorder, current_tool_recorder, record_tools
from strands_sglang.runs.reward import message_of
from strands_sglang.runs.task import Task
from strands_sglang.tokens import TokenTree
from strands_sglang.tool_limits import STATE_KEY, ToolLimiter


@dataclass(frozen=True, slots=True)
class AgentOutcome:
    """How an agent ended."""

    end_reason: EndReason
    text: str = ""
    failure: Failure | None = None
    answer: Any = None
    """What was answered, as `answer_of` returns it; None: unknown."""


async def run_agent(agent: Any, task: Task, limits: Limits, episode: EpisodeTokens) -> AgentOutcome:
    """Run an agent on its task until it ends or reaches a limit; time limits are not applied here.

    `agent`: a Strands agent, a graph or swarm of agents, or a function without arguments, which may be async.
    """
    try:
        if not hasattr(agent, "invoke_async"):
            # A function that is not async may block: it runs in a thread.
            result = await agent() if inspect.iscoroutinefunction(agent) else await asyncio.to_thread(agent)
            result = await result if inspect.isawaitable(result) else result
            answer, text = answer_of(result)
            return AgentOutcome(EndReason.ANSWERED, text, answer=answer)
        if not hasattr(agent, "messages"):  # a graph or a swarm, which has no event loop of its own
            return _multi_agent_outcome(await agent.invoke_async(task.prompt))
        turns = None if limits.max_turns is None else {"turns": limits.max_turns}
        with result_only(agent):
            result = await agent.invoke_async(task.prompt, limits=turns)
        end_reason = EndReason.TURN_LIMIT if result.stop_reason == "limit_turns" else _end_reason(result, agent)
        return AgentOutcome(end_reason, str(result).strip(), answer=result)
    except (Exception, SystemExit) as error:
        return outcome_of(error, limits, episode)


def outcome_of(error: BaseException, limits: Limits, episode: EpisodeTokens) -> AgentOutcome:
    """Return the outcome of an agent that raised an error."""
    while isinstance(error, EventLoopException):
        error = error.original_exception
    if outcomes := [outcome_of(one, limits, episode) for one in grouped(error)]:
        return next((one for one in outcomes if one.end_reason.failed), outcomes[0])
    if isinstance(error, LimitReachedError):
        return AgentOutcome(error.end_reason)
    if isinstance(error, MaxTokensReachedException):
        return AgentOutcome(_truncation_reason(limits, episode))
    for kind, end_reason in _END_REASONS.items():
        if isinstance(error, kind):
            return AgentOutcome(end_reason, failure=None if not end_reason.failed else failure_of(error))
    return AgentOutcome(EndReason.AGENT_ERROR, failure=failure_of(error))


def failure_of(error: BaseException) -> Failure:
    """Return an error as data."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return Failure(type(error).__name__, message_of(error), "".join(lines)[-4000:])


_END_REASONS: dict[type[BaseException], EndReason] = {
    OtherModelError: EndReason.OTHER_MODEL_ERROR,
    ContextWindowOverflowException: EndReason.CONTEXT_LENGTH,
    ContextOverflowError: EndReason.CONTEXT_LENGTH,
    TokenBudgetError: EndReason.TOKEN_LIMIT,
    FailedCallError: EndReason.FAILED_CALL,
    TurnAbortedError: EndReason.ENGINE_ERROR,
    EngineError: EndReason.ENGINE_ERROR,
    ToolUnavailableError: EndReason.TOOL_UNAVAILABLE,
}


def _truncation_reason(limits: Limits, episode: EpisodeTokens) -> EndReason:
    if limits.max_episode_tokens is not None and episode.sampled_tokens >= limits.max_episode_tokens:
        return EndReason.TOKEN_LIMIT
    last = episode.tree.turns[-1]
    first_prompt = episode.tree.path(last)[0].sampled_start
    if limits.max_response_tokens is not None and last.end - first_prompt >= limits.max_response_tokens:
        return EndReason.TOKEN_LIMIT
    below_limit = limits.max_new_tokens is None or len(last.sampled) < limits.max_new_tokens
    if below_limit and limits.max_context_tokens is not None and last.end >= limits.max_context_tokens:
        return EndReason.CONTEXT_LENGTH
    return EndReason.TURN_TRUNCATED


def _multi_agent_outcome(result: Any) -> AgentOutcome:
    answer, text = answer_of(result)
    end_reason = EndReason.ANSWERED if result.status.value == "completed" else EndReason.STOPPED
    return AgentOutcome(end_reason, text, answer=answer)


def _end_reason(result: Any, agent: Any) -> EndReason:
    if result.stop_reason not in ("cancelled", "interrupt"):
        return EndReason.ANSWERED if result.stop_reason in ("end_turn", "stop_sequence") else EndReason.STOPPED
    if (result.state or {}).get(STATE_KEY):
        return EndReason.TOOL_LIMIT
    replies = (message["content"] for message in reversed(agent.messages) if message["role"] == "assistant")
    if any("toolUse" in block and ends_agent(block["toolUse"]) for block in next(replies, ())):
        return EndReason.FAILED_CALL
    return EndReason.STOPPED


_EXPECTED_ENDS = (
    *(LimitReachedError, TokenBudgetError, FailedCallError, CallCancelledError, DivergedError, RecordEndedError),
    *(MaxTokensReachedException, ContextWindowOverflowException, asyncio.CancelledError, GeneratorExit),
)


def _in_episode() -> bool:
    return current_tool_recorder.get() is not None


def quiet_logs() -> None:
    """Keep the SDK from logging the intended end of an episode as an error; may be called any number of times."""
    drop_expected_errors(_in_episode, _EXPECTED_ENDS)


@dataclass(slots=True)
class EpisodeRun:
    """An episode while it runs."""

    id: str
    task: Task
    recorder: EpisodeRecorder
    tokens: EpisodeTokens = field(init=False)
    agent: Any = None
    """The agent, graph, swarm or function that `build` returned; None: not built yet."""
    main_agent: Any = None
    """The agent that `build` returned, or named beside a graph, a swarm or a function; None: neither."""
    session: Session | None = None
    """The session of an agent over HTTP; None for other agents."""
    agents: list[Any] = field(default_factory=list)
    """Agents that made turns, in the order of their first turns, without agents inside tools."""

    def __post_init__(self) -> None:
        self.tokens = EpisodeTokens(self.id, self.recorder, time=self.recorder.template_time)
        self.recorder.on_agent = self._add_agent

    def _add_agent(self, agent: Any) -> None:
        record_tools(agent)
        close_with(self.recorder.opened, agent)
        if not within.get() and all(agent is not known for known in self.agents):
            self.agents.append(agent)

    async def run(
        self,
        build: Callable[..., Any],
        model: SGLangModel,
        limits: Limits,
        rerun_tools: frozenset[str],
        gateways: Gateways,
        models: Mapping[str, Model] | None = None,
    ) -> AgentOutcome:
        """Build the agent and run it. Must run in its own task: context variables are set here.

        `models` are the other models of the run; None, in a replay: they have only their recorded answers.
        """
        await self.recorder.wait_for_slot()
        current_tool_recorder.set(ToolRecorder(self.recorder, limits.tool_timeout, rerun_tools))
        with model.episode(self.tokens):
            try:
                others = OtherModels.of_episode(models, self.id, self.recorder)
                agent = build(self.task, model, models=others) if takes_models(build) else build(self.task, model)
                agent, self.main_agent = _check_built(await agent if inspect.isawaitable(agent) else agent)
                if isinstance(agent, RemoteAgent):
                    agent = partial(self._run_remote, agent, model, gateways)
                self.agent = agent
                for one in (agent, self.main_agent, *name_nodes(agent)):
                    close_with(self.recorder.opened, one)
                if not (hasattr(agent, "invoke_async") and hasattr(agent, "messages")):
                    self.recorder.agent_limits = MultiAgentLimits(limits.max_turns, limits.max_tool_calls)
                elif limits.max_tool_calls is not None:
                    agent.hooks.add_hook(ToolLimiter(max_tool_calls=limits.max_tool_calls))
            except (Exception, SystemExit) as error:
                return outcome_of(error, limits, self.tokens)
            return await run_agent(agent, self.task, limits, self.tokens)

    async def _run_remote(self, agent: RemoteAgent, model: SGLangModel, gateways: Gateways) -> str:
        if agent.on_resume is OnResume.RESTART:
            self.recorder.restart()
        async with gateways.session(agent, model, self.tokens) as (self.session, gateway):
            text = await agent.run(self.session, gateway.base_url(self.session), gateway.socket)
            if self.session.truncated:
                raise MaxTokensReachedException("a limit of tokens cut off the agent's last reply")
            return text

    @property
    def tree(self) -> TokenTree:
        """The turns, without those committed too late to be recorded, for example by a thread left running."""
        tree, recorded = self.tokens.tree, self.recorder.turns
        if len(tree) <= recorded:
            return tree
        whole = tree.to_dict()
        return TokenTree.from_dict({**whole, "turns": whole["turns"][:recorded]})

    def main_turn(self, answer: Any) -> int:
        """Return the id of a turn of the main branch, given what was answered (None: nothing); -1: none is certain."""
        return main_turn(self.tokens, self.agents, self.main_agent, answer)

    @property
    def last_text(self) -> str:
        """Text of the last reply of the main agent, or of all agents if none is known; "" if there is none."""
        for message in reversed(getattr(self.main_agent, "messages", self.messages)):
            if isinstance(message, dict) and message.get("role") == "assistant":
                texts = (block.get("text") for block in message.get("content") or () if isinstance(block, dict))
                return "\n".join(text for text in texts if isinstance(text, str)).strip()
        return ""

    @property
    def messages(self) -> list[Any]:
        """The agent's messages; for a graph, a swarm or a function, those of all its agents, concatenated."""
        if self.session is not None:
            return self.session.messages
        if hasattr(self.agent, "messages"):
            return list(self.agent.messages)
        return [message for agent in self.agents for message in getattr(agent, "messages", ())]


def _check_built(built: Any) -> tuple[Any, Any]:
    """Return what `build` made, and its main agent (None: unknown); ConfigurationError if it made nothing that runs."""
    if isinstance(built, tuple) and len(built) == 2 and hasattr(built[1], "messages"):
        return _check_built(built[0])[0], built[1]
    if built is None:
        raise ConfigurationError("build(task, model) must return an agent, got None: does it end with `return agent`?")
    if isinstance(built, type) or not (
        hasattr(built, "invoke_async") or callable(built) or isinstance(built, RemoteAgent)
    ):
        raise ConfigurationError(
            "build(task, model) must return a Strands agent, a graph, a swarm, a function without arguments, one of "
            f"these and its main agent, an AgentProcess or a RemoteAgent, got {built!r:.100}"
        )
    return built, built if hasattr(built, "messages") else None
