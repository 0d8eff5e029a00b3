"""The main branch is that of the agent whose answer is rewarded, whoever ends last; if nobody can tell, none is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from strands import Agent
from strands.hooks import AfterModelCallEvent
from strands.multiagent import GraphBuilder, Swarm

from strands_sglang import Limits, SGLangModel, Task
from strands_sglang.engine import Generation
from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.reader import Ledger
from strands_sglang.runs import EndReason, Episode
from strands_sglang.trainers.exports import padded_batch
from strands_sglang.trainers.rows import Branches, branches_of, plain_rows, rows
from support.examples import size
from support.rollout.agent_kinds import plain
from support.rollout.scripts import PromptEngine, assert_proved, run
from support.scripted_engine import Answer, tool_call

NAMES = ("solver", "critic", "third")


class LateEngine(PromptEngine):
    """An engine that takes a random time for each answer, so that any agent may end last."""

    async def generate(self, input_ids: Any, sampling_params: Any = None, **asked: Any) -> Generation:
        await asyncio.sleep(random.uniform(0.0, 0.01))
        return await super().generate(input_ids, sampling_params, **asked)


def agent(model: SGLangModel, name: str, **settings: Any) -> Agent:
    return plain(model, name=name, system_prompt=f"You are {name}.", **settings)


def script(prompt: str, before: int) -> Answer:
    """Every agent takes up to two steps; all agents answer in the same words."""
    if "handoff_to_agent" in prompt and "You are third." not in prompt and prompt.count("<tool_response>") == 1:
        after = NAMES[next(at for at, name in enumerate(NAMES) if f"You are {name}." in prompt) + 1]
        return tool_call("handoff_to_agent", agent_name=after, message="go on")
    if "You are boss." in prompt and "<tool_response>" not in prompt:
        return "\n".join(tool_call(name, input="help") for name in NAMES)
    if "<tool_response>" not in prompt:
        return tool_call("step", number=len(prompt) % 2)
    return "The answer is 42."


def function(task: Task, model: SGLangModel) -> Any:
    async def both() -> Any:
        answers = [agent(model, name).invoke_async(str(task.prompt)) for name in NAMES]
        return (await asyncio.gather(*answers))[0]

    return both


def in_turn(task: Task, model: SGLangModel) -> Any:
    def work() -> Any:
        answers = [agent(model, name)(str(task.prompt)) for name in NAMES]
        return answers[0].message

    return work


def named(task: Task, model: SGLangModel) -> Any:
    solver = agent(model, "solver")

    async def work() -> str:
        texts = await asyncio.gather(*(one.invoke_async(str(task.prompt)) for one in (solver, agent(model, "critic"))))
        return " ".join(map(str, texts))

    return work, solver


def with_tools(task: Task, model: SGLangModel) -> Any:
    return agent(model, "boss", tools=[agent(model, name).as_tool() for name in NAMES])


def graph_of(model: SGLangModel, *edges: str, names: tuple[str, ...] = NAMES) -> Any:
    builder = GraphBuilder()
    for name in names:
        builder.add_node(agent(model, name), name)
    for edge in edges:
        start, end = edge.split(">")
        builder.add_edge(start, end)
    builder.set_entry_point(names[0])
    return builder.set_max_node_executions(9).build()


def graph(task: Task, model: SGLangModel) -> Any:
    return graph_of(model, "critic>solver", "critic>third", "third>solver", names=("critic", "third", "solver"))


def graph_in_function(task: Task, model: SGLangModel) -> Any:
    async def work() -> Any:
        whole, other = graph(task, model), agent(model, "fourth")
        return (await asyncio.gather(whole.invoke_async(str(task.prompt)), other.invoke_async(str(task.prompt))))[0]

    return work


def swarm(task: Task, model: SGLangModel) -> Any:
    return Swarm([agent(model, name) for name in NAMES], execution_timeout=60)


def two_ends(task: Task, model: SGLangModel) -> Any:
    return graph_of(model, "solver>critic", "solver>third")


def two_ends_named(task: Task, model: SGLangModel) -> Any:
    whole = two_ends(task, model)
    return whole, whole.nodes["critic"].executor


def same_text(task: Task, model: SGLangModel) -> Any:
    async def work() -> str:
        answers = [agent(model, name).invoke_async(str(task.prompt)) for name in NAMES]
        return str((await asyncio.gather(*answers))[0])

    return work


SHAPES: dict[str, tuple[Callable[..., Any], str | None]] = {
    "function": (function, "solver"),
    "in turn": (in_turn, "solver"),
    "named": (named, "solver"),
    "tools": (with_tools, "boss"),
    "graph": (graph, "solver"),
    "graph in a function": (graph_in_function, "solver"),
    "swarm": (swarm, "third"),
    "graph with two ends": (two_ends, None),
    "graph with two ends, named": (two_ends_named, "critic"),
    "text that all agents answer": (same_text, None),
}
"""What `build` returns, and the agent whose answer is rewarded; None: nobody can know."""


def main_agents(episodes: Any) -> list[str | None]:
    """Return the agent of the main branch of each episode; None: it has none."""
    return [next((one.agent for one in episode.trajectories if one.main), None) for episode in episodes]


@pytest.mark.parametrize("shape", SHAPES)
async def test_rewarded_agent_has_the_main_branch(shape: str, tmp_path: Path) -> None:
    build, rewarded = SHAPES[shape]
    count = size(6, 200)
    tasks = [Task(f"go {number}", id=str(number)) for number in range(count // 2)]
    seen = []

    def reward(episode: Episode) -> float:
        seen.extend(main_agents([episode]))
        return 1.0

    done = await run(build, tasks, LateEngine(script), tmp_path, samples_per_task=2, reward=reward)
    assert {one.end_reason for one in done} == {EndReason.ANSWERED} and "42" in done[0].text
    assert all(len(one.trajectories) > 1 for one in done)
    assert main_agents(done) == [rewarded] * count == seen
    recorded = [record.trajectories() for record in Ledger(tmp_path).episodes()]
    assert [[one.agent for one in flats if one.main] for flats in recorded] == [[rewarded] if rewarded else []] * count
    assert_proved(tmp_path)
    for source in (list(done), tmp_path):
        if rewarded is not None:
            batch = padded_batch(source, pad_token_id=0, branches=Branches.MAIN)
            assert set(batch.agents) == {rewarded} and batch["main"].all() and len(batch.agents) == count
        else:
            with pytest.raises(ConfigurationError, match=r"main branch of episode .* is unknown.*return run, solver"):
                padded_batch(source, pad_token_id=0, branches=Branches.MAIN)
            assert not padded_batch(source, pad_token_id=0)["main"].any()


async def one(build: Callable[..., Any], script: Any = script, **settings: Any) -> Episode:
    (episode,) = await run(build, [Task("go", id="t")], PromptEngine(script), **settings)
    assert episode.failure is None, episode.failure
    return episode


@pytest.mark.parametrize(("critic", "rewarded"), [("I find fault.", "solver"), ("I solve.", None)])
async def test_text_that_one_agent_answers_names_it(critic: str, rewarded: str | None) -> None:
    """Whether the solver still had the last word then, or was thanked; two agents that said the text are none."""

    def build(task: Task, model: SGLangModel) -> Any:
        async def work() -> str:
            solver = agent(model, "solver", tools=[])
            first = str(await solver.invoke_async("solve"))
            await solver.invoke_async("thanks") if task.data["thanks"] else None
            await agent(model, "critic", tools=[]).invoke_async("check")
            return first.strip()

        return work

    def own_words(prompt: str, before: int) -> Answer:
        return critic if "You are critic." in prompt else "You're welcome." if "thanks" in prompt else "I solve."

    tasks = [Task("go", id=f"{thanks}", data={"thanks": thanks}) for thanks in (False, True)]
    done = await run(build, tasks, PromptEngine(own_words))
    assert main_agents(done) == [rewarded] * 2
    if rewarded is None:
        with pytest.raises(ConfigurationError, match="main branch"):
            rows(done[0])


async def test_result_at_a_limit_of_turns_names_its_agent() -> None:
    """The message of such a result is that of a tool, not a reply."""

    def build(task: Task, model: SGLangModel) -> Any:
        async def work() -> Any:
            limited = await agent(model, "solver").invoke_async(str(task.prompt), limits={"turns": 1})
            await agent(model, "critic").invoke_async(str(task.prompt))
            return limited

        return work

    assert main_agents([await one(build)]) == ["solver"]


@pytest.mark.parametrize("is_named", [False, True])
async def test_agent_that_starts_again(is_named: bool) -> None:
    """The same agent answers twice in the same words: text does not tell which answer is meant, and time does not."""

    def build(task: Task, model: SGLangModel) -> Any:
        only = agent(model, "only")

        async def work() -> str:
            first = str(await only.invoke_async("solve it"))
            only.messages.clear()
            await only.invoke_async("find fault")
            return first

        return (work, only) if is_named else work

    episode = await one(build)
    assert [flat.main for flat in episode.trajectories] == [False, is_named]


@pytest.mark.parametrize("answer", ["It took too long: 42.", "I find fault."])
async def test_agent_without_a_kept_reply_leaves_the_main_branch_open(answer: str) -> None:
    """The solver's hook discards its reply, and only the critic has a branch: the main one if it gave the answer."""

    def fail(event: AfterModelCallEvent) -> None:
        raise ValueError("no")

    def build(task: Task, model: SGLangModel) -> Any:
        async def work() -> str:
            with pytest.raises(ValueError, match="no"):
                await agent(model, "solver", tools=[], hooks=[fail]).invoke_async("solve it")
            await agent(model, "critic", tools=[]).invoke_async("find fault")
            return answer

        return work

    def own_words(prompt: str, before: int) -> Answer:
        return "I solve." if "You are solver." in prompt else "I find fault."

    assert main_agents([await one(build, own_words)]) == ["critic" if answer == "I find fault." else None]


async def test_sub_agent_that_is_not_named_never_has_the_main_branch() -> None:
    """The solver is named, and made no turn: the branch of the critic is not the main one, although it is the only."""

    def build(task: Task, model: SGLangModel) -> Any:
        async def work() -> str:
            return str(await agent(model, "critic").invoke_async(str(task.prompt)))

        return work, agent(model, "solver")

    episode = await one(build)
    assert main_agents([episode]) == [None]
    with pytest.raises(ConfigurationError, match="main branch"):
        rows(episode)


@pytest.mark.parametrize("is_named", [False, True])
async def test_episode_that_ends_before_the_function_returns(is_named: bool) -> None:
    """Without a name, nothing was answered and nothing is trained; with one, the main branch is known all the same."""

    def build(task: Task, model: SGLangModel) -> Any:
        work, solver = named(task, model)
        return (work, solver) if is_named else work

    episode = await one(build, limits=Limits(max_turns=3), reward=lambda episode: 0.0)
    assert episode.end_reason is EndReason.TURN_LIMIT
    assert main_agents([episode]) == ["solver" if is_named else None]
    assert [bool(sum(row.loss_mask)) for row in plain_rows(episode, pad_id=0, scored=True)] == [is_named]
    assert [one.agent for one in branches_of([episode], branches=Branches.MAIN)] == ["solver"] * is_named


async def test_delegated_answer_belongs_to_the_agent_of_the_task() -> None:
    def build(task: Task, model: SGLangModel) -> Any:
        return agent(model, "boss", tools=[agent(model, name).as_tool(delegate=name == "solver") for name in NAMES])

    def delegating(prompt: str, before: int) -> Answer:
        return tool_call("solver", input="go") if "You are boss." in prompt else "The answer is 42."

    episode = await one(build, delegating)
    assert "42" in episode.text and main_agents([episode]) == ["boss"]


async def test_main_agent_is_an_agent() -> None:
    (episode,) = await run(lambda task, model: (lambda: "x", "solver"), ["go"], PromptEngine(script))
    assert episode.end_reason is EndReason.AGENT_ERROR and episode.failure is not None
    assert "one of these and its main agent" in episode.failure.message
