"""Whole episodes of a real Strands agent on a real engine, and what is true of every one of them."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.types.exceptions import EventLoopException, MaxTokensReachedException

from strands_sglang import EpisodeTokens, SGLangModel
from strands_sglang.chat.messages import template_messages
from strands_sglang.tokens import Origin
from support.engine_probes import prefill_logprobs
from support.lab_servers import task
from support.wire_tap import Tap


@tool
async def calculator(expression: str) -> str:
    """Work out one operation on two whole numbers.

    Args:
        expression: Such as `615 * 17`.
    """
    return task.calculate(expression)


@dataclass
class Played:
    """One episode that was played."""

    episode: EpisodeTokens
    messages: list[Any]
    reward: float
    ended: str


@dataclass
class Drift:
    """What other ways of getting tokens would have made of the same turns."""

    turns: int = 0
    tokens: int = 0
    by_decoding: int = 0
    by_rendering: int = 0
    """Turns whose message, rendered by the template, gives other tokens than were sampled."""


async def play(model: SGLangModel, questions: list[str]) -> Played:
    """Let an agent answer questions, one after the other, in an episode of its own."""
    agent = Agent(
        model=model, tools=[calculator], callback_handler=None, conversation_manager=NullConversationManager()
    )
    ended, text = "answered", ""
    with model.episode() as episode:
        for question in questions:
            try:
                result = await agent.invoke_async(question, limits={"turns": task.MAX_TOOL_CALLS + 1})
                text = str(result)
            except (MaxTokensReachedException, EventLoopException) as error:
                original = getattr(error, "original_exception", error)
                assert isinstance(original, MaxTokensReachedException), original
                ended = "cut"
    return Played(episode, agent.messages, 0.0, f"{ended}: {text}")


async def play_tasks(model: SGLangModel, count: int, at_once: int, seed: int) -> list[Played]:
    """Play tasks of the tool policy, so many at once, all on one model object."""
    gate = asyncio.Semaphore(at_once)

    async def one(number: int) -> Played:
        asked = task.sample_task(random.Random(seed + number))
        async with gate:
            played = await play(model, [asked.question])
        played.reward = task.score(asked, played.ended.partition(": ")[2])
        return played

    return list(await asyncio.gather(*(one(number) for number in range(count))))


def check_against_the_wire(played: list[Played], tap: Tap) -> int:
    """Every turn on record is a call that passed the tap, and every call that passed is on record. Returns how many."""
    seen = set()
    for one in played:
        tree = one.episode.tree
        for turn in tree:
            passed = tap.calls[turn.detail["rid"]]
            prompt = tree.ids(turn)[: turn.sampled_start].tolist()
            assert passed.input_ids == prompt
            assert passed.output_ids == turn.sampled.tolist()
            assert passed.logprobs == turn.logprobs.tolist()
            assert passed.routing_key == one.episode.id
            seen.add(turn.detail["rid"])
    assert seen == set(tap.calls)
    return len(seen)


async def largest_difference(url: str, played: list[Played], at_once: int = 16) -> float:
    """Score every trajectory again in one prefill; return the largest difference to a recorded logprob."""
    gate, worst = asyncio.Semaphore(at_once), 0.0

    async def one(trajectory: Any) -> None:
        nonlocal worst
        start = trajectory.prompt_length
        async with gate:
            again = await prefill_logprobs(url, trajectory.token_ids.tolist(), start)
        for place, logprob in enumerate(again, start):
            if trajectory.origins[place] == Origin.SAMPLED:
                assert trajectory.loss_mask[place] == 1
                worst = max(worst, abs(logprob - trajectory.logprobs[place]))
            else:
                assert trajectory.loss_mask[place] == 0

    trajectories = [trajectory for one_played in played for trajectory in one_played.episode.trajectories()]
    assert len(trajectories) == len(played)
    await asyncio.gather(*(one(trajectory) for trajectory in trajectories))
    return worst


def covered_by_cache(played: list[Played]) -> tuple[int, int]:
    """Count turns behind another whose prompt was cached but for what is new, and all turns behind another.

    The last sampled token of a turn was never fed to the model, so it is new as well.
    """
    covered = total = 0
    for one in played:
        for turn in one.episode.tree:
            if turn.parent is not None:
                total += 1
                covered += turn.detail["cached_tokens"] >= one.episode.tree[turn.parent].end - 1
    return covered, total


def drift(played: list[Played], tokenizer: Any) -> Drift:
    """Say what decoding and encoding again, and rendering messages again, would have made of the same turns.

    Each turn is looked at alone: what an earlier one did to the prompt is not counted again.
    """
    found = Drift()
    for one in played:
        replies = [number for number, message in enumerate(one.messages) if message["role"] == "assistant"]
        for turn, at in zip(one.episode.tree, replies, strict=True):
            sampled = turn.sampled.tolist()
            found.turns += 1
            found.tokens += len(sampled)
            again = tokenizer.encode(tokenizer.decode(sampled), add_special_tokens=False)
            found.by_decoding += again != sampled
            prompt = _rendered(tokenizer, one.messages[:at], True)
            whole = _rendered(tokenizer, one.messages[: at + 1], False)
            rendered = whole[len(prompt) : len(prompt) + len(sampled)] if whole[: len(prompt)] == prompt else whole
            found.by_rendering += rendered != sampled
    return found


def _rendered(tokenizer: Any, messages: list[Any], generate: bool) -> list[int]:
    """Return the tokens of messages, rendered whole as a trainer that kept only messages would."""
    plain = template_messages(messages)
    ids: list[int] = tokenizer.apply_chat_template(plain, add_generation_prompt=generate, return_dict=False)
    return ids
