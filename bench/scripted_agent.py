"""The agent of all benchmarks: one tool without cost, its tasks, and a Strands model that answers from a script.

It imports nothing of this package, so that it also runs where another package with the same import name is installed.
`build` is passed to `rollout`. An agent that uses `ScriptedModel` costs only what the SDK costs.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from pathlib import Path
from typing import Any

from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.models.model import Model

from agent_script import TOOL, WORDS, Script

TOKENIZER = Path(__file__).resolve().parent.parent / "lab" / "tool_policy" / "canonical"
"""Tokenizer of the tool policy."""


@tool
async def calculator(expression: str) -> str:
    """Work out one operation on two whole numbers.

    Args:
        expression: Such as `615 * 17`.
    """
    return str(len(expression) * 1009)


def build(task: Any, model: Any, tools: Sequence[Any] = (calculator,), **settings: Any) -> Agent:
    """Return the agent of an episode."""
    manager = NullConversationManager()
    return Agent(model=model, tools=list(tools), callback_handler=None, conversation_manager=manager, **settings)


def questions(count: int, context: str = "") -> list[dict[str, str]]:
    """Return `count` different tasks, each with a text in front of its question."""
    front = f"{context}\n\n" if context else ""
    return [{"prompt": f"{front}Compute {number} * 17, then - 88.", "id": f"task-{number}"} for number in range(count)]


def text_of(tokenizer: Any, tokens: int, seed: int = 0) -> str:
    """Return a text of about so many tokens, of common words in random order."""
    if not tokens:
        return ""
    words = random.Random(seed).choices(WORDS, k=tokens)
    text: str = tokenizer.decode(tokenizer.encode(" ".join(words), add_special_tokens=False)[:tokens])
    return text


class ScriptedModel(Model):
    """A Strands model that returns the turns of a script and counts no tokens."""

    def __init__(self, script: Script, turns: int) -> None:
        self._script, self._turns = script, turns

    def update_config(self, **model_config: Any) -> None:
        """Do nothing: there are no settings."""

    def get_config(self) -> dict[str, Any]:
        """Return no settings."""
        return {}

    def structured_output(self, *given: Any, **options: Any) -> AsyncGenerator[dict[str, Any], None]:
        """Not implemented."""
        raise NotImplementedError

    async def count_tokens(self, *given: Any, **options: Any) -> int:
        """Return at once: counting is not part of the SDK's cost."""
        return 0

    async def stream(self, messages: Any, *given: Any, **options: Any) -> AsyncIterable[Any]:
        """Stream the next turn, one delta per content block."""
        number = (len(messages) - 1) // 2
        answer = self._script.turn(number, self._turns)
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": answer.prose}}}
        yield {"contentBlockStop": {}}
        if answer.expression is not None:
            use, arguments = {"toolUseId": f"call{number}", "name": TOOL}, json.dumps({"expression": answer.expression})
            yield {"contentBlockStart": {"start": {"toolUse": use}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": arguments}}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if answer.expression is None else "tool_use"}}
        sampled = len(answer.ids)
        usage = {"inputTokens": 0, "outputTokens": sampled, "totalTokens": sampled}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 0}}}
