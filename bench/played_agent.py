"""The agent of the rollout benchmarks, with an engine that answers from a script within the process, without HTTP."""

from __future__ import annotations

import os
from array import array
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_script import Script
from scripted_agent import TOKENIZER, ScriptedModel, build, calculator, questions
from strands_sglang import Generation
from strands_sglang.engine import FinishReason, VersionSpan

__all__ = ["TOKENIZER", "ScriptedEngine", "ScriptedModel", "build", "calculator", "questions", "resident_bytes"]


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class ScriptedEngine:
    """A `TokenEngine` that answers at once from a script. It tracks the position in an episode by routing key."""

    def __init__(self, script: Script, turns: int) -> None:
        self._turns = turns
        self._script = script
        self._arrays = {
            answer.ids: (array("i", answer.ids), array("d", [-0.5] * len(answer.ids)))
            for answer in (*script.calls, script.last)
        }
        self._made: defaultdict[str | None, int] = defaultdict(int)

    def alone(self) -> ScriptedEngine:
        """Return an engine with the same script for one more conversation, which needs no routing key."""
        engine = ScriptedEngine.__new__(ScriptedEngine)
        engine._turns, engine._script, engine._arrays = self._turns, self._script, self._arrays
        engine._made = defaultdict(int)
        return engine

    async def generate(
        self,
        input_ids: Any,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        routing_key: str | None = None,
        **others: Any,
    ) -> Generation:
        """Return the next scripted turn."""
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
