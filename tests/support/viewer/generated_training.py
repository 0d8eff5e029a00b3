"""Trainings as a trainer writes them, `step-000000` and so on, whose reward grows: made in seconds, all proved."""

from __future__ import annotations

import math
import random
import shutil
from pathlib import Path
from typing import Any

from strands_sglang.tokens import Turn
from support.ledger.episodes import END_OF_TURN, Recorder, written_run

BEGAN = 1_800_000_000
STEP_SECONDS = 40
KINDS = ("add", "multiply", "words")


def write_step(
    folder: Path,
    step: int,
    *,
    of: int = 40,
    tasks: int = 6,
    samples: int = 4,
    seed: int = 0,
    best: float = 0.9,
    sealed: bool = True,
    words: str = "",
    tokenizer: str | None = None,
) -> Path:
    """Write the run of one step. `best`: mean reward that a training of `of` steps comes near to."""
    rng = random.Random(f"{seed}/{step}")
    path = folder / f"step-{step:06d}"
    learnt = 1 - math.exp(-3 * step / max(of, 1))
    about: dict[str, Any] = {"created": BEGAN + STEP_SECONDS * step, "samples_per_task": samples}
    about |= {} if tokenizer is None else {"tokenizer": tokenizer}
    with written_run(path, sealed=sealed, **about) as writer:
        for number in range(tasks):
            kind = KINDS[number % len(KINDS)]
            likely = min(0.98, max(0.02, best * learnt + 0.08 - 0.16 * (number % len(KINDS)) + rng.gauss(0, 0.06)))
            for sample in range(samples):
                right = rng.random() < likely
                prompt = f"{words}What is {number + 3} times {number + 11}, minus {sample % 1}? Use the calculator."
                recorder = Recorder(writer.write, task=f"{kind}-{number}", sample=sample, prompt=prompt)
                _episode(recorder, rng, step, learnt, right, number)
    return path


def _episode(recorder: Recorder, rng: random.Random, step: int, learnt: float, right: bool, number: int) -> None:
    turn: Turn | None = None
    turns = 1 + rng.randrange(2) + (rng.random() > learnt)
    version, failed = f"step-{step}", 0
    sampled = cached = 0
    for at in range(turns):
        context = [rng.randrange(1000, 90_000) for _ in range(30 if turn is None else 9)]
        count = rng.randrange(6, 14) + round(12 * learnt)
        ids = [*(rng.randrange(1000, 90_000) for _ in range(count)), END_OF_TURN]
        old = f"step-{max(0, step - 1)}" if at == 0 and rng.random() < 0.2 else version
        hit = round((30 if turn is None else turn.end) * (0.35 + 0.4 * learnt))
        detail = {"cached_tokens": hit}
        turn = recorder.call(turn, context=context, sampled=ids, versions=[(old, 0, len(ids))], detail=detail)
        cached += hit
        sampled += len(ids)
        if at < turns - 1:
            wrong = rng.random() > 0.6 + 0.4 * learnt
            failed += wrong
            outcome = "error" if wrong else "result"
            recorder.tool(f"call-{at}", "calculator", {"expression": f"{at} * 17"}, outcome=outcome)
    reward = 1.0 if right else 0.2 * (rng.random() < 0.3)
    recorder.reward(round(reward, 2))
    ended = "answered" if right or rng.random() < 0.5 + 0.5 * learnt else rng.choice(("turn_truncated", "turn_limit"))
    if rng.random() < 0.01:
        ended = "engine_error"
    tree = recorder.tree
    prompt = sum(one.sampled_start for one in tree.turns)
    seconds = 1.5 + rng.random() + sampled / 40
    metrics: dict[str, float] = {"prompt_tokens": prompt, "cached_tokens": cached, "tool_calls": turns - 1}
    metrics |= {"tool_errors": failed, "seconds": seconds}
    metrics |= {"engine_seconds": seconds * 0.7, "tool_seconds": 0.05 * (turns - 1)}
    said = (
        f"{number + 3} times {number + 11} is {(number + 3) * (number + 11) + (0 if right else rng.randrange(1, 90))}."
    )
    recorder.end(ended, text=said, time=BEGAN + STEP_SECONDS * step + rng.random() * 30, metrics=metrics)


def write_whole_training(folder: Path, *, first: int = 0) -> Path:
    """Write a training in one run, as slime does: two groups, over three weight versions, and two evaluations.

    `first`: number in the first question, so that trainings with another one ask other questions.
    """
    with written_run(folder) as writer:
        for number, names in enumerate((("default", "1"), ("1", "2"))):
            asked = [(f"g{number}", sample, f"{number + first} + 1?", name) for sample, name in enumerate(names)]
            again = f".{number}" if number else ""
            for task, sample, prompt, name in (*asked, (f"eval.77{again}", 0, "7 + 7?", names[0])):
                recorder = Recorder(writer.write, task=task, sample=sample, prompt=prompt)
                recorder.call(None, context=[1], sampled=[2], versions=[(name, 0, 1)])
                recorder.reward(1.0 if task.startswith("eval") else float(sample))
                recorder.end(text=f"It is {number}.")
    return folder


def write_training(folder: Path, steps: int, *, distinct: int | None = None, **options: Any) -> Path:
    """Write a training of so many steps. `distinct`: only so many are generated, the others are copies of these."""
    folder.mkdir(parents=True, exist_ok=True)
    made = steps if distinct is None else min(distinct, steps)
    for number in range(made):
        write_step(folder, number * steps // made, of=steps, **options)
    for step in range(steps):
        path = folder / f"step-{step:06d}"
        if not path.exists():
            shutil.copytree(folder / f"step-{(step * made // steps) * steps // made:06d}", path)
    return folder
