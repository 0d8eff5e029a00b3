#!/usr/bin/env python3
"""Two agents in one episode: a solver answers, and a checker solves the same task on its own.

    python examples/multi_agent/agents.py --base-url http://localhost:30000 --tokenizer lab/tool_policy/canonical

`build` returns a function that runs both. Every turn made in it belongs to the episode: each agent has its own branch,
the limits count both together, and one reward is for the team.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from pathlib import Path

from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from strands_sglang import Limits, SGLangClient, Task, rollout


@tool
def calculator(expression: str) -> str:
    """Compute one operation on two integers.

    Args:
        expression: Such as `615 * 17`.
    """
    left, operator, right = expression.split()
    return str({"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[operator](int(left), int(right)))


def build(task, model):
    """Return a function that runs the agents of one episode."""

    def agent(name: str) -> Agent:
        manager = NullConversationManager()  # nothing is dropped: one branch per agent
        return Agent(model=model, name=name, tools=[calculator], callback_handler=None, conversation_manager=manager)

    async def run():
        solver, checker = agent("solver"), agent("checker")
        answers = await asyncio.gather(solver.invoke_async(task.prompt), checker.invoke_async(task.prompt))
        return answers[0]  # the result of the episode: the solver's answer

    return run


def numbers(text: str) -> list[str]:
    """Return the numbers in a text."""
    return re.findall(r"-?\d+", text)


def reward(episode):
    """Return 1.0 if the solver is right, with half of it for an answer that the checker confirms."""
    right = str(episode.task.answer) in numbers(episode.text)
    last = [one["content"] for one in episode.messages if one["role"] == "assistant"]
    said = [numbers(" ".join(block.get("text", "") for block in blocks))[-1:] for blocks in last]
    agreed = sum(one == [str(episode.task.answer)] for one in said) >= 2
    return {"reward": 0.5 * right + 0.5 * (right and agreed), "right": float(right), "agreed": float(agreed)}


async def main() -> None:
    """Run a few tasks and print each branch with the agent that made it."""
    parser = argparse.ArgumentParser(description="A solver and a checker, as one episode.")
    parser.add_argument("--base-url", default="http://localhost:30000")
    parser.add_argument("--tokenizer", default="lab/tool_policy/canonical")
    parser.add_argument("--directory", type=Path, help="where to record the run")
    options = parser.parse_args()
    run = await rollout(
        build,
        [Task(f"Compute {n} * 17, then - 88.", answer=n * 17 - 88, id=f"mul-{n}") for n in (615, 616)],
        client=SGLangClient(options.base_url),
        tokenizer=options.tokenizer,
        reward=reward,
        samples_per_task=2,
        limits=Limits(max_turns=12, max_new_tokens=64, tool_timeout=10),
        directory=options.directory,
    )
    for episode in run:
        print(episode.id, episode.end_reason.value, episode.reward)
        for branch in episode.trajectories:
            print("  ", branch.agent, len(branch), "tokens,", int(branch.loss_mask.sum()), "trained")


if __name__ == "__main__":
    asyncio.run(main())
