#!/usr/bin/env python3
r"""Runs the agent on a few questions without slime, and prints conversations and rewards.

    python examples/slime_math/try_it.py --base-url http://localhost:30000 --tokenizer Qwen/Qwen3-8B
    python examples/slime_math/try_it.py --data aime-2024/aime-2024.jsonl --count 2 --samples 4

Any SGLang server works; a small model on a laptop is enough to check the setup. `--data` takes the same files as
slime: JSON lines with "prompt" (text, or messages) and "label".
"""

from __future__ import annotations

import argparse
import asyncio
import json
from itertools import islice
from pathlib import Path
from typing import Any

from math_agent import LIMITS, build_agent, score

from strands_sglang import Episode, SGLangClient, Task, rollout

QUESTIONS = [
    Task("How many positive integers below 1000 are divisible by 7 and have an odd sum of digits?", answer="72"),
    Task("What is the remainder when 3^{2026} is divided by 1001?", answer="718"),
    Task("Find the sum of all primes p below 100 for which p + 2 is prime too.", answer="236"),
]
"""Built-in questions with their answers."""


def tasks_of(path: Path, count: int) -> list[Task]:
    """Return the first questions of a file in slime's format."""
    tasks = []
    with path.open() as lines:
        for line in islice(lines, count):
            row = json.loads(line)
            prompt = row["prompt"]
            tasks.append(Task(prompt if isinstance(prompt, str) else prompt[-1]["content"], answer=row.get("label")))
    return tasks


def show(episode: Episode) -> None:
    """Print the conversation and the reward of an episode."""
    print(f"\n=== {episode.id}   ended: {episode.end_reason.value}   right answer: {episode.task.answer}")
    for message in episode.messages:
        for block in message["content"]:
            for line in _lines(block):
                print(f"  {message['role']:>9} | {line}")
    if episode.failure is not None:
        print(f"  failed: {episode.failure}")
    print(f"  reward {episode.reward}   {episode.reward_detail.parts}")


def _lines(block: dict[str, Any]) -> list[str]:
    if "text" in block:
        return str(block["text"]).strip().splitlines()
    if "reasoningContent" in block:
        text = block["reasoningContent"].get("reasoningText", {}).get("text", "")
        return [f"(thinks) {line}" for line in text.strip().splitlines()]
    if "toolUse" in block:
        call = block["toolUse"]
        code = call["input"].get("code") if isinstance(call["input"], dict) else None
        return [f"[{call['name']}]", *(f"    {line}" for line in str(code or call["input"]).splitlines())]
    if "toolResult" in block:
        result = block["toolResult"]
        text = "\n".join(part.get("text", "") for part in result["content"])
        return [f"[{result['status']}]", *(f"    {line}" for line in text.splitlines())]
    return [str(block)]


async def main(options: argparse.Namespace) -> None:
    """Run the episodes and print them."""
    tasks = tasks_of(options.data, options.count) if options.data else QUESTIONS[: options.count]
    async with SGLangClient(options.base_url) as client:
        run = await rollout(
            build_agent,
            tasks,
            client=client,
            tokenizer=options.tokenizer,
            reward=score,
            samples_per_task=options.samples,
            limits=LIMITS,
            sampling_params={"temperature": options.temperature, "max_new_tokens": options.max_new_tokens},
            directory=options.directory,
        )
    for episode in run:
        show(episode)
    print(f"\n{len(run)} episodes, mean reward {run.metrics.reward_mean}")


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Run the math agent on a few questions, without slime.")
    parser.add_argument("--base-url", default="http://localhost:30000", help="an SGLang server or router")
    parser.add_argument(
        "--tokenizer", default="Qwen/Qwen3-8B", help="tokenizer of the served model: a folder or a name"
    )
    parser.add_argument("--data", type=Path, help="JSON lines with prompt and label; without it, built-in questions")
    parser.add_argument("--count", type=int, default=3, help="number of questions")
    parser.add_argument("--samples", type=int, default=1, help="episodes per question")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--max-new-tokens", type=int, default=4096, help="maximum number of sampled tokens per turn")
    parser.add_argument("--directory", type=Path, help="directory of the ledger; without it, none is written")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    asyncio.run(main(options_of()))
