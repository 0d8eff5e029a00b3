"""However an agent ends, that is a value."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from strands import tool
from strands.hooks import AfterModelCallEvent, AfterToolsEvent, BeforeModelCallEvent, BeforeToolCallEvent
from strands.multiagent import GraphBuilder, Swarm

from provider.agents import ask
from rollout.kinds import plain
from rollout.scripts import (
    PromptEngine,
    Script,
    assert_proved,
    crashed,
    last_step,
    record_of,
    run,
    steps,
    summaries,
)
from scripted_engine import Answer, Reply, assert_exact, tool_call
from strands_sglang import SGLangModel, ToolLimiter
from strands_sglang.engine import FinishReason
from strands_sglang.errors import (
    ClientClosedError,
    ConfigurationError,
    ContextOverflowError,
    CountMismatchError,
    EngineUnavailableError,
    RequestRejectedError,
)
from strands_sglang.ledger.event import ids_digest
from strands_sglang.rollout import Ended, Episode, Limits, Task
from strands_sglang.rollout.drive import failure_of

TASK = Task("go", id="t")


async def played(script: Script, build: Any = None, limits: Limits | None = None, **options: Any) -> Episode:
    """Return the episode of an agent; with a check that its tokens are exact and that the ledger says the same."""
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
    """Return a script whose engine fails behind so many steps."""

    def script(prompt: str, before: int) -> Answer:
        return error if last_step(prompt) == after else tool_call("step", number=last_step(prompt) + 1)

    return script


@pytest.mark.parametrize(
    ("error", "ended", "kind"),
    [
        (EngineUnavailableError("away"), Ended.ENGINE, "EngineUnavailableError"),
        (RequestRejectedError("no"), Ended.ENGINE, "RequestRejectedError"),
        (CountMismatchError("a lie"), Ended.ENGINE, "CountMismatchError"),
        (ClientClosedError("closed"), Ended.ENGINE, "ClientClosedError"),
        (ContextOverflowError("too long", limit_tokens=10), Ended.CONTEXT, None),
        (ConfigurationError("wrong"), Ended.AGENT, "ConfigurationError"),
        (RuntimeError("of someone else's"), Ended.AGENT, "RuntimeError"),
    ],
    ids=lambda one: type(one).__name__,
)
async def test_an_engine_that_fails(error: Exception, ended: Ended, kind: str | None) -> None:
    for after, turns in ((0, 0), (1, 1), (9, 9)):
        episode = await played(failing(error, after))
        assert (episode.ended, len(episode.tree)) == (ended, turns)
        assert (None if episode.failure is None else episode.failure.kind) == kind
        if episode.failure is not None:
            assert episode.failure.message == str(error) and "in generate" in episode.failure.where


async def test_answers_and_budgets() -> None:
    assert (await played(steps(3))).ended is Ended.ANSWERED
    stop = await played(lambda prompt, before: Reply("done", ended=False, detail="done"))
    assert stop.ended is Ended.ANSWERED and stop.text == "done"

    def endless(prompt: str, before: int) -> Answer:
        return tool_call("step", number=last_step(prompt) + 1)

    turns = await played(endless, limits=Limits(turns=10))
    assert (turns.ended, turns.metrics.turns, turns.metrics.tool_calls) == (Ended.TURN_LIMIT, 10, 10)
    for limit in (7, 8, 9, 16):
        assert (await played(endless, limits=Limits(turns=limit))).metrics.turns == limit
    tools = await played(endless, limits=Limits(tool_calls=10))
    assert (tools.ended, tools.metrics.turns, tools.metrics.tool_calls) == (Ended.TOOL_LIMIT, 10, 10)
    limited = await played(endless, lambda task, model: plain(model, hooks=[ToolLimiter(max_tool_iters=3)]))
    assert (limited.ended, limited.metrics.turns) == (Ended.TOOL_LIMIT, 3)

    cut = await played(lambda prompt, before: "word " * 50, limits=Limits(tokens_per_turn=20))
    assert (cut.ended, cut.metrics.sampled_tokens) == (Ended.TURN_CUT, 20)
    tokens = await played(endless, limits=Limits(tokens_per_episode=100))
    assert (tokens.ended, tokens.metrics.sampled_tokens) == (Ended.TOKEN_LIMIT, 100)
    context = await played(endless, limits=Limits(context=400))
    assert context.ended is Ended.CONTEXT
    assert max(turn.end for turn in context.tree) <= 400


async def test_malformed_calls() -> None:
    def malformed(prompt: str, before: int) -> Answer:
        return '<tool_call>\n{"name": "step", "arguments": {"number": }\n</tool_call>'

    told = await played(malformed, limits=Limits(turns=12))
    assert (told.ended, told.metrics.failed_calls) == (Ended.TURN_LIMIT, 12)
    ended = await played(malformed, on_failed_call="end")
    assert (ended.ended, ended.metrics.failed_calls, len(ended.tree)) == (Ended.FAILED_CALL, 1, 1)
    junk = await played(lambda prompt, before: Reply(ids=[], ended=False, finish=FinishReason.STOP))
    assert junk.ended in (Ended.ANSWERED, Ended.AGENT) and len(junk.tree) == 1
    nothing = await played(lambda prompt, before: tool_call("unknown_tool", a=1), limits=Limits(turns=3))
    assert nothing.ended is Ended.TURN_LIMIT and nothing.metrics.tool_errors == 3
    aborted = await played(
        lambda prompt, before: Reply("part", ended=False, finish=FinishReason.ABORT, detail="away"), on_abort="return"
    )
    assert aborted.ended is Ended.ENGINE and aborted.failure is not None
    assert [turn.rejected for turn in aborted.tree] == [True]


async def test_an_agent_that_stops_itself() -> None:
    def cancel(event: AfterToolsEvent) -> None:
        event.agent.cancel()

    assert (await played(steps(3), hooked(AfterToolsEvent, cancel))).ended is Ended.STOPPED

    def stop(event: BeforeToolCallEvent) -> None:
        event.invocation_state["request_state"] = {"stop_event_loop": True}

    episode = await played(steps(3), hooked(BeforeToolCallEvent, stop))
    assert (episode.ended, len(episode.tree)) == (Ended.STOPPED, 1)
    interrupted = await played(
        lambda prompt, before: tool_call("ask", question="may I?"), lambda task, model: plain(model, tools=[ask])
    )
    assert interrupted.ended is Ended.STOPPED and len(interrupted.tree) == 1


class SilentError(Exception):
    """An error without words."""

    def __str__(self) -> str:
        raise ValueError("no words")


class FallError(BaseException):
    """Something that is not even an Exception."""


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        SystemExit(2),
        asyncio.CancelledError("mine"),
        SilentError(),
        FallError("down"),
        KeyError("\udcff"),
    ],
    ids=lambda one: type(one).__name__,
)
@pytest.mark.parametrize("where", ["build", "hook", "work", "async build"])
async def test_code_of_the_agent_s_that_raises(error: BaseException, where: str, tmp_path: Path) -> None:
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
    assert episode.ended is Ended.AGENT and episode.failure is not None
    # The framework itself wants the words of an error of a hook's.
    assert episode.failure.kind == type(error).__name__ or (where, type(error)) == ("hook", SilentError)
    assert len(episode.tree) == {"build": 0, "async build": 0, "hook": 1, "work": 2}[where]
    assert_exact(engine, trees=[episode.tree])
    assert_proved(tmp_path)
    again = await run(build, [TASK], engine, tmp_path)
    assert again[0].failure is not None and again[0].failure.kind == episode.failure.kind
    assert again.metrics.restored == 0  # what failed is taken up again


async def test_what_is_no_agent() -> None:
    for nonsense in (None, 3, "agent", object()):
        episode = await played(steps(1), lambda task, model, nonsense=nonsense: nonsense)
        assert episode.ended is Ended.AGENT and episode.failure is not None and "Error" in episode.failure.kind
    assert (await played(steps(1), lambda task, model: lambda: 42)).text == "42"
    assert (await played(steps(1), lambda task, model: lambda: None)).text == ""


async def test_graphs_and_swarms_are_driven_as_they_are() -> None:
    def graph(task: Task, model: SGLangModel) -> Any:
        builder = GraphBuilder()
        first = builder.add_node(plain(model, name="a", system_prompt="I am a."), "a")
        second = builder.add_node(plain(model, name="b", system_prompt="I am b."), "b")
        builder.add_edge(first, second)
        builder.set_entry_point("a")
        return builder.set_max_node_executions(5).build()

    def named(prompt: str, before: int) -> Answer:
        return steps(2, "b is done" if "I am b." in prompt else "a is done")(prompt, before)

    episode = await played(named, graph)
    assert (episode.ended, episode.text, len(episode.tree)) == (Ended.ANSWERED, "b is done", 6)
    assert len(episode.trajectories) == 2

    def swarm(task: Task, model: SGLangModel) -> Any:
        return Swarm([plain(model, name="a", system_prompt="I am a.")])

    assert (await played(named, swarm)).text == "a is done"
    broken = await played(failing(EngineUnavailableError("away")), graph)
    assert broken.ended in (Ended.ENGINE, Ended.AGENT) and len(broken.tree) == 1


def test_an_error_has_its_place() -> None:
    try:
        raise SilentError
    except SilentError as error:
        failure = failure_of(error)
    assert failure.kind == "SilentError" and "words" in failure.message and "test_drive" in failure.where
    deep: Any = None
    try:
        sys.setrecursionlimit(sys.getrecursionlimit())
        deep = (lambda f: f(f))(lambda f: f(f))
    except RecursionError as error:
        assert len(failure_of(error).where) <= 4000
    assert deep is None


# --- length -----------------------------------------------------------------------------------------------------------


async def test_four_hundred_tool_turns_and_a_crash_on_the_way(tmp_path: Path) -> None:
    """One branch, exact, whatever its length: the framework alone ends behind some three hundred."""
    count = 400

    @tool
    async def go(where: str) -> str:
        """Go on.

        Args:
            where: To.
        """
        return f"step {where}"

    def script(prompt: str, before: int) -> Answer:
        done = last_step(prompt)
        return tool_call("go", where=str(done + 1)) if done < count else "the end"

    def build(task: Task, model: SGLangModel) -> Any:
        return plain(model, tools=[go])

    engine = PromptEngine(script)
    engine.tail = 60

    began = time.monotonic()
    whole = await run(build, [TASK], engine, tmp_path / "whole")
    print(f"{count} tool turns in {time.monotonic() - began:.1f} s")
    episode = whole[0]
    assert (episode.ended, episode.metrics.turns, episode.metrics.tool_calls) == (Ended.ANSWERED, count + 1, count)
    assert len(episode.trajectories) == 1
    tree = episode.tree
    sent = [tree.ids(tree[turn.id])[: turn.sampled_start] for turn in tree]
    assert engine.digests == Counter(map(ids_digest, sent))
    assert_proved(tmp_path / "whole")

    folder = crashed(tmp_path / "whole", tmp_path / "crash", 2 * 280)
    again = PromptEngine(script)
    again.tail = 60
    began = time.monotonic()
    resumed = await run(build, [TASK], again, folder)
    print(f"resumed at turn 280 in {time.monotonic() - began:.1f} s")
    assert summaries(resumed) == summaries(whole)
    assert len(again.calls) == count + 1 - 280 and resumed[0].metrics.replayed_turns == 280
    assert_proved(folder)
    assert record_of(folder).epoch == 1


async def test_hooks_of_the_whole_agent_see_one_conversation() -> None:
    """Driven a few turns at a time, an agent has the messages that one long invocation has."""
    asked: list[int] = []

    def count(event: BeforeModelCallEvent) -> None:
        asked.append(len(event.agent.messages))

    episode = await played(steps(20), hooked(BeforeModelCallEvent, count))
    assert asked == list(range(1, 42, 2))
    roles = [message["role"] for message in episode.messages]
    assert roles == ["user", "assistant"] * 21
