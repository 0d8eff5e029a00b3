"""A Strands sandbox of each episode on a real engine: the policy's calculator and the SDK's tools work in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from strands import ToolContext, tool
from strands.vended_tools.shell import make_shell

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.proof.verify import verify
from strands_sglang.runs import EndReason, Limits, ReplayVerdict, Task, replay, rollout
from strands_sglang.tools import SandboxLimits, ShellSandbox
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
    shell = make_shell()  # the SDK's tool, which finds the sandbox of the agent
    call: Any = {"toolUseId": "1", "name": "shell", "input": {"command": f"echo $(({expression})) | tee -a log"}}
    state = {"agent": tool_context.agent}
    events = [event async for event in shell.stream(call, state)]
    result = await tool_context.agent.sandbox.execute("tail -n 1 log")
    assert result.stdout.strip() in str(events[-1])
    return str(result.stdout).strip()


def build(task: Task, model: SGLangModel) -> Any:
    box = QuietSandbox(limits=SandboxLimits(seconds=60))
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
