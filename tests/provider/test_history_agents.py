"""Row 14 of "Every way history changes": graphs, swarms, agents as tools, all on one model."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from strands import tool
from strands.multiagent import GraphBuilder, Swarm
from strands.tools.executors import SequentialToolExecutor

from strands_sglang.tokens import TurnPurpose
from support.provider.agents import acting, agent_on, ask, calculator, context, said, sampled, scripted_model
from support.scripted_engine import Reply, tool_call

pytestmark = pytest.mark.usefixtures("exact")

SUM = tool_call("calculator", expression="1+1")


async def test_row_14_a_graph_runs_its_nodes_on_one_model_and_visits_one_again() -> None:
    visits = iter(["again", "again", "stop"])

    def answer(prompt: str) -> str:
        if "I decide" in prompt:
            return next(visits)
        return "worked" if "<tool_response>" in prompt else SUM

    model, engine = scripted_model(answer, "qwen2.5")
    builder = GraphBuilder()
    decider = builder.add_node(agent_on(model, name="d", tools=[], system_prompt="I decide"), "d")
    workers = [builder.add_node(agent_on(model, name=name, system_prompt=f"I am {name}"), name) for name in "vw"]
    for worker in workers:
        builder.add_edge(decider, worker)
        builder.add_edge(worker, decider, condition=lambda state: "again" in str(state.results["d"].result))
    builder.set_entry_point("d")
    builder.reset_on_revisit(True)
    builder.set_max_node_executions(12)
    await builder.build().invoke_async("go")

    tree = model.current_episode.tree
    mine = {name: [turn for turn in tree if f"I am {name}" in engine.decode(tree.ids(turn))] for name in "vw"}
    for name, turns in mine.items():
        # Two turns a visit, run side by side with the other's, never spliced; a visit begins a branch.
        roots = [turn for turn in turns if turn.parent is None]
        assert len(turns) == 2 * len(roots) and len(roots) >= 2, name
        assert all(turn.parent in [root.id for root in roots] for turn in turns if turn.parent is not None)
    assert all(turn.caller is None for turn in tree)
    assert not any(turn.rejected for turn in tree)


async def test_row_14_a_swarm_hands_over_on_one_model() -> None:
    def answer(prompt: str) -> str:
        if "I am beta" in prompt:
            return "beta is done"
        handed = "Handing off" in prompt
        return "over to beta" if handed else tool_call("handoff_to_agent", agent_name="beta", message="please")

    model, engine = scripted_model(answer, "qwen2.5")
    agents = [agent_on(model, name=name, tools=[], system_prompt=f"I am {name}") for name in ("alpha", "beta")]
    result = await Swarm(agents).invoke_async("go")

    assert result.status.value == "completed"
    tree = model.current_episode.tree
    (beta,) = [turn for turn in tree if "I am beta" in context(turn, engine)]
    assert (beta.parent, beta.join.value) == (None, "root")
    assert "please" in context(beta, engine)
    assert len(tree.trajectories()) == 2


def boss_and(sub: dict[str, str]) -> Any:
    """Return a script: the main agent calls all sub-agents in one turn, each answers, the main agent sums up."""

    def answer(prompt: str) -> str:
        for question, reply in sub.items():
            if prompt.rstrip().endswith(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant"):
                return reply
        if "<tool_response>" in prompt:
            return "all done"
        return "\n".join(tool_call(f"helper_{number}", input=question) for number, question in enumerate(sub))

    return answer


async def test_row_14_agents_as_tools_in_parallel_are_tied_to_their_calls() -> None:
    model, engine = scripted_model(boss_and({"paint": "painted", "write": "written", "sing": "sung"}), "qwen2.5")
    helpers = [agent_on(model, name=f"helper_{number}", tools=[]).as_tool() for number in range(3)]
    main = agent_on(model, tools=helpers)
    await main.invoke_async("go")

    tree = model.current_episode.tree
    uses = [block["toolUse"] for block in main.messages[1]["content"]]
    by_question = {use["input"]["input"]: use["toolUseId"] for use in uses}
    subs = [turn for turn in tree if turn.caller is not None]
    assert len(subs) == 3 and all(turn.parent is None for turn in subs)
    for turn in subs:
        question = context(turn, engine).split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
        assert turn.caller == (0, by_question[question])
    assert (tree[4].parent, tree[4].caller) == (0, None)


async def test_row_14_an_agent_as_a_tool_is_reset_and_called_again() -> None:
    """The SDK resets its messages but not its state: its earlier answer is not a discarded attempt."""
    model, _ = scripted_model(
        [tool_call("helper", input="x"), "first", tool_call("helper", input="x"), "second", "done"], "qwen2.5"
    )
    helper = agent_on(model, name="helper", tools=[])
    main = agent_on(model, tools=[helper.as_tool()])
    await main.invoke_async("go")

    tree = model.current_episode.tree
    assert [turn.parent for turn in tree] == [None, None, 0, None, 2]
    assert not any(turn.rejected for turn in tree)
    uses = [block["toolUse"]["toolUseId"] for number in (1, 3) for block in main.messages[number]["content"]]
    assert [turn.caller for turn in tree] == [None, (0, uses[0]), None, (2, uses[1]), None]
    assert [one.turn_ids for one in tree.trajectories()] == [(1,), (3,), (0, 2, 4)]
    # The latest branch, which most people look at, is the main agent's.
    assert model.token_manager.token_ids == list(tree.ids(tree[4]))


async def test_row_14_an_agent_as_a_tool_that_keeps_its_context() -> None:
    model, _ = scripted_model(
        [tool_call("helper", input="x"), "first", tool_call("helper", input="y"), "second", "done"], "qwen2.5"
    )
    helper = agent_on(model, name="helper", tools=[])
    main = agent_on(model, tools=[helper.as_tool(preserve_context=True)])
    await main.invoke_async("go")

    assert [turn.parent for turn in model.current_episode.tree] == [None, None, 0, 1, 2]


async def test_row_14_sub_agents_of_sub_agents_and_tools_that_call_agents_themselves() -> None:
    model, engine = scripted_model(
        [tool_call("outer", topic="x"), SUM, tool_call("inner", input="deep"), "inner says", "outer says", "done"],
        "qwen2.5",
    )
    inner = agent_on(model, name="inner", tools=[])
    middle = agent_on(model, tools=[calculator, inner.as_tool()])

    @tool
    def outer(topic: str) -> str:
        """Find out about a topic.

        Args:
            topic: The topic.
        """
        return str(middle(f"Tell me about {topic}"))

    main = agent_on(model, tools=[outer])
    await main.invoke_async("go")

    tree = model.current_episode.tree
    assert [turn.parent for turn in tree] == [None, None, 1, None, 2, 0]
    assert [turn.caller and turn.caller[0] for turn in tree] == [None, 0, None, 2, None, None]
    assert sampled(tree[3], engine).startswith("inner says")


async def test_row_14_sequential_tools_are_identified_by_their_question() -> None:
    model, _ = scripted_model(boss_and({"paint": "painted", "write": "written"}), "qwen2.5")
    helpers = [agent_on(model, name=f"helper_{number}", tools=[]).as_tool() for number in range(2)]
    main = agent_on(model, tools=helpers, tool_executor=SequentialToolExecutor())
    await main.invoke_async("go")

    tree = model.current_episode.tree
    uses = [block["toolUse"]["toolUseId"] for block in main.messages[1]["content"]]
    assert [turn.caller for turn in tree] == [None, (0, uses[0]), (0, uses[1]), None]


@pytest.mark.parametrize("planner", ["an agent", "the model itself"])
async def test_row_14_an_agent_inside_a_tool_is_tied_to_its_call_whatever_came_before(planner: str) -> None:
    model, _ = scripted_model([tool_call("publish", topic="x"), "a plan", "a text", "done"], "qwen2.5")
    first, writer = agent_on(model, tools=[]), agent_on(model, tools=[])

    @tool
    async def publish(topic: str) -> str:
        """Publish something about a topic.

        Args:
            topic: The topic.
        """
        if planner == "an agent":
            await first.invoke_async(f"Plan {topic}")
        else:  # a side turn
            async for _ in model.stream([{"role": "user", "content": [{"text": f"Plan {topic}"}]}]):
                pass
        return str(await writer.invoke_async(f"Write about {topic}"))

    main = agent_on(model, tools=[publish])
    await main.invoke_async("go")

    tree = model.current_episode.tree
    use = main.messages[1]["content"][0]["toolUse"]["toolUseId"]
    is_agent = planner == "an agent"
    assert [turn.purpose.value for turn in tree] == ["episode", "episode" if is_agent else "side", "episode", "episode"]
    assert [turn.caller for turn in tree] == [None, (0, use) if is_agent else None, (0, use), None]


async def test_row_14_an_agent_started_after_another_stopped_has_no_caller() -> None:
    model, _ = scripted_model([SUM, "hello", "two"], "qwen2.5")
    first, second = agent_on(model), agent_on(model)
    await first.invoke_async("1+1?", limits={"turns": 1})
    await second.invoke_async("hi")
    await first.invoke_async(None)

    tree = model.current_episode.tree
    assert [(turn.parent, turn.caller) for turn in tree] == [(None, None), (None, None), (0, None)]


async def test_row_14_a_rewritten_history_has_no_caller() -> None:
    agent, _, tree = acting([SUM, "two"])
    await agent.invoke_async("1+1?", limits={"turns": 1})
    agent.messages[0]["content"][0]["text"] = "one and one?"
    await asyncio.create_task(agent.invoke_async(None))
    assert (tree[1].parent, tree[1].forked_from, tree[1].caller) == (None, 0, None)


async def test_row_14_a_delegated_answer_comes_from_the_sub_agent() -> None:
    model, engine = scripted_model([tool_call("helper", input="x"), "the answer", "more"], "qwen2.5")
    helper = agent_on(model, name="helper", tools=[])
    main = agent_on(model, tools=[helper.as_tool(delegate=True)])
    result = await main.invoke_async("go")
    assert "the answer" in str(result)
    await main.invoke_async("and?")

    tree = model.current_episode.tree
    assert [turn.parent for turn in tree] == [None, None, 0]
    assert "the answer" in context(tree[2], engine)
    assert said(main)[-1] == "assistant: more"
    assert {turn.purpose for turn in tree} == {TurnPurpose.EPISODE}


@pytest.mark.xfail(
    sys.version_info >= (3, 12),
    reason="Strands 1.62 itself, with any model: on Python 3.12 and later an interrupted sub-agent stays locked",
    strict=False,
)
async def test_row_14_an_interrupted_sub_agent_continues() -> None:
    model, _ = scripted_model(
        [tool_call("helper", input="x"), tool_call("ask", question="how many?"), "three, then", "done"], "qwen2.5"
    )
    helper = agent_on(model, name="helper", tools=[ask])
    main = agent_on(model, tools=[helper.as_tool()])
    result = await main.invoke_async("go")
    assert result.interrupts is not None
    answer: list[Any] = [{"interruptResponse": {"interruptId": result.interrupts[0].id, "response": "three"}}]
    await main.invoke_async(answer)

    assert said(main)[-1] == "assistant: done"
    tree = model.current_episode.tree
    assert [turn.parent for turn in tree] == [None, None, 1, 0]
    assert [turn.caller and turn.caller[0] for turn in tree] == [None, 0, None, None]


async def test_row_14_agents_with_a_shared_invocation_state_stay_separate() -> None:
    """They overwrite each other's cycle ids in it: a retry may go unnoticed, but nothing is mistaken for one."""

    def answer(prompt: str) -> Reply:
        async def later() -> None:
            await asyncio.sleep(0)

        last = prompt.rsplit("<|im_start|>user", 1)[1]
        return Reply("done" if "<tool_response>" in last else SUM, before=later)

    model, _ = scripted_model(answer, "qwen2.5")
    shared: dict[str, Any] = {}
    agents = [agent_on(model) for _ in range(4)]
    for prompt in ("go", "again"):
        await asyncio.gather(*(agent.invoke_async(prompt, invocation_state=shared) for agent in agents))

    tree = model.current_episode.tree
    assert not any(turn.rejected for turn in tree)
    assert [len(one.turn_ids) for one in tree.trajectories()] == [4] * 4
