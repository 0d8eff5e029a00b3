#!/usr/bin/env python3
"""Measures the memory of a live episode: besides its turns, per turn, and per token.

    python bench/memory.py [--episodes 8] [--turns 24] [--sampled 1200] [--result 2800]

All episodes wait for each other in every engine call, and what Python and numpy have allocated is measured there
(`tracemalloc`); the prompt of the running call is counted, too. Turns are long and short in blocks of four, so the
tokens do not grow in proportion to the turns, and one run gives the cost of both: the least squares of

    bytes of an episode = a + b * turns + c * tokens

over all its turns. The largest deviation from this line is printed with it. What the process needs besides, such as
sockets and unused memory of the allocator, is in the figure of `bench/scale.py`.

Prints the measurements, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import logging
import tracemalloc
from typing import Any

import numpy as np
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from agent_script import TOOL, Script, script, tokenizer_from
from played_agent import TOKENIZER, ScriptedEngine, questions
from strands_sglang.runs import rollout


class HeldEngine(ScriptedEngine):
    """Answers from two scripts, and stops the episodes in every call until all of them are there."""

    def __init__(self, small: Script, large: Script, turns: int, episodes: int) -> None:
        super().__init__(large, turns)
        self._small = ScriptedEngine(small, turns)
        self._episodes = episodes
        self._missing, self._tokens = episodes, 0
        self._all = asyncio.Event()
        self.samples: list[tuple[int, int, int]] = []
        """For every call: the turns before it, the tokens of all prompts, the bytes that are allocated."""

    async def generate(self, input_ids: Any, *args: Any, **options: Any) -> Any:
        """Return the next turn, once all episodes have asked for it; measure when the last one has."""
        self._missing -= 1
        self._tokens += len(input_ids)
        number = len(self.samples)
        if self._missing:
            await self._all.wait()
        else:
            gc.collect()
            self.samples.append((number, self._tokens, tracemalloc.get_traced_memory()[0]))
            self._missing, self._tokens = self._episodes, 0
            self._all.set()
            self._all = asyncio.Event()
        large = await super().generate(input_ids, *args, **options)
        small = await self._small.generate(input_ids, *args, **options)
        return large if is_large(number) else small


def is_large(turn: int) -> bool:
    """Return whether a turn has the given size; otherwise it has a quarter of it."""
    return turn // 4 % 2 == 1


def builder(result: str, agents: list[Agent], *, varied: bool = False) -> Any:
    """Return a `build` whose tool returns a text, and which keeps its agents in a list.

    Args:
        result: The text.
        agents: Receives the agents.
        varied: Whether small turns get a quarter of the text.
    """

    def build(task: Any, model: Any) -> Agent:
        calls = itertools.count()

        @tool(name=TOOL)
        async def calculator(expression: str) -> str:
            """Work out one operation.

            Args:
                expression: Such as `615 * 17`.
            """
            large = not varied or is_large(next(calls))
            return result[: None if large else len(result) // 4] + expression  # a text of its own for every call

        manager = NullConversationManager()
        agents.append(Agent(model=model, tools=[calculator], callback_handler=None, conversation_manager=manager))
        return agents[-1]

    return build


def text_bytes(agents: list[Agent]) -> int:
    """Return the bytes of all texts in the messages of the agents."""
    return sum(len(json.dumps(agent.messages, ensure_ascii=False).encode()) for agent in agents)


async def measure(tokenizer: Any, *, episodes: int, turns: int, sampled: int, result: int) -> dict[str, Any]:
    """Return the memory of a live episode.

    Args:
        tokenizer: The tokenizer.
        episodes: Number of episodes.
        turns: Turns of an episode.
        sampled: Sampled tokens of a large turn.
        result: Tokens of a tool result of a large turn.
    """
    words = script(tokenizer, result).last.text
    agents: list[Agent] = []
    engine = HeldEngine(script(tokenizer, sampled // 4), script(tokenizer, sampled), turns - 1, episodes)
    gc.collect()
    before, tasks = tracemalloc.get_traced_memory()[0], questions(episodes)
    run = builder(words, agents, varied=True)
    await rollout(run, tasks, tokenizer=tokenizer, client=engine, concurrency=episodes)
    assert len(engine.samples) == turns, len(engine.samples)
    samples = np.array(engine.samples, float)[1:]
    each = (samples[:, 2] - before) / episodes
    tokens = samples[:, 1] / episodes
    columns = np.stack([np.ones(len(samples)), samples[:, 0], tokens], axis=1)
    fit = np.linalg.lstsq(columns, each, rcond=None)[0]
    off = np.abs(columns @ fit - each) / each
    return {
        "episodes": episodes,
        "turns": turns,
        "tokens_each": int(tokens[-1]),
        "sampled_share": round(sampled / (sampled + result), 2),
        "kilobytes_per_episode": round(fit[0] / 1024, 1),
        "kilobytes_per_turn": round(fit[1] / 1024, 2),
        "bytes_per_token": round(fit[2], 1),
        "of_which_text": round(text_bytes(agents) / episodes / tokens[-1], 1),
        "largest_deviation": round(float(off.max()), 3),
    }


async def measured(tokenizer: Any, **size: int) -> dict[str, Any]:
    """Return the memory of a live episode, after a warm-up; see `measure`."""
    tracemalloc.start()
    try:
        await measure(tokenizer, **{**size, "episodes": 2, "turns": 6})  # loads what is loaded once
        return await measure(tokenizer, **size)
    finally:
        tracemalloc.stop()


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--turns", type=int, default=24, help="turns of an episode, including its final answer")
    parser.add_argument("--sampled", type=int, default=1200, help="sampled tokens of a large turn")
    parser.add_argument("--result", type=int, default=2800, help="tokens of a tool result of a large turn")
    parser.add_argument("--tokenizer", default=str(TOKENIZER), help="tokenizer of a model that writes Hermes calls")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # the policy's template renders no tools, which is logged every time
    tokenizer = tokenizer_from(options.tokenizer)
    result = await measured(
        tokenizer, episodes=options.episodes, turns=options.turns, sampled=options.sampled, result=options.result
    )
    print(f"{options.episodes} live episodes of {result['tokens_each']} tokens, {result['sampled_share']:.0%} sampled")
    print(f"{result['kilobytes_per_episode']} KB per episode besides its turns")
    print(f"{result['kilobytes_per_turn']} KB per turn besides its tokens")
    print(f"{result['bytes_per_token']} bytes per token, of which {result['of_which_text']} are the text of messages")
    print(f"largest deviation from these: {result['largest_deviation']:.1%}")
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main())
