r"""A math agent with a Python tool for slime: the agent, its reward, and the two functions that slime calls.

    --custom-generate-function-path math_agent.generate          # training, in run.sh
    custom_generate_function_path: math_agent.evaluate           # evaluation, in aime.yaml

`try_it.py` runs the same agent on a few questions without slime.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import Any

from boxed import is_right, last_boxed
from strands import Agent
from strands.agent.conversation_manager import NullConversationManager
from strands.hooks import BeforeToolCallEvent, HookProvider, HookRegistry

from strands_sglang import Episode, Limits, SGLangModel, Task
from strands_sglang.tools import SandboxLimits, python_sandbox
from strands_sglang.trainers.slime import slime_rollout

TOOL_ITERATIONS = 5
LIMITS = Limits(max_turns=TOOL_ITERATIONS + 1, tool_timeout=120)
"""Five turns that use the tool, and one more to answer. slime limits the length of the response, over all turns
together, with --rollout-max-response-len."""

SYSTEM_PROMPT = (
    "You solve mathematics problems. You have a tool that runs Python: use it to calculate, to search small cases and "
    "to check what you believe, rather than doing long arithmetic by hand. Each call is a fresh interpreter, so every "
    f"program must be complete, and you only see what it prints. You can use it in at most {TOOL_ITERATIONS} turns.\n\n"
    "Think step by step. When you are sure, finish with the answer in \\boxed{}, for example \\boxed{42}."
)

REWARD_RIGHT, REWARD_WRONG = 1.0, -1.0
BONUS_PER_CALL, MAX_BONUS = 0.1, 0.4


@cache
def python_tool() -> Any:
    """Return the tool: one for all episodes of this process, made by the first."""
    return python_sandbox(
        limits=SandboxLimits(seconds=10, memory=2 * 1024**3),
        packages=[name for name in ("numpy", "sympy") if find_spec(name) is not None],
        concurrency=max(2, (os.cpu_count() or 2) // 2),  # the other half is for the trainer
    )


class AnswerTurn(HookProvider):
    """Refuses tool calls in the last turn, which is for the answer; `ToolLimiter` would stop before that turn."""

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Register a callback before every tool call."""
        registry.add_callback(BeforeToolCallEvent, self.refuse_late_call)

    def refuse_late_call(self, event: BeforeToolCallEvent) -> None:
        """Refuse a call in the turn for the answer."""
        turns = sum(any("toolUse" in block for block in message["content"]) for message in event.agent.messages)
        if turns > TOOL_ITERATIONS:
            event.cancel_tool = f"not run: the tool was used in {TOOL_ITERATIONS} turns, this one was for the answer"


def build_agent(task: Task, model: SGLangModel) -> Agent:
    """Return the agent of one episode."""
    return Agent(
        model=model,
        tools=[python_tool()],
        system_prompt=SYSTEM_PROMPT,
        callback_handler=None,
        conversation_manager=NullConversationManager(),  # nothing is dropped: one episode, one branch
        hooks=[AnswerTurn()],
    )


def accuracy(episode: Episode) -> dict[str, float]:
    """Return 1 if the last box holds the right answer, else 0, as AIME is scored."""
    right = is_right(episode.text, episode.task.answer)
    return {
        "reward": float(right),
        "boxed": float(last_boxed(episode.text) is not None),
        "tool_calls": float(episode.metrics.tool_calls),
        "tool_errors": float(episode.metrics.tool_errors),
    }


def score(episode: Episode) -> dict[str, float]:
    """Return the reward for training: 1 for a right answer, -1 for a wrong one, plus a bonus if Python was used.

    A wrong answer gets 0.1 for every program that ran without an error, up to 0.4: enough to encourage use of the
    tool, and far below the reward of a right answer.
    """
    parts = accuracy(episode)
    if parts["reward"]:
        reward = REWARD_RIGHT
    else:
        succeeded = parts["tool_calls"] - parts["tool_errors"]
        reward = REWARD_WRONG + min(MAX_BONUS, BONUS_PER_CALL * max(0.0, succeeded))
    return {**parts, "reward": reward, "accuracy": parts["reward"]}


generate = slime_rollout(build_agent, reward=score, limits=LIMITS, enable_thinking=True)
evaluate = slime_rollout(build_agent, reward=accuracy, limits=LIMITS, enable_thinking=True)
