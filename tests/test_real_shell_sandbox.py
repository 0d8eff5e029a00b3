"""A Strands sandbox of each episode on a real engine: the policy's calculator and the SDK's tools work in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from strands import ToolContext, tool
from strands.types.tools import AgentTool
from strands.vended_tools.file_editor import make_file_editor
from strands.vended_tools.shell import make_shell

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.proof.verify import verify
from strands_sglang.runs import EndReason, Limits, ReplayVerdict, Task, replay, rollout
from strands_sglang.tools import SandboxLimits, ShellSandbox
from strands_sglang.tools.bubblewrap import WORKSPACE
from support.examples import size
from support.lab_servers import LabProcess
from support.rollout_agent import SAMPLING, TOKENIZER, TURNS, agent_for, score, tasks

pytestmark = pytest.mark.engine

EPISODES = size(4, 100)
LIMITS = Limits(max_turns=TURNS)


class QuietSandbox(ShellSandbox):
    """Vends no tools: the lab's policy knows one tool."""

    def get_tools(self) -> list[Any]:
        return []


@tool(context=True)
async def calculator(expression: str, tool_context: ToolContext) -> str:
    """Work out one operation on two whole numbers.

    Args:
        expression: Such as `615 * 17`.
    """
    program = f"{WORKSPACE}/sum.sh"
    await of_the_sdk(make_file_editor(), tool_context, command="create", path=program, file_text="echo $((SUM))\n")
    await of_the_sdk(
        make_file_editor(), tool_context, command="str_replace", path=program, old_str="SUM", new_str=expression
    )
    seen = await of_the_sdk(make_file_editor(), tool_context, command="view", path=program)
    assert expression in seen
    said = await of_the_sdk(make_shell(), tool_context, command="sh sum.sh | tee -a log; rm sum.sh")
    result = await tool_context.agent.sandbox.execute("tail -n 1 log")
    assert result.stdout.strip() in said
    return str(result.stdout).strip()


async def of_the_sdk(made: AgentTool, context: ToolContext, **given: Any) -> str:
    """Return what a tool of the SDK answers, which finds the sandbox of the agent."""
    call: Any = {"toolUseId": "1", "name": made.tool_name, "input": given}
    events = [event async for event in made.stream(call, {"agent": context.agent})]
    return str(events[-1])


def build(task: Task, model: SGLangModel) -> Any:
    box = QuietSandbox(limits=SandboxLimits(seconds=60), concurrency=EPISODES)
    return agent_for(model, tools=[calculator], sandbox=box)


async def test_a_sandbox_for_each_episode(tool_policy: LabProcess, tmp_path: Path) -> None:
    async with SGLangClient(tool_policy.url) as client:
        run = await rollout(
            build,
            tasks(EPISODES),
            client=client,
            tokenizer=TOKENIZER,
            directory=tmp_path,
            reward=score,
            limits=LIMITS,
            sampling_params=SAMPLING,
            concurrency=EPISODES,
        )
    assert {one.end_reason for one in run} <= {EndReason.ANSWERED, EndReason.TURN_LIMIT}
    assert sum(one.metrics.tool_calls for one in run) >= EPISODES
    assert sum(one.reward or 0.0 for one in run) >= EPISODES / 2  # what the sandbox computes is right
    assert verify(tmp_path).proved
    replayed = await replay(build, tmp_path, tokenizer=TOKENIZER, limits=LIMITS)
    assert [one.verdict for one in replayed] == [ReplayVerdict.IDENTICAL] * EPISODES
