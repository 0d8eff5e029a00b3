"""A script as a user writes it, for tests that press Ctrl-C: `python interrupted_run.py KIND [DIRECTORY]`.

It says "under way" when the first turn is being sampled, and samples for ever.
"""

from __future__ import annotations

import asyncio
import sys
import time
from importlib import import_module
from typing import Any

from strands import Agent

from strands_sglang.runs import rollout
from support.families import tokenizer
from support.rollout.scripts import FAMILY, PromptEngine


class Endless(PromptEngine):
    """Answers the task "short" at once, and the others never."""

    async def generate(self, input_ids: Any, sampling_params: Any = None, **asked: Any) -> Any:
        if "short" not in self.decode(list(input_ids)):
            print("under way", flush=True)
            await asyncio.sleep(3600)
        return await super().generate(input_ids, sampling_params, **asked)


def build(task: Any, model: Any) -> Agent:
    return Agent(model=model, callback_handler=None)


def slowly_read(path: Any) -> None:
    print("under way", flush=True)
    time.sleep(2)


async def main() -> None:
    if sys.argv[1] == "reading":
        vars(import_module("strands_sglang.runs.runner"))["read_previous_run"] = slowly_read
    engine = Endless(lambda prompt, before: "done")
    directory = sys.argv[2] if len(sys.argv) > 2 else None
    work = rollout(
        build, ["short", "long"], client=engine, tokenizer=tokenizer(FAMILY), directory=directory, concurrency=1
    )
    if sys.argv[1] == "gather":
        await asyncio.gather(work)
    elif sys.argv[1] == "cancel":
        task = asyncio.ensure_future(work)
        await asyncio.sleep(3)
        task.cancel()
        await task
    else:
        await work


if __name__ == "__main__":
    asyncio.run(main())
