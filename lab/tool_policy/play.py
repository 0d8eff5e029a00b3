#!/usr/bin/env python3
"""Play episodes of the task against a running server, token for token, and say how many end right.

    lab/serve tool-policy &
    lab/tool_policy/play.py http://127.0.0.1:30000 --episodes 128

Needs the standard library alone: the server tokenises what is rendered, and what it sampled is never encoded again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from task import MAX_TOOL_CALLS, Message, calculate, parse_call, render, sample_task, score

ASSISTANT = "<|im_start|>assistant\n"


@dataclass
class Episode:
    """What came of one task.

    Attributes:
        reward: 1.0 if the last text states the right answer.
        turns: The ids sampled in each turn.
        texts: Their text.
    """

    reward: float = 0.0
    turns: list[list[int]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def post(url: str, body: dict[str, Any]) -> Any:
    """Send JSON, get JSON."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)


def encode(server: str, text: str) -> list[int]:
    """The server's tokens of a rendered text."""
    return post(f"{server}/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]


def play(server: str, seed: int, temperature: float) -> Episode:
    """Play one task to its end.

    Args:
        server: The server's address.
        seed: Which task.
        temperature: For sampling.

    Returns:
        The episode.
    """
    task, episode = sample_task(random.Random(seed)), Episode()
    ids = encode(server, render(Message("user", task.question)) + ASSISTANT)
    parameters = {"temperature": temperature, "max_new_tokens": 64}
    for turn in range(MAX_TOOL_CALLS + 1):
        answer = post(f"{server}/generate", {"input_ids": ids, "sampling_params": parameters})
        text, sampled = answer["text"], answer["output_ids"]
        episode.texts.append(text)
        episode.turns.append(sampled)
        expression = parse_call(text)
        if answer["meta_info"]["finish_reason"]["type"] != "stop" or expression is None or turn == MAX_TOOL_CALLS:
            episode.reward = score(task, text)
            break
        # The sampled ids end with <|im_end|>; the template puts a line break after it.
        ids = ids + sampled + encode(server, "\n" + render(Message("tool", calculate(expression))) + ASSISTANT)
    return episode


def main() -> None:
    """Play the episodes and print what came of them."""
    parser = argparse.ArgumentParser(description="Play episodes of the task against a running server.")
    parser.add_argument("server", metavar="URL", nargs="?", default="http://127.0.0.1:30000")
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--at-once", type=int, default=32, help="episodes in flight (default: 32)")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="the first task (default: 0)")
    parser.add_argument("--show", type=int, default=0, help="print this many episodes in full")
    arguments = parser.parse_args()
    server, began = arguments.server.rstrip("/"), time.monotonic()
    with ThreadPoolExecutor(arguments.at_once) as pool:
        jobs = [
            pool.submit(play, server, arguments.seed + number, arguments.temperature)
            for number in range(arguments.episodes)
        ]
        episodes = [job.result() for job in jobs]
    seconds = time.monotonic() - began
    for episode in episodes[: arguments.show]:
        print("\n".join([*episode.texts, f"reward {episode.reward:.0f}", ""]))
    turns = [turn for episode in episodes for turn in episode.turns]
    texts = [text for episode in episodes for text in episode.texts]
    # Decode and encode again: do the same tokens come back?
    with ThreadPoolExecutor(arguments.at_once) as pool:
        again = list(pool.map(lambda text: encode(server, text + "<|im_end|>"), texts))
    drifted = sum(ids != turn for ids, turn in zip(again, turns, strict=True))
    right = sum(episode.reward for episode in episodes)
    print(f"{right:.0f} of {len(episodes)} episodes right ({right / len(episodes):.0%})")
    tokens, pace = sum(map(len, turns)), len(episodes) / seconds
    print(f"{len(turns)} turns, {tokens} tokens, {seconds:.1f} s ({pace:.1f} episodes/s)")
    print(f"{drifted} turns ({drifted / len(turns):.1%}) decode and encode to other tokens")


if __name__ == "__main__":
    try:
        main()
    except urllib.error.HTTPError as error:
        sys.exit(f"play.py: {error.url} answered {error.code}. Give it a server itself: routers pass on no /tokenize.")
    except urllib.error.URLError as error:
        sys.exit(f"play.py: no answer from the server ({error}). Start one with lab/serve tool-policy.")
