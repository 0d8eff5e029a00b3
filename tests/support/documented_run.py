"""The runs that the documentation shows: twelve episodes of three tasks, recorded with a scripted engine.

`tests/cli/test_documented.py` runs the commands of docs/cli.md on the first and compares their output. `record` makes
the one that the commands of all pages read.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from strands_sglang import SGLangModel
from strands_sglang.engine import Generation
from strands_sglang.runs import Limits, RunResult, rollout
from strands_sglang.trainers.exports import write_jsonl
from support.families import tokenizer_path
from support.rollout.scripts import PromptEngine
from support.scripted_engine import EngineCall, Reply

FAMILY = "qwen3"
TOKENIZER = tokenizer_path(FAMILY)
NUMBERS = (615, 616, 617)
DIVIDES = {(615, 2), (616, 0), (616, 3)}
"""Tasks and samples in which the model divides, which the calculator cannot do."""


@tool
def calculator(expression: str) -> str:
    """Compute one operation on two integers.

    Args:
        expression: Such as `615 * 17`.
    """
    left, operator, right = expression.split()
    return str({"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[operator](int(left), int(right)))


def build(task: Any, model: Any) -> Agent:
    manager = NullConversationManager()
    return Agent(model=model, tools=[calculator], callback_handler=None, conversation_manager=manager)


def reward(episode: Any) -> dict[str, float]:
    right = float(str(episode.task.answer) in episode.text)
    return {"reward": right, "short": float(len(episode.text) < 40)}


def script(prompt: str, before: int) -> Reply:
    """Return what the model samples: a call, then an answer."""
    number = int(re.findall(r"Compute (\d+)", prompt)[0])
    results = re.findall(r"<tool_response>\s*(.*?)\s*</tool_response>", prompt, re.DOTALL)
    if not results:
        sign = "/" if (number, before) in DIVIDES else "*"
        call = f'{{"name": "calculator", "arguments": {{"expression": "{number} {sign} 17"}}}}'
        return Reply(f"<tool_call>\n{call.replace(': ', ':') if before == 1 else call}\n</tool_call>", version="v1")
    return Reply(f"The answer is {results[-1]}." if results[-1].isdigit() else "I do not know.", version="v1")


class DocumentedEngine(PromptEngine):
    """Draws logprobs as a model has them: most tokens are certain."""

    def __init__(self) -> None:
        super().__init__(script, FAMILY)

    def _generation(self, call: EngineCall, reply: Reply) -> Generation:
        made = super()._generation(call, reply)
        seed = hashlib.blake2b(f"{call.asked['prompt']}{call.asked['nth']}".encode()).hexdigest()
        rng = random.Random(seed)
        logprobs = np.array([-(rng.expovariate(2.0) ** 2) for _ in made.token_ids], np.float32).astype(np.float64)
        return replace(made, logprobs=array("d", logprobs.tolist()))


def write_documented_run(directory: Path, tokenizer: str) -> None:
    """Record the run of docs/cli.md, one episode at a time, so that it is always the same."""
    _record(directory, tokenizer, [_task(number) for number in NUMBERS])


def record(folder: Path) -> None:
    """Make what the commands of all pages read: `runs/first`, `my_agent.py`, `my_judge.py` and others."""
    tasks = [*(_task(number) for number in NUMBERS), {**_task(4), "id": "sum"}]
    found = _record(folder / "runs" / "first", TOKENIZER, tasks, sampling_params={"temperature": 1.0})
    assert {episode.reward for episode in found} == {0.0, 1.0}
    write_jsonl(found, folder / "trajectories.jsonl")
    for name in ("my_agent", "my_rewards"):
        (folder / f"{name}.py").write_text("from support.documented_run import build, reward\n")
    (folder / "my_judge.py").write_text("from support.documented_run import judged as reward, models\n")


def judged(episode: Any, models: Any) -> dict[str, float]:
    """Score with a judge at hand that is not asked."""
    return {**reward(episode), "judges": len(models)}


def models() -> dict[str, Any]:
    return {"judge": SGLangModel(tokenizer=TOKENIZER, client=DocumentedEngine())}


def _task(number: int) -> dict[str, Any]:
    return {"prompt": f"Compute {number} * 17.", "answer": number * 17, "id": f"mul-{number}"}


def _record(directory: Path, tokenizer: str, tasks: list[dict[str, Any]], **options: Any) -> RunResult:
    return asyncio.run(
        rollout(
            build, tasks, client=DocumentedEngine(), tokenizer=tokenizer, reward=reward, samples_per_task=4,
            concurrency=1, limits=Limits(max_turns=20), directory=directory, **options,
        )
    )  # fmt: skip
