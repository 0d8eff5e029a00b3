"""A conversation between the lab's tool policy and a simulated user on another model, as a program that kills itself.

python tests/support/user_simulation.py http://127.0.0.1:30000 openai runs/one --kill-after 3
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a program has only its own folder on the path

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.runs import Limits, RunResult, Task, rollout
from support.rollout_agent import TOKENIZER, TURNS, agent_for

ROUNDS = 3
TASKS = [Task("Compute 600 * 17, then - 88.", id="a"), Task("Compute 601 * 17, then - 88.", id="b")]
SETTINGS: dict[str, Any] = {
    "tokenizer": TOKENIZER,
    "limits": Limits(max_turns=ROUNDS * TURNS, max_new_tokens=64),
    "sampling_params": {"temperature": 1.0},
}


def user_on(url: str, kind: str) -> Any:
    """Return a model that samples at a high temperature: asked again, it says something else."""
    if kind == "openai":
        from strands.models.openai import OpenAIModel  # the environments of trainers do not have it

        client = {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0}
        return OpenAIModel(client_args=client, model_id="default", params={"temperature": 1.5, "max_tokens": 400})
    sampling = {"temperature": 1.5, "max_new_tokens": 400}
    return SGLangModel(base_url=url, tokenizer=TOKENIZER, sampling_params=sampling)


def build(task: Task, model: Any, models: Any, **settings: Any) -> Any:
    agent, user = agent_for(model, name="policy", **settings), agent_for(models["user"], name="user", tools=[])

    async def talk() -> str:
        asked = str(task.prompt)
        for _ in range(ROUNDS):
            reply = str(await agent.invoke_async(asked, limits={"turns": TURNS})).strip()
            said = str(await user.invoke_async(f"Compute 7 + {len(reply)}.")).strip()
            asked = f"Compute {100 + sum(map(ord, said)) % 900} * 17, then - 88."
        return reply

    return talk, agent


async def converse(url: str, kind: str, directory: Path, tasks: int = len(TASKS), **settings: Any) -> RunResult:
    async with SGLangClient(url, retry_delay=0.1) as client:
        return await rollout(
            build,
            TASKS[:tasks],
            client=client,
            directory=directory,
            models={"user": user_on(url, kind)},
            **SETTINGS,
            **settings,
        )


def kill_after(count: int) -> None:
    """Kill this process as soon as so many events of it are on disk."""
    put, written = LedgerWriter._put, 0

    def counting(writer: LedgerWriter, events: list[bytes]) -> None:
        nonlocal written
        for event in events:
            put(writer, [event])
            written += 1
            if written == count:
                os.kill(os.getpid(), signal.SIGKILL)

    LedgerWriter._put = counting  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("kind", choices=["openai", "sglang"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kill-after", type=int, default=0)
    parser.add_argument("--tasks", type=int, default=len(TASKS))
    given = parser.parse_args()
    if given.kill_after:
        kill_after(given.kill_after)
    asyncio.run(converse(given.url, given.kind, given.directory, given.tasks))
