"""Load for `bench`: conversations of several turns against an engine, and what they took: `run_level`, `LevelResult`.

A conversation is sent as an agent sends it: each turn's prompt is the one before, the tokens sampled, and new ones.

Invariants: only token ids that the server itself has sampled are sent (`token_pool`), besides one at the start of every
vocabulary, because an id outside the vocabulary can crash a server. Every conversation starts with other tokens, so
that the prefix cache serves only what an agent's next turn, or a shared prompt, would find in it.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from strands_sglang.engine.protocol import TokenEngine
from strands_sglang.errors import EngineError

_FIRST_ID = 1  # in every vocabulary
_POOL_TOKENS = 256
_POOL_CALLS = 4


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The size of a conversation."""

    prompt_tokens: int = 1024
    """Tokens of the first prompt."""
    output_tokens: int = 128
    """Tokens sampled in each turn."""
    turns: int = 4
    """Turns of a conversation."""
    turn_tokens: int = 128
    """New tokens before each turn after the first: a tool's result."""
    shared_tokens: int = 0
    """Tokens at the start of the first prompt that all conversations share: a system prompt."""
    temperature: float = 1.0
    """Sampling temperature."""

    @property
    def longest(self) -> int:
        """Tokens of the last prompt and its output."""
        return self.prompt_tokens + self.turns * self.output_tokens + (self.turns - 1) * self.turn_tokens


@dataclass(slots=True)
class LevelResult:
    """What a number of concurrent conversations took."""

    concurrency: int
    """Conversations that ran at once."""
    seconds: float = 0.0
    """Wall time of all of them."""
    latencies: list[float] = field(default_factory=list)
    """Seconds of each turn, in the order in which they ended."""
    first_latencies: list[float] = field(default_factory=list)
    """The part of `latencies` that are first turns of a conversation."""
    prompt_tokens: int = 0
    """Tokens of all prompts that were answered."""
    cached_tokens: int | None = None
    """The part of them that the server had cached; None: it does not report it."""
    sampled_tokens: int = 0
    """Tokens sampled."""
    failures: int = 0
    """Turns that failed, each of which ended its conversation."""
    error: str = ""
    """The first failure; "": there was none."""

    @property
    def cached_share(self) -> float | None:
        """Share of the prompt tokens that were cached, 0 to 1; None: not reported."""
        return (
            self.cached_tokens / self.prompt_tokens if self.cached_tokens is not None and self.prompt_tokens else None
        )

    def per_second(self, count: int) -> float:
        """Return a count per second of wall time."""
        return count / self.seconds if self.seconds > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        later = sorted(self.latencies)
        return {
            "concurrency": self.concurrency,
            "turns": len(self.latencies),
            "failures": self.failures,
            "error": self.error or None,
            "seconds": self.seconds,
            "turns_per_second": self.per_second(len(self.latencies)),
            "output_tokens_per_second": self.per_second(self.sampled_tokens),
            "prompt_tokens_per_second": self.per_second(self.prompt_tokens),
            "turn_seconds": {name: quantile(later, q) for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))},
            "first_turn_seconds": quantile(sorted(self.first_latencies), 0.5),
            "cached_share": self.cached_share,
            "sampled_tokens": self.sampled_tokens,
            "prompt_tokens": self.prompt_tokens,
        }


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least a share of the values do not exceed; None without values.

    Example:
        >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5)
        2.0
    """
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else None


async def token_pool(engine: TokenEngine) -> list[int]:
    """Return token ids of the engine's vocabulary: those that it samples at a high temperature.

    Raises:
        EngineError: The engine fails.
    """
    sampling = {"max_new_tokens": _POOL_TOKENS, "temperature": 2.0, "ignore_eos": True}
    found: dict[int, None] = {_FIRST_ID: None}
    for _ in range(_POOL_CALLS):
        found.update(dict.fromkeys((await engine.generate([_FIRST_ID], sampling)).token_ids))
    return list(found)


async def run_level(
    engine: TokenEngine, plan: LoadPlan, pool: Sequence[int], concurrency: int, conversations: int, seed: int
) -> LevelResult:
    """Run conversations, a number of them at once.

    Args:
        engine: The engine.
        plan: Size of a conversation.
        pool: Token ids to build prompts from.
        concurrency: Number that runs at once.
        conversations: Number in all.
        seed: Of the prompts; another seed gives prompts that share nothing but the shared tokens.
    """
    result = LevelResult(concurrency)
    shared = _tokens(random.Random(0), pool, min(plan.shared_tokens, plan.prompt_tokens))
    waiting = iter(range(conversations))
    start = time.perf_counter()

    async def one_after_another() -> None:
        for number in waiting:
            await _converse(engine, plan, pool, shared, random.Random(f"{seed}/{number}"), result)

    await asyncio.gather(*(one_after_another() for _ in range(min(concurrency, conversations))))
    result.seconds = time.perf_counter() - start
    return result


async def _converse(
    engine: TokenEngine,
    plan: LoadPlan,
    pool: Sequence[int],
    shared: list[int],
    rng: random.Random,
    result: LevelResult,
) -> None:
    ids = shared + _tokens(rng, pool, plan.prompt_tokens - len(shared))
    sampling = {"max_new_tokens": plan.output_tokens, "temperature": plan.temperature, "ignore_eos": True}
    key = f"{rng.getrandbits(128):032x}"
    for turn in range(plan.turns):
        if turn:
            ids = ids + _tokens(rng, pool, plan.turn_tokens)
        began = time.perf_counter()
        try:
            generation = await engine.generate(ids, sampling, routing_key=key)
        except EngineError as error:
            result.failures += 1
            result.error = result.error or f"{type(error).__name__}: {error}"
            return
        took = time.perf_counter() - began
        result.latencies.append(took)
        if turn == 0:
            result.first_latencies.append(took)
        result.prompt_tokens += len(ids)
        result.sampled_tokens += len(generation.token_ids)
        if generation.cached_tokens is not None:
            result.cached_tokens = (result.cached_tokens or 0) + generation.cached_tokens
        ids = ids + list(generation.token_ids)


def _tokens(rng: random.Random, pool: Sequence[int], count: int) -> list[int]:
    return rng.choices(pool, k=count) if count > 0 else []
