"""run_agent: every way an agent can end gives an outcome."""

from __future__ import annotations

import asyncio
import builtins
from pathlib import Path
from typing import Any

import pytest
from strands.hooks import AfterModelCallEvent, AfterToolsEvent, BeforeToolCallEvent
from strands.multiagent import GraphBuilder, Swarm
from strands.types.exceptions import EventLoopException

from strands_sglang import SGLangModel, ToolLimiter
from strands_sglang.engine import FinishReason
from strands_sglang.errors import (
    ClientClosedError,
    ConfigurationError,
    ContextOverflowError,
    CountMismatchError,
    EngineUnavailableError,
    RequestRejectedError,
    ToolUnavailableError,
)
from strands_sglang.runs import EndReason, Episode, Limits, Task
from strands_sglang.runs.agent_runner import failure_of
from strands_sglang.runs.end_reason import LimitReachedError
from support.provider.agents import ask
from support.rollout.agent_kinds import plain
from support.rollout.scripts import (
    PromptEngine,
    Script,
    assert_proved,
    last_step,
    run,
    steps,
)
from support.scripted_engine import Answer, Reply, assert_exact, tool_call

TASK = Task("go", id="t")
Group: Any = getattr(builtins, "ExceptionGroup", None)


async def run_episode(script: Script, build: Any = None, limits: Limits | None = None, **options: Any) -> Episode:
    """Run an agent and return its episode; checks that its tokens are exact."""
    engine = PromptEngine(script)

    def plain_agent(task: Task, model: SGLangModel) -> Any:
        return plain(model)

    done = await run(build or plain_agent, [TASK], engine, limits=limits, **options)
    assert_exact(engine, trees=[done[0].tree])
    return done[0]


def hooked(kind: Any, hook: Any, **settings: Any) -> Any:
    def build(task: Task, model: SGLangModel) -> Any:
        agent = plain(model, **settings)
        agent.hooks.add_callback(kind, hook)
        return agent

    return build


def failing(error: Exception, after: int = 1) -> Script:

    def script(prompt: str, before: int) -> Answer:
        return error if last_step(prompt) == after else tool_call("step", number=last_step(prompt) + 1)

    return script


@pytest.mark.parametrize(
    ("error", "ended", "kind"),
    [
        (EngineUnavailableError("away"), EndReason.ENGINE_ERROR, "EngineUnavailableError"),
        (RequestRejectedError("no"), EndReason.ENGINE_ERROR, "RequestRejectedError"),
        (CountMismatchError("a lie"), EndReason.ENGINE_ERROR, "CountMismatchError"),
        (ClientClosedError("closed"), EndReason.ENGINE_ERROR, "ClientClosedError"),
        (ContextOverflowError("too long", limit_tokens=10), EndReason.CONTEXT_LENGTH, None),
        (ConfigurationError("wrong"), EndReason.AGENT_ERROR, "ConfigurationError"),
        (RuntimeError("not of this package"), EndReason.AGENT_ERROR, "RuntimeError"),
    ],
    ids=lambda one: type(one).__name__,
)
async def test_engine_failures(error: Exception, ended: EndReason, kind: str | None) -> None:
    for after, turns in ((0, 0), (1, 1), (9, 9)):
        episode = await run_episode(failing(error, after))
        assert (episode.end_reason, len(episode.tree)) == (ended, turns)
        assert (None if episode.failure is None else episode.failure.kind) == kind
        if episode.failure is not None:
            assert episode.failure.message == str(error) and "in generate" in episode.failure.where


async def test_answers_and_limits() -> None:
    assert (await run_episode(steps(3))).end_reason is EndReason.ANSWERED
    stop = await run_episode(lambda prompt, before: Reply("done", ended=False, detail="done"))
    assert stop.end_reason is EndReason.ANSWERED and stop.text == "done"

    def endless(prompt: str, before: int) -> Answer:
        return tool_call("step", number=last_step(prompt) + 1)

    turns = await run_episode(endless, limits=Limits(max_turns=10))
    assert (turns.end_reason, turns.metrics.turns, turns.metrics.tool_calls) == (EndReason.TURN_LIMIT, 10, 10)
    for limit in (7, 8, 9, 16):
        assert (await run_episode(endless, limits=Limits(max_turns=limit))).metrics.turns == limit
    tools = await run_episode(endless, limits=Limits(max_tool_calls=10))
    assert (tools.end_reason, tools.metrics.turns, tools.metrics.tool_calls) == (EndReason.TOOL_LIMIT, 10, 10)
    limited = await run_episode(endless, lambda task, model: plain(model, hooks=[ToolLimiter(max_tool_iters=3)]))
    assert (limited.end_reason, limited.metrics.turns) == (EndReason.TOOL_LIMIT, 3)

    cut = await run_episode(lambda prompt, before: "word " * 50, limits=Limits(max_new_tokens=20))
    assert (cut.end_reason, cut.metrics.sampled_tokens) == (EndReason.TURN_TRUNCATED, 20)
    tokens = await run_episode(endless, limits=Limits(max_episode_tokens=100))
    assert (tokens.end_reason, tokens.metrics.sampled_tokens) == (EndReason.TOKEN_LIMIT, 100)
    context = await run_episode(endless, limits=Limits(max_context_tokens=400))
    assert context.end_reason is EndReason.CONTEXT_LENGTH
    assert max(turn.end for turn in context.tree) <= 400


async def test_malformed_calls() -> None:
    def malformed(prompt: str, before: int) -> Answer:
        return '<tool_call>\n{"name": "step", "arguments": {"number": }\n</tool_call>'

    answered = await run_episode(malformed, limits=Limits(max_turns=12))
    assert (answered.end_reason, answered.metrics.failed_calls) == (EndReason.TURN_LIMIT, 12)
    ended = await run_episode(malformed, on_failed_call="end")
    assert (ended.end_reason, ended.metrics.failed_calls, len(ended.tree)) == (EndReason.FAILED_CALL, 1, 1)
    junk = await run_episode(lambda prompt, before: Reply(ids=[], ended=False, finish=FinishReason.STOP))
    assert junk.end_reason in (EndReason.ANSWERED, EndReason.AGENT_ERROR) and len(junk.tree) == 1
    nothing = await run_episode(lambda prompt, before: tool_call("unknown_tool", a=1), limits=Limits(max_turns=3))
    assert nothing.end_reason is EndReason.TURN_LIMIT and nothing.metrics.tool_errors == 3
    aborted = await run_episode(
        lambda prompt, before: Reply("part", ended=False, finish=FinishReason.ABORT, detail="away"), on_abort="return"
    )
    assert aborted.end_reason is EndReason.ENGINE_ERROR and aborted.failure is not None
    assert [turn.rejected for turn in aborted.tree] == [True]


async def test_agent_that_stops_itself() -> None:
    def cancel(event: AfterToolsEvent) -> None:
        event.agent.cancel()

    assert (await run_episode(steps(3), hooked(AfterToolsEvent, cancel))).end_reason is EndReason.STOPPED

    def stop(event: BeforeToolCallEvent) -> None:
        event.invocation_state["request_state"] = {"stop_event_loop": True}

    episode = await run_episode(steps(3), hooked(BeforeToolCallEvent, stop))
    assert (episode.end_reason, len(episode.tree)) == (EndReason.STOPPED, 1)
    interrupted = await run_episode(
        lambda prompt, before: tool_call("ask", question="may I?"), lambda task, model: plain(model, tools=[ask])
    )
    assert interrupted.end_reason is EndReason.STOPPED and len(interrupted.tree) == 1


class UnprintableError(Exception):
    """An error whose message cannot be read."""

    def __str__(self) -> str:
        raise ValueError("no message")


class FallError(BaseException):
    """Something that is not even an Exception."""


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"), SystemExit(2), asyncio.CancelledError("mine"), UnprintableError(), FallError("down"),
        KeyError("\udcff"),
    ],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
@pytest.mark.parametrize("where", ["build", "hook", "work", "async build"])
async def test_agent_code_that_raises(error: BaseException, where: str, tmp_path: Path) -> None:
    def raises(*_: Any) -> Any:
        raise error

    def late(event: AfterModelCallEvent) -> None:
        if event.stop_response is not None and last_step(str(event.agent.messages)) == 0:
            raise error

    def working(task: Task, model: SGLangModel) -> Any:
        agent = plain(model)

        async def work() -> None:
            await agent.invoke_async("go")
            raise error

        return work

    async def slowly(task: Task, model: SGLangModel) -> Any:
        await asyncio.sleep(0)
        raise error

    build = {"build": raises, "hook": hooked(AfterModelCallEvent, late), "work": working, "async build": slowly}[where]
    engine = PromptEngine(steps(1))
    done = await run(build, [TASK], engine, tmp_path)
    episode = done[0]
    assert episode.end_reason is EndReason.AGENT_ERROR and episode.failure is not None
    # The framework reads the message of an error of a hook.
    assert episode.failure.kind == type(error).__name__ or (where, type(error)) == ("hook", UnprintableError)
    assert len(episode.tree) == {"build": 0, "async build": 0, "hook": 1, "work": 2}[where]
    assert_exact(engine, trees=[episode.tree])
    assert_proved(tmp_path)
    again = await run(build, [TASK], engine, tmp_path)
    assert again[0].failure is not None and again[0].failure.kind == episode.failure.kind
    assert again.metrics.restored == 0  # failed episodes are resumed


async def test_build_may_return_a_function() -> None:
    assert (await run_episode(steps(1), lambda task, model: lambda: 42)).text == "42"
    assert (await run_episode(steps(1), lambda task, model: lambda: None)).text == ""


@pytest.mark.skipif(Group is None, reason="Python 3.10 has no exception groups")
@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (LimitReachedError("enough", EndReason.TURN_LIMIT), EndReason.TURN_LIMIT),
        (EngineUnavailableError("away"), EndReason.ENGINE_ERROR),
        (ToolUnavailableError("away"), EndReason.TOOL_UNAVAILABLE),
        (RuntimeError("a mistake"), EndReason.AGENT_ERROR),
    ],
)
async def test_error_in_a_group_of_tasks_is_that_of_its_task(error: Exception, ended: EndReason) -> None:
    """Also beside a limit that another task reached, and in a group of a group."""

    async def work() -> None:
        groups = [Group("a task", [EventLoopException(error)])]
        raise Group("two tasks", [LimitReachedError("enough", EndReason.TURN_LIMIT), *groups])

    episode = await run_episode(steps(1), lambda task, model: work)
    assert episode.end_reason is ended
    kind = None if episode.failure is None else episode.failure.kind
    assert kind == (type(error).__name__ if ended.failed else None)


async def test_graphs_and_swarms() -> None:
    def graph(task: Task, model: SGLangModel) -> Any:
        builder = GraphBuilder()
        first = builder.add_node(plain(model, name="a", system_prompt="I am a."), "a")
        second = builder.add_node(plain(model, name="b", system_prompt="I am b."), "b")
        builder.add_edge(first, second)
        builder.set_entry_point("a")
        return builder.set_max_node_executions(5).build()

    def named(prompt: str, before: int) -> Answer:
        return steps(2, "b is done" if "I am b." in prompt else "a is done")(prompt, before)

    episode = await run_episode(named, graph)
    assert (episode.end_reason, episode.text, len(episode.tree)) == (EndReason.ANSWERED, "b is done", 6)
    assert len(episode.trajectories) == 2

    def swarm(task: Task, model: SGLangModel) -> Any:
        return Swarm([plain(model, name="a", system_prompt="I am a.")])

    assert (await run_episode(named, swarm)).text == "a is done"
    broken = await run_episode(failing(EngineUnavailableError("away")), graph)
    assert broken.end_reason in (EndReason.ENGINE_ERROR, EndReason.AGENT_ERROR) and len(broken.tree) == 1


def test_failure_has_kind_message_and_traceback() -> None:
    try:
        raise UnprintableError
    except UnprintableError as error:
        failure = failure_of(error)
    assert failure.kind == "UnprintableError"
    assert "unprintable" in failure.message and "test_agent_runner" in failure.where
    with pytest.raises(RecursionError) as deep:
        (lambda f: f(f))(lambda f: f(f))
    assert len(failure_of(deep.value).where) <= 4000


@pytest.mark.parametrize(
    ("built", "message"),
    [
        (None, "got None: does it end with `return agent`"),
        ("an agent", "got 'an agent'"),
        (dict, "got <class 'dict'>"),
        (3, "got 3"),
    ],
)
async def test_invalid_return_value_of_build_is_agent_error(built: Any, message: str) -> None:
    (episode,) = await run(lambda task, model: built, ["question"], PromptEngine(steps(1)))
    assert episode.end_reason is EndReason.AGENT_ERROR and episode.failure is not None
    assert episode.failure.kind == "ConfigurationError" and message in episode.failure.message


async def test_truncated_turn_keeps_its_text() -> None:
    engine = PromptEngine(lambda prompt, before: "one two three four five six seven eight nine ten")
    (episode,) = await run(lambda task, model: plain(model), ["question"], engine, limits=Limits(max_new_tokens=4))
    assert episode.end_reason is EndReason.TURN_TRUNCATED
    assert episode.text and "one two three four five".startswith(episode.text)
