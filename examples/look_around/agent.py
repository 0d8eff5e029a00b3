#!/usr/bin/env python3
"""An agent that looks: its tool returns pictures, and the answer is in them.

    lab/serve tiny-qwen3-vl
    python examples/look_around/agent.py --directory runs/pictures

A row of ten places, each painted in one colour. The question names a place; the agent calls `look` and says the colour
that it sees. Every picture is part of the record, and `verify` covers it.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import random
from pathlib import Path

from PIL import Image
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from strands_sglang import Limits, SGLangClient, Task, rollout

COLOURS = {
    "red": (220, 30, 30),
    "green": (20, 180, 40),
    "blue": (40, 60, 220),
    "yellow": (240, 220, 30),
    "white": (250, 250, 250),
    "black": (10, 10, 10),
}


def world(seed: int) -> list[str]:
    """Return the colours of the ten places of a world."""
    return random.Random(seed).choices(list(COLOURS), k=10)


def build(task, model):
    """Return the agent of one episode, with a tool that knows its world."""
    places = world(task.data["world"])

    @tool
    def look(place: int) -> dict:
        """Look at a place.

        Args:
            place: Its number, 0 to 9.
        """
        if not 0 <= place < len(places):
            return {"status": "error", "content": [{"text": f"there is no place {place}"}]}
        picture = io.BytesIO()
        Image.new("RGB", (96, 80), COLOURS[places[place]]).save(picture, "PNG")
        return {
            "status": "success",
            "content": [{"image": {"format": "png", "source": {"bytes": picture.getvalue()}}}],
        }

    return Agent(model=model, tools=[look], callback_handler=None, conversation_manager=NullConversationManager())


def reward(episode):
    """Return 1.0 if the answer names the colour."""
    return float(episode.text.rstrip(".").endswith(episode.task.answer))


def tasks(count: int) -> list[Task]:
    """Return one question in each of so many worlds."""
    made = []
    for seed in range(count):
        place = random.Random(-seed - 1).randrange(10)
        answer = world(seed)[place]
        made.append(Task(f"Which colour is at {place}?", answer=answer, data={"world": seed}, id=f"world-{seed}"))
    return made


async def main() -> None:
    """Run the tasks, and print what was seen and answered."""
    parser = argparse.ArgumentParser(description="An agent whose tool returns pictures.")
    parser.add_argument("--base-url", default="http://localhost:30000")
    parser.add_argument("--tokenizer", help="default: the model that the server has")
    parser.add_argument("--directory", type=Path, help="where to record the run")
    parser.add_argument("--count", type=int, default=8)
    options = parser.parse_args()
    client = SGLangClient(options.base_url)
    served = await client.model_info() or {}
    run = await rollout(
        build,
        tasks(options.count),
        client=client,
        tokenizer=options.tokenizer or served["model_path"],
        reward=reward,
        limits=Limits(max_turns=4, max_new_tokens=40, tool_timeout=10),
        directory=options.directory,
    )
    for episode in run:
        images = [image for branch in episode.trajectories for image in branch.images]
        seen = ", ".join(f"{image.positions} positions at {image.start}" for image in images)
        print(f"{episode.id}: {episode.text!r}, reward {episode.reward}, images: {seen or 'none'}")


if __name__ == "__main__":
    asyncio.run(main())
