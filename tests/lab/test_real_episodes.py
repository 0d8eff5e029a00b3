"""On the real engine: the tool policy plays whole episodes, token for token, through the client."""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from dataclasses import dataclass, field

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from strands_sglang import Generation, SGLangClient
from strands_sglang.engine import FinishReason
from support.examples import size
from support.lab_servers import LAB, LabProcess, task

pytestmark = pytest.mark.engine

EPISODES = size(96, 256)
AT_ONCE = 64
PARAMS = {"max_new_tokens": 64, "temperature": 1.0}


@dataclass
class Episode:
    """One task played: every token of it, and who made it."""

    asked: task.Task
    ids: array[int] = field(default_factory=lambda: array("i"))
    turns: list[Generation] = field(default_factory=list)
    reward: float = 0.0


async def play(client: SGLangClient, tokenizer: PreTrainedTokenizerBase, asked: task.Task, key: str) -> Episode:
    episode = Episode(asked)
    start = task.render(task.Message("user", asked.question)) + "<|im_start|>assistant\n"
    episode.ids.extend(tokenizer.encode(start))
    for turn in range(task.MAX_TOOL_CALLS + 1):
        generation = await client.generate(episode.ids, PARAMS, routing_key=key)
        # The prompt was everything so far: nothing was rendered or encoded again.
        assert generation.prompt_tokens == len(episode.ids)
        episode.turns.append(generation)
        episode.ids += generation.token_ids
        text = str(tokenizer.decode(generation.token_ids.tolist())).removesuffix("<|im_end|>")
        expression = task.parse_call(text)
        if generation.finish_reason is not FinishReason.STOP or expression is None or turn == task.MAX_TOOL_CALLS:
            episode.reward = task.score(asked, text)
            return episode
        result = task.render(task.Message("tool", task.calculate(expression)))
        episode.ids.extend(tokenizer.encode("\n" + result + "<|im_start|>assistant\n"))
    return episode


async def test_whole_episodes_with_real_tool_calls(tool_policy: LabProcess) -> None:
    tokenizer = AutoTokenizer.from_pretrained(LAB / "tool_policy" / "canonical")
    rng = random.Random(11)
    tasks = [task.sample_task(rng) for _ in range(EPISODES)]
    room = asyncio.Semaphore(AT_ONCE)
    async with SGLangClient(tool_policy.url) as client:

        async def one(number: int) -> Episode:
            async with room:
                return await play(client, tokenizer, tasks[number], f"episode-{number}")

        started = time.monotonic()
        episodes = await asyncio.gather(*(one(number) for number in range(EPISODES)))
        took = time.monotonic() - started
    right = sum(episode.reward for episode in episodes) / EPISODES
    whole = sum(len(episode.turns) == 3 for episode in episodes)
    print(
        f"{EPISODES} episodes in {took:.1f} s ({EPISODES / took:.0f} a second), {right:.0%} right, {whole} of 3 turns"
    )
    assert whole > EPISODES * 0.8
    assert 0.5 < right < 0.95
    # Later turns find the earlier ones in the engine's cache.
    later = [turn for episode in episodes for turn in episode.turns[1:]]
    assert sum((turn.cached_tokens or 0) > 0 for turn in later) > len(later) * 0.9
