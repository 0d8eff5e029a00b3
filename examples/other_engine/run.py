#!/usr/bin/env python3
"""Run the calculator agent on a model of `transformers`, without a server; score the run again, and prove it.

    python=$(scripts/setup-trainers trl)                  # an environment with PyTorch and this package
    $python examples/other_engine/run.py --directory runs/other

`engine.py` is the engine. With the same model as its own teacher, student minus teacher is 0 but for rounding.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path += [str(ROOT), str(ROOT / "lab" / "tool_policy")]

import task as arithmetic  # noqa: E402 - the lab's task uses only the standard library
from examples.calculator.agent import build, reward  # noqa: E402
from examples.other_engine.engine import TransformersEngine  # noqa: E402

from strands_sglang.proof import verify  # noqa: E402
from strands_sglang.runs import Limits, Task, rollout_sync, teacher_logprobs  # noqa: E402


def main() -> None:
    """Run the episodes and print the certificate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(ROOT / "lab" / "tool_policy" / "canonical"))
    parser.add_argument("--directory", default="runs/other")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--samples", type=int, default=2)
    options = parser.parse_args()
    dice = random.Random(1)
    drawn = [arithmetic.sample_task(dice) for _ in range(options.tasks)]
    engine = TransformersEngine(options.model, seed=1)
    rollout_sync(
        build,
        [Task(one.question, answer=one.answer) for one in drawn],
        client=engine,
        tokenizer=options.model,
        reward=reward,
        samples_per_task=options.samples,
        limits=Limits(max_turns=5),
        sampling_params={"max_new_tokens": 64, "temperature": 1.0},
        directory=options.directory,
    )
    print(asyncio.run(teacher_logprobs(options.directory, engine)).text())
    print(verify(options.directory).text())


if __name__ == "__main__":
    main()
