"""The agent that the rollout benches play: one tool that costs nothing, and engines that answer from a script.

`build` is what `rollout` is given. `ScriptedModel` is a Strands model with no tokens at all: an agent on it costs what
the framework itself costs. `ScriptedEngine` answers within the process: with it, HTTP is left out.
"""

from __future__ import annotations

import json
import os
from array import array
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from pathlib import Path
from typing import Any

from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.models.model import Model

from agent_script import TOOL, Script
from strands_sglang import FinishReason, Generation, VersionSpan

TOKENIZER = Path(__file__).resolve().parent.parent / "lab" / "tool_policy" / "canonical"
"""The tool policy's."""


@tool
async def calculator(expression: str) -> str:
    """Work out one operation on two whole numbers.

    Args:
        expression: Such as `615 * 17`.
    """
    return str(len(expression) * 1009)


def build(task: Any, model: Any) -> Agent:
    """Return an agent as a rollout would use it."""
    return Agent(model=model, tools=[calculator], callback_handler=None, conversation_manager=NullConversationManager())


def questions(count: int) -> list[dict[str, str]]:
    """Return so many tasks, no two alike."""
    return [{"prompt": f"Compute {number} * 17, then - 88.", "id": f"task-{number}"} for number in range(count)]


def resident_bytes() -> int:
    """Return how much memory this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class ScriptedEngine:
    """A `TokenEngine` that answers at once, from a script. How far an episode is, it knows by its routing key."""

    def __init__(self, script: Script, turns: int) -> None:
        self._turns = turns
        self._script = script
        self._arrays = {
            answer.ids: (array("i", answer.ids), array("d", [-0.5] * len(answer.ids)))
            for answer in (*script.calls, script.last)
        }
        self._made: defaultdict[str | None, int] = defaultdict(int)

    async def generate(
        self,
        input_ids: Any,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        routing_key: str | None = None,
        **others: Any,
    ) -> Generation:
        """Answer."""
        number = self._made.pop(routing_key, 0)
        if number < self._turns:
            self._made[routing_key] = number + 1
        answer = self._script.turn(number, self._turns)
        ids, logprobs = self._arrays[answer.ids]
        return Generation(
            array("i", ids),
            array("d", logprobs),
            FinishReason.STOP,
            ids[-1],
            (VersionSpan("7", 0, len(ids)),),
            prompt_tokens=len(input_ids),
            cached_tokens=0,
        )


class ScriptedModel(Model):
    """A Strands model that says what is in a script. It does nothing else, and counts no tokens."""

    def __init__(self, script: Script, turns: int) -> None:
        self._script, self._turns = script, turns

    def update_config(self, **model_config: Any) -> None:
        """There is nothing to set."""

    def get_config(self) -> dict[str, Any]:
        """Return no settings."""
        return {}

    def structured_output(self, *given: Any, **options: Any) -> AsyncGenerator[dict[str, Any], None]:
        """Not played."""
        raise NotImplementedError

    async def count_tokens(self, *given: Any, **options: Any) -> int:
        """Return at once: counting is not the framework's cost."""
        return 0

    async def stream(self, messages: Any, *given: Any, **options: Any) -> AsyncIterable[Any]:
        """Say the next turn, one delta a block."""
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
