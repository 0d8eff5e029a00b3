"""Agents for slime's rollouts: some slow, some with branches, some that break; and the functions that watch them."""

from __future__ import annotations

import asyncio
import copy
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from strands import tool

from strands_sglang import SGLangModel
from strands_sglang.runs import Task
from support.lab_servers import task as lab
from support.rollout_agent import TURNS, agent_for

SHORT = 120
"""Response tokens that a right answer fits in."""


@dataclass
class Slow:
    """The tool policy's agent, with a tool that takes its time where the task says so."""

    seconds: float
    blocking: bool = False
    now: bool = True
    calls: list[float] = field(default_factory=list)
    waiting: int = 0

    def build(self, given: Task, model: SGLangModel) -> Any:
        slow = bool(given.data.get("slow"))

        @tool
        async def calculator(expression: str) -> str:
            """Work out one operation on two whole numbers.

            Args:
                expression: Such as `615 * 17`.
            """
            self.calls.append(time.monotonic())
            if slow and self.now:
                self.waiting += 1
                await asyncio.sleep(self.seconds)
            return lab.calculate(expression)

        @tool(name="calculator")
        def blocking(expression: str) -> str:
            """Work out one operation on two whole numbers.

            Args:
                expression: Such as `615 * 17`.
            """
            self.calls.append(time.monotonic())
            if slow and self.now:
                self.waiting += 1
                time.sleep(self.seconds)
            return lab.calculate(expression)

        return agent_for(model, tools=[blocking if self.blocking else calculator])


def second_thoughts(given: Task, model: SGLangModel) -> Any:
    """Return an agent's work that has one branch where its first answer is right, else two or three."""

    async def work() -> str:
        agent = agent_for(model)
        right = f"The answer is {given.answer}."
        text = str(await agent.invoke_async(str(given.prompt), limits={"turns": TURNS})).strip()
        if text != right:  # forget how it came to the wrong answer, and try again behind it
            agent.messages[:] = [agent.messages[0], agent.messages[-1]]
            text = str(await agent.invoke_async(str(given.prompt), limits={"turns": TURNS})).strip()
        if text != right:  # ask somebody else
            text = str(await agent_for(model).invoke_async(str(given.prompt), limits={"turns": TURNS})).strip()
        return text

    return work


@dataclass
class Seen:
    """What went into the function under test, and what came out."""

    results: list[Any] = field(default_factory=list)
    given: list[dict[str, Any]] = field(default_factory=list)
    """Of each call: what the sample was before, the sampling parameters, and whether it is an evaluation."""
    raised: list[BaseException] = field(default_factory=list)

    def around(self, generate: Callable[..., Any], **params: Any) -> Callable[..., Any]:
        """Return the function with a look at each call."""

        @functools.wraps(generate)
        async def watched(args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
            before = copy.deepcopy(sampling_params)
            self.given.append(
                {
                    "status": sample.status.value,
                    "tokens": list(sample.tokens),
                    "logprobs": list(sample.rollout_log_probs or []),
                    "params": before,
                    "evaluation": evaluation,
                    "index": sample.index,
                    "session": sample.session_id,
                    "metadata": dict(sample.metadata),
                }
            )
            own = sampling_params
            if sample.metadata.get("long"):
                own = {**own, **params} if self.long else own
            elif params:  # a policy this small may go on and on
                own = {**own, "max_new_tokens": min(own["max_new_tokens"], SHORT)}
            try:
                result = await generate(args, sample, own, evaluation=evaluation)
            except BaseException as error:
                self.raised.append(error)
                raise
            assert sampling_params == before, "the sampling parameters are shared: they must stay as they are"
            self.results.append(result)
            return result

        return watched

    long: bool = True
    """Whether samples whose metadata has `long` get the parameters."""
