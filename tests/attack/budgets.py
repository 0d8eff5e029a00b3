"""Sixteen agents at once against every bound that agents of one episode share: tokens, turns, tool calls.

Engines fail, hooks ask again and raise, agents are cancelled while they wait: whatever is set aside for a call must
come back, or the others would wait for ever; and nothing may be given twice.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.hooks import AfterModelCallEvent

from attack.reply_tracking import quiet
from strands_sglang import SGLangModel
from strands_sglang.errors import EngineError
from strands_sglang.runs import Limits, Task, rollout
from strands_sglang.tokens import TokenTree
from support.families import tokenizer
from support.scripted_engine import Reply, ScriptedEngine, tool_call

FAMILY = "qwen2.5"
AGENTS = 16
PATIENCE = 60.0
"""Seconds after which agents that wait for one another wait for ever."""


class Crowd:
    """Agents of one episode that all work at the same time."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.engine = ScriptedEngine(tokenizer(FAMILY), self.answer)
        self.ran = 0
        """Tools that were run."""

    def answer(self, prompt: str) -> Reply | Exception:
        rng = self.rng
        if rng.random() < 0.1:
            return EngineError("the engine is down")
        pause = rng.random() * 0.004
        calls = [tool_call("count") for _ in range(rng.choice([1, 1, 3]))]
        text = "\n".join(calls) if rng.random() < 0.5 else "word " * rng.choice([1, 20, 200])
        return Reply(text, before=lambda: asyncio.sleep(pause))

    def agent(self, model: SGLangModel) -> Agent:
        @tool
        async def count() -> str:
            """Count."""
            self.ran += 1
            await asyncio.sleep(0.001)
            return "counted"

        def again(event: AfterModelCallEvent) -> None:
            fate = self.rng.random()
            if fate < 0.05:
                raise RuntimeError("a hook")
            event.retry = fate < 0.15 and event.stop_response is not None

        agent = Agent(model=model, tools=[count], callback_handler=None, conversation_manager=NullConversationManager())
        agent.add_hook(again, AfterModelCallEvent)
        return agent

    async def work(self, model: SGLangModel) -> None:
        """Let all of them work, and cancel some."""
        calls = [
            asyncio.ensure_future(self.agent(model).invoke_async(f"question {number % 3}", limits={"turns": 4}))
            for number in range(AGENTS)
        ]
        await asyncio.sleep(self.rng.random() * 0.01)
        for call in self.rng.sample(calls, self.rng.choice([0, 0, 3])):
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def exceeds(self, tree: TokenTree, bound: str, limit: int) -> bool:
        """Return whether they did more than they may."""
        answered = sum(call.answered for call in self.engine.calls)
        sampled = sum(len(turn.sampled) for turn in tree)
        return {"max_episode_tokens": sampled, "max_turns": max(answered, len(tree)), "max_tool_calls": self.ran}[
            bound
        ] > limit


async def _in_one_scope(seed: int) -> bool:
    """Return whether agents on a plain model exceed the tokens of their episode."""
    crowd = Crowd(seed)
    limit = crowd.rng.choice([1, 40, 100, 400])
    settings = {"max_new_tokens": crowd.rng.choice([8, 30, 4096])}
    model = SGLangModel(
        tokenizer=crowd.engine.tokenizer,
        client=crowd.engine,
        max_episode_tokens=limit,
        sampling_params=settings,
        streaming=crowd.rng.random() < 0.3,
    )
    with model.episode() as episode:
        await crowd.work(model)
    return crowd.exceeds(episode.tree, "max_episode_tokens", limit)


async def in_a_run(seed: int, directory: Path | None = None) -> bool:
    """Return whether the agents of a runner's episode exceed a bound of it."""
    crowd = Crowd(seed)
    bound = crowd.rng.choice(["max_episode_tokens", "max_turns", "max_tool_calls"])
    limit = crowd.rng.choice([1, 40, 100, 400] if bound == "max_episode_tokens" else [1, 2, 5, 17])

    def build(task: Task, model: SGLangModel) -> Any:
        async def work() -> None:
            await crowd.work(model)

        return work

    [episode] = await rollout(
        build,
        [Task("go")],
        client=crowd.engine,
        tokenizer=crowd.engine.tokenizer,
        limits=Limits(**{bound: limit}),
        directory=directory,
    )
    return crowd.exceeds(episode.tree, bound, limit)


def budgets(rounds: int, seed: int = 0) -> dict[str, Any]:
    """Let sixteen agents work at once, so many times; return how often they did more than they may.

    Args:
        rounds: How often, in each of two settings: a plain model, and a runner.
        seed: Of the first.

    Raises:
        asyncio.TimeoutError: They waited for one another for ever.
    """
    exceeded = 0
    with quiet():
        for number in range(seed, seed + rounds):
            for played in (_in_one_scope, in_a_run):
                exceeded += asyncio.run(asyncio.wait_for(played(number), PATIENCE))
    return {"budget_exceeded": exceeded}
