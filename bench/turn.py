#!/usr/bin/env python3
"""Measures the cost of a turn in this package as the conversation grows.

    python bench/turn.py TOKENIZER [--turns 128] [--episodes 9]

TOKENIZER is a tokenizer folder or a name on the hub. An agent's loop is simulated without the SDK and without a real
engine: messages are passed to `SGLangModel.stream`, and an engine that answers at once returns tokens. Every turn adds
the same number of new tokens (about 250 of a tool result, 250 sampled), so a cost that depends only on new tokens stays
constant; the ratio is the cost of the last eight turns over that of turns 5 to 12.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import statistics
import time
from array import array
from collections.abc import Mapping
from typing import Any, cast

from agent_script import tokenizer_from
from strands_sglang import Generation, SGLangModel
from strands_sglang.engine import FinishReason, VersionSpan

TOOL: Any = {
    "name": "search",
    "description": "Search for something.",
    "inputSchema": {"json": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}},
}
WORDS = "the quick brown fox jumps over a lazy dog while seven wizards watch it from their old wooden porch "


class AtOnce:
    """An engine that answers at once, always with the same tokens."""

    def __init__(self, tokenizer: Any, tokens: int) -> None:
        call = '<tool_call>\n{"name": "search", "arguments": {"query": "' + WORDS * 40
        words = tokenizer.encode(call, add_special_tokens=False)[: tokens - 12]
        ids = words + tokenizer.encode('"}}\n</tool_call><|im_end|>', add_special_tokens=False)
        self._ids = array("i", ids)
        self._logprobs = array("d", [-0.5] * len(ids))
        self.longest = 0

    async def generate(
        self, input_ids: Any, sampling_params: Mapping[str, Any] | None = None, **others: Any
    ) -> Generation:
        """Return the fixed tokens."""
        self.longest = max(self.longest, len(input_ids))
        count = len(self._ids)
        return Generation(
            array("i", self._ids),
            array("d", self._logprobs),
            FinishReason.STOP,
            self._ids[-1],
            (VersionSpan("1", 0, count),),
            prompt_tokens=len(input_ids),
            cached_tokens=0,
        )


async def play(model: SGLangModel, turns: int, result: str) -> list[float]:
    """Run one episode; return the CPU seconds of each turn."""
    messages: list[Any] = [{"role": "user", "content": [{"text": "Find out about foxes."}]}]
    state: dict[str, Any] = {}
    seconds = []
    with model.episode():
        for _ in range(turns):
            # The SDK passes a new copy each time; the copy is not part of the measured cost.
            handed: Any = copy.deepcopy(messages)
            content: list[Any] = []
            began = time.process_time()
            async for event in cast(Any, model.stream(handed, [TOOL], "You are a helpful agent.", model_state=state)):
                if "toolUse" in (start := event.get("contentBlockStart", {}).get("start", {})):
                    content.append({"toolUse": {**start["toolUse"]}})
                elif content and "contentBlockDelta" in event:
                    content[-1]["toolUse"]["input"] = event["contentBlockDelta"]["delta"]["toolUse"]["input"]
            seconds.append(time.process_time() - began)
            for block in content:
                block["toolUse"]["input"] = json.loads(block["toolUse"]["input"])
            answer = {
                "toolUseId": content[0]["toolUse"]["toolUseId"],
                "status": "success",
                "content": [{"text": result}],
            }
            messages.append({"role": "assistant", "content": content})
            messages.append({"role": "user", "content": [{"toolResult": answer}]})
    return seconds


def _quartile(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=4)[0]


def measure(tokenizer: Any, turns: int = 128, episodes: int = 9) -> dict[str, float]:
    """Return the cost of a turn early and late in an episode, and their ratio."""
    engine = AtOnce(tokenizer, 250)
    model = SGLangModel(tokenizer=tokenizer, client=engine)
    result = tokenizer.decode(tokenizer.encode(WORDS * 40, add_special_tokens=False)[:235])
    runs = [asyncio.run(play(model, turns, result)) for _ in range(episodes)]
    # Within a group of turns the lower quartile excludes short disturbances. The machine's speed may change between
    # groups: each late group is compared with the early one of the next episode, which follows it at once.
    early = [_quartile(run[4:12]) for run in runs]
    late = [_quartile(run[-8:]) for run in runs]
    ratio = statistics.median(before / after for before, after in zip(late, early[1:], strict=False))
    return {
        "turns": turns,
        "tokens": engine.longest,
        "early_ms": round(1000 * statistics.median(early), 3),
        "late_ms": round(1000 * statistics.median(late), 3),
        "ratio": round(ratio, 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description="Measure the cost of a turn in this package as the conversation grows."
    )
    parser.add_argument("tokenizer", metavar="TOKENIZER")
    parser.add_argument("--turns", type=int, default=128)
    parser.add_argument("--episodes", type=int, default=9)
    options = parser.parse_args()
    print(json.dumps(measure(tokenizer_from(options.tokenizer), options.turns, options.episodes)))


if __name__ == "__main__":
    main()
