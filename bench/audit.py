#!/usr/bin/env python3
"""Measures the cost of auditing conversations, as a share of the CPU time of a run.

    python bench/audit.py TOKENIZER [--episodes 1000] [--turns 8]

TOKENIZER is a tokenizer folder or a name on the hub whose model writes calls in Hermes format. `rollout` runs real
agents on an engine that answers at once, so only the CPU time of this package and of the SDK counts. The first episodes
of a process are all audited, later ones by `audit_share`; the last line gives the share with the default.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from array import array
from collections.abc import Mapping
from typing import Any

from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from agent_script import tokenizer_from
from strands_sglang import Generation
from strands_sglang.engine import FinishReason, VersionSpan
from strands_sglang.provider import audit
from strands_sglang.runs import Task, rollout

WORDS = "the quick brown fox jumps over a lazy dog while seven wizards watch it from their old wooden porch "


@tool
async def search(query: str) -> str:
    """Search for something.

    Args:
        query: What.
    """
    return WORDS * 4


class Engine:
    """An engine that calls the tool `turns` times and then answers, without delay."""

    def __init__(self, tokenizer: Any, turns: int) -> None:
        call = '<tool_call>\n{"name": "search", "arguments": {"query": "' + WORDS * 2 + '"}}\n</tool_call><|im_end|>'
        self._call = array("i", tokenizer.encode(call, add_special_tokens=False))
        self._end = array("i", tokenizer.encode("It is a fox.<|im_end|>", add_special_tokens=False))
        [self._opens] = tokenizer.encode("<tool_response>", add_special_tokens=False)[:1]
        self._turns = turns

    async def generate(self, input_ids: Any, sampling_params: Mapping[str, Any] | None = None, **_: Any) -> Generation:
        """Return the next scripted turn."""
        await asyncio.sleep(0)
        made = sum(token == self._opens for token in input_ids)
        ids = array("i", self._call if made < self._turns else self._end)
        count = len(ids)
        return Generation(
            ids,
            array("d", [-0.5] * count),
            FinishReason.STOP,
            ids[-1],
            (VersionSpan("1", 0, count),),
            prompt_tokens=len(input_ids),
            cached_tokens=0,
        )


def build(task: Task, model: Any) -> Agent:
    """Return the agent of an episode."""
    return Agent(model=model, tools=[search], callback_handler=None, conversation_manager=NullConversationManager())


def measure(tokenizer: Any, episodes: int = 1000, turns: int = 8) -> dict[str, float]:
    """Return the CPU seconds of audits and of the whole run."""
    spent, audits, inner = 0.0, 0, audit.Auditor._audit

    def timed(self: audit.Auditor, *args: Any) -> None:
        nonlocal spent, audits
        began = time.thread_time()
        inner(self, *args)
        spent, audits = spent + time.thread_time() - began, audits + 1

    setattr(audit.Auditor, "_audit", timed)  # noqa: B010 - hidden from the type checker
    try:
        engine = Engine(tokenizer, turns)
        tasks = [Task(f"Find out about fox {number}.", id=f"t{number}") for number in range(episodes)]
        began = time.process_time()
        run = asyncio.run(rollout(build, tasks, client=engine, tokenizer=tokenizer, concurrency=64))
        whole = time.process_time() - began
    finally:
        setattr(audit.Auditor, "_audit", inner)  # noqa: B010
    return {
        "episodes": len(run),
        "turns": sum(len(episode.tree) for episode in run),
        "audits": audits,
        "cpu_seconds": round(whole, 2),
        "audit_seconds": round(spent, 3),
        "share": round(spent / whole, 4),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the cost of auditing conversations.")
    parser.add_argument("tokenizer", metavar="TOKENIZER")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=8)
    options = parser.parse_args()
    print(json.dumps(measure(tokenizer_from(options.tokenizer), options.episodes, options.turns)))


if __name__ == "__main__":
    main()
