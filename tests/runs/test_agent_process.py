"""`rollout` runs agents that are processes: their turns, limits, failures and ends."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from strands_sglang import rollout
from strands_sglang.errors import ConfigurationError
from strands_sglang.gateway import AgentProcess, Network
from strands_sglang.proof import verify
from strands_sglang.runs import EndReason, Limits, RunResult
from support.families import tokenizer
from support.scripted_engine import Reply, ScriptedEngine, thought, tool_call

PROGRAM = str(Path(__file__).parents[1] / "support" / "gateway" / "calculator.py")
CALL = thought("Compute.", tool_call("calculator", expression="6 * 7"))


def script(prompt: str) -> str:
    """A call, and then its result as the answer."""
    if prompt.count("<tool_response>") == 0:
        return CALL
    return thought("Done.", f"It is {prompt.rpartition('<tool_response>')[2].split()[0]}.")


async def run(
    *arguments: str,
    network: Network = Network.HOST,
    limits: Limits | None = None,
    tasks: int = 1,
    answers: Any = script,
    **settings: Any,
) -> tuple[RunResult, ScriptedEngine]:
    engine = ScriptedEngine(tokenizer("qwen3"), answers)

    def build(task: Any, model: Any) -> AgentProcess:
        return AgentProcess([sys.executable, PROGRAM, task.prompt, *arguments], network=network)

    run = await rollout(
        build,
        [f"What is 6 * 7? ({number})" for number in range(tasks)],
        tokenizer=tokenizer("qwen3"),
        client=engine,
        limits=limits or Limits(),
        reward=lambda episode: float("42" in episode.text),
        **settings,
    )
    return run, engine


@pytest.mark.parametrize("network", list(Network))
async def test_an_agent_in_another_process_is_recorded_and_proved(network: Network, tmp_path: Path) -> None:
    run_result, _ = await run(network=network, directory=tmp_path, tasks=3)
    for episode in run_result:
        assert episode.end_reason is EndReason.ANSWERED, episode.failure
        assert (episode.text, episode.reward) == ("It is 42.", 1.0)
        assert [turn.join.value for turn in episode.tree] == ["root", "proved"]
        assert [message["role"] for message in episode.messages] == ["user", "assistant", "user", "assistant"]
    certificate = verify(tmp_path)
    assert certificate.proved
    assert certificate.tokens.trained == sum(len(turn.sampled) for one in run_result for turn in one.tree)


async def test_a_limit_ends_the_process() -> None:
    run_result, engine = await run(limits=Limits(max_turns=1))
    (episode,) = run_result
    assert episode.end_reason is EndReason.TURN_LIMIT
    assert len(engine.calls) == len(episode.tree) == 1


async def test_time_is_limited_and_nothing_is_left_running() -> None:
    run_result, _ = await run("--after-turn", "1", "hang", limits=Limits(episode_timeout=3))
    (episode,) = run_result
    assert episode.end_reason is EndReason.TIMEOUT


@pytest.mark.parametrize(("command", "what"), [("crash", "exit code 137"), ("fail", "something is missing")])
async def test_a_failed_process_is_an_agent_error(command: str, what: str) -> None:
    run_result, _ = await run("--after-turn", "1", command)
    (episode,) = run_result
    assert episode.end_reason is EndReason.AGENT_ERROR
    assert episode.failure is not None and what in episode.failure.message
    assert episode.reward is None


@pytest.mark.parametrize("network", list(Network))
async def test_processes_that_the_agent_leaves_are_ended(network: Network) -> None:
    run_result, _ = await run("--after-turn", "2", "spawn", network=network)
    (episode,) = run_result
    pid = int(episode.text.splitlines()[0])
    assert episode.end_reason is EndReason.ANSWERED
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_an_edited_reply_is_not_trained() -> None:
    run_result, _ = await run("--after-turn", "1", "edit")
    (episode,) = run_result
    assert episode.tree.rejected == {0}
    assert [turn.join.value for turn in episode.tree] == ["root", "forked"]


def test_a_command_is_a_list() -> None:
    with pytest.raises(ConfigurationError, match="must be a list of texts"):
        AgentProcess("echo hello")


@pytest.mark.parametrize("done", [0, 1])
async def test_a_resumed_run_answers_the_same_calls_from_its_record(done: int, tmp_path: Path) -> None:
    """The run dies in its next turn; the agent, which is started again, is not told."""
    stopped, made = asyncio.Event(), list[Any]()

    def interrupted(prompt: str) -> Reply:
        made.append(prompt)
        if len(made) <= done:
            return Reply(script(prompt))
        stopped.set()
        return Reply(hangs=True)

    first = asyncio.ensure_future(run(directory=tmp_path, answers=interrupted))
    await stopped.wait()
    first.cancel()
    await asyncio.wait({first})
    result, engine = await run(directory=tmp_path)
    (episode,) = result
    assert (len(engine.calls), len(episode.tree), episode.text) == (2 - done, 2, "It is 42.")
    certificate = verify(tmp_path)
    assert certificate.proved
    assert certificate.tokens.trained == sum(len(turn.sampled) for turn in episode.tree)
    assert certificate.tokens.rolled_back == 0


async def test_a_resumed_agent_that_asks_something_else_continues_on_the_engine(tmp_path: Path) -> None:
    stopped, made = asyncio.Event(), list[Any]()

    def interrupted(prompt: str) -> Reply:
        made.append(prompt)
        if len(made) == 1:
            return Reply(script(prompt))
        stopped.set()
        return Reply(hangs=True)

    first = asyncio.ensure_future(run(directory=tmp_path, answers=interrupted))
    await stopped.wait()
    first.cancel()
    await asyncio.wait({first})
    result, _ = await run("--after-turn", "1", "edit", directory=tmp_path, answers=script)
    assert next(iter(result)).end_reason is EndReason.ANSWERED
    assert verify(tmp_path).proved
