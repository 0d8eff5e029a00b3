"""The task: a chain of operations on whole numbers, done with a calculator, and the agent that does it.

With two operations this is the task of the lab's tool policy. Other lengths are for the sweep over the number of turns.
Needs no PyTorch.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

LAB = Path(__file__).resolve().parent.parent.parent / "lab"
sys.path.append(str(LAB / "tool_policy"))

import task as arithmetic  # noqa: E402 - the lab's task uses only the standard library

HELD_OUT_SEED = 2**30
"""Seed of the held-out questions; training seeds are small numbers."""


@dataclass(frozen=True)
class Chain:
    """A question, the expressions of a right solution, and the answer."""

    question: str
    expressions: tuple[str, ...]
    answer: int


def draw(rng: random.Random, operations: int = 2) -> Chain:
    """Draw a question: numbers below 1000, factors of at most 30."""
    start = rng.randint(10, 999)
    operators = [rng.choice("+-*") for _ in range(operations)]
    operands = [rng.randint(2, 30) if operator == "*" else rng.randint(10, 999) for operator in operators]
    steps = [f"{operator} {operand}" for operator, operand in zip(operators, operands, strict=True)]
    expressions: list[str] = []
    value = str(start)
    for step in steps:
        expressions.append(f"{value} {step}")
        value = arithmetic.calculate(expressions[-1])
    return Chain(f"Compute {start} {', then '.join(steps)}.", tuple(expressions), int(value))


def questions(count: int, seed: int, operations: int = 2, without: frozenset[str] = frozenset()) -> list[Chain]:
    """Return different questions, none of which is in `without`."""
    rng, drawn = random.Random(seed), {}
    while len(drawn) < count:
        one = draw(rng, operations)
        if one.question not in without:
            drawn.setdefault(one.question, one)
    return list(drawn.values())


def held_out(count: int, operations: int = 2) -> list[Chain]:
    """Return the held-out questions, the same for every run."""
    return questions(count, HELD_OUT_SEED, operations)


def dialogue(chain: Chain, compact: bool) -> list[arithmetic.Message]:
    """Return the conversation of a right solution, for supervised training."""
    messages = [arithmetic.Message("user", chain.question)]
    for expression in chain.expressions:
        messages.append(arithmetic.Message("assistant", arithmetic.format_call(expression, compact)))
        messages.append(arithmetic.Message("tool", arithmetic.calculate(expression)))
    return [*messages, arithmetic.Message("assistant", f"The answer is {chain.answer}.")]


@tool
async def calculator(expression: str) -> str:
    """Work out one operation on two whole numbers.

    Args:
        expression: Such as `615 * 17`.
    """
    return arithmetic.calculate(expression)


def build(task: Any, model: Any) -> Agent:
    """Make the agent of one episode."""
    return Agent(model=model, tools=[calculator], callback_handler=None, conversation_manager=NullConversationManager())


def right(episode: Any) -> bool:
    """Return whether the answer is right."""
    return bool(episode.text.strip() == f"The answer is {episode.task.answer}.")


def reward_of(token_cost: float = 0.0) -> Callable[[Any], float]:
    """Return the reward: 0 for a wrong answer; for a right one, 1 minus a cost for each sampled token.

    A cost that is subtracted from wrong answers, too, would make an empty answer the best one.
    """

    def reward(episode: Any) -> float:
        return float(right(episode)) * max(0.0, 1.0 - token_cost * episode.metrics.sampled_tokens)

    return reward
