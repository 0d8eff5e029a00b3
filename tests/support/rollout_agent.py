"""An agent with the lab's tool policy, its tasks and its reward, for rollouts: here, and in processes of their own.

    python tests/support/rollout_agent.py http://127.0.0.1:30000 runs/one --tasks 100 --samples 2

As a program it is one runner process. It says how far it is in JSON lines and may be killed at any time.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import logging
import os
import random
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a program has only its own folder on the path


from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.ledger.encoding import trajectory_summary
from strands_sglang.runs import EndReason, Episode, Limits, RunMetrics, RunOptions, Task, rollout
from strands_sglang.tools import PythonSandbox, SandboxLimits
from support.lab_servers import LAB, task

TOKENIZER = str(LAB / "tool_policy" / "canonical")
SAMPLING = {"max_new_tokens": 64, "temperature": 1.0}
TURNS = task.MAX_TOOL_CALLS + 1
"""Turns a question may take."""


@dataclass
class Ways:
    """How the tools of this process behave. No part of the tasks, so that the next process may do otherwise."""

    tool_seconds: float = 0.0
    hold: Path | None = None
    sandbox: PythonSandbox | None = None
    """Where tools do their work; None: in this process."""
    die_in: str = ""
    """Where the process kills itself: "2" in the second call of a tool, "score" when an episode is scored."""
    calls: int = 0


WAYS = Ways()


@tool
async def calculator(expression: str) -> str:
    """Work out one operation on two whole numbers.

    Args:
        expression: Such as `615 * 17`.
    """
    WAYS.calls += 1
    die = str(WAYS.calls) == WAYS.die_in
    if WAYS.tool_seconds:
        await asyncio.sleep(WAYS.tool_seconds if die else random.uniform(0, 2 * WAYS.tool_seconds))
    while WAYS.hold is not None and WAYS.hold.exists():
        await asyncio.sleep(0.02)
    if die:
        os.kill(os.getpid(), signal.SIGKILL)
    answer = task.calculate(expression)
    return answer if WAYS.sandbox is None else (await WAYS.sandbox.run(f"print({answer!r})")).text


def tasks(count: int, seed: int = 0, questions: int = 1) -> list[Task]:
    """Return tasks of so many questions each, asked one after the other."""
    made = []
    for number in range(seed, seed + count):
        asked = [task.sample_task(random.Random(f"{number}/{place}")) for place in range(questions)]
        about = {"questions": [one.question for one in asked]}
        made.append(Task(asked[0].question, answer=asked[-1].answer, data=about, id=f"t{number}"))
    return made


def agent_for(model: SGLangModel, **settings: Any) -> Agent:
    plain = {"tools": [calculator], "callback_handler": None, "conversation_manager": NullConversationManager()}
    return Agent(model=model, **{**plain, **settings})


def build(given: Task, model: SGLangModel) -> Any:
    """Return the agent of an episode; where several questions are asked, a function that asks them."""
    return asking(agent_for(model), given)


def asking(agent: Agent, given: Task) -> Any:
    """Return the agent as it is where it is asked one question, else a function that asks it all of them."""
    questions = given.data["questions"]
    if len(questions) == 1:
        return agent

    async def ask() -> str:
        text = ""
        for question in questions:
            result = await agent.invoke_async(question, limits={"turns": TURNS})
            text = str(result).strip()
        return text

    return ask


def score(episode: Episode) -> float:
    """Return 1.0 where the last words are the right answer to the last question."""
    if WAYS.die_in == "score":
        os.kill(os.getpid(), signal.SIGKILL)
    if episode.end_reason is not EndReason.ANSWERED:
        return 0.0
    return float(episode.text == f"The answer is {episode.task.answer}.")


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run episodes of the tool policy; again with the same directory: on.")
    parser.add_argument("url", help="the server or router")
    parser.add_argument("directory", type=Path, help="of the run")
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--samples", type=int, default=1, help="episodes of each task")
    parser.add_argument("--questions", type=int, default=1, help="questions of each task")
    parser.add_argument("--seed", type=int, default=0, help="the first task")
    parser.add_argument("--concurrency", type=int, default=32, help="episodes at once")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--tool-seconds", type=float, default=0.0, help="what a tool call takes on average")
    parser.add_argument("--seconds", type=float, help="what an episode may take")
    parser.add_argument("--hold", type=Path, help="while this file is there, no tool call comes back")
    parser.add_argument("--bwrap", help="bubblewrap, for tools that work in a sandbox")
    parser.add_argument("--parent", type=int, help="process id of the parent, with which to end (Linux)")
    parser.add_argument("--die-in", default="", help="number of the tool call in which to die of SIGKILL, or 'score'")
    return parser.parse_args(arguments)


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


async def main(options: argparse.Namespace) -> None:
    if options.parent is not None and sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() != options.parent:  # it ended before we asked
            sys.exit(143)
    WAYS.tool_seconds, WAYS.hold, WAYS.die_in = options.tool_seconds, options.hold, options.die_in
    if options.bwrap is not None:
        WAYS.sandbox = PythonSandbox(bwrap=options.bwrap, limits=SandboxLimits(seconds=60))

    def on_metrics(metrics: RunMetrics) -> None:
        say(done=metrics.done - metrics.failures, live=metrics.live, restored=metrics.restored, turns=metrics.turns)

    waits: Any = {"retry_delay": 0.2, "max_retry_delay": 2.0, "max_retries": 300}
    async with SGLangClient(options.url, first_contact=None, **waits) as client:  # it may begin in an outage
        run = await rollout(
            build,
            tasks(options.tasks, options.seed, options.questions),
            tokenizer=TOKENIZER,
            client=client,
            reward=score,
            samples_per_task=options.samples,
            concurrency=options.concurrency,
            limits=Limits(max_turns=TURNS * options.questions, episode_timeout=options.seconds),
            directory=options.directory,
            sampling_params={**SAMPLING, "temperature": options.temperature},
            options=RunOptions(on_metrics=on_metrics, metrics_interval=0.2, stop_if_first_fail=None),
        )
    rids = [
        episode.tree[turn].detail["rid"]
        for episode in run
        for trajectory in episode.trajectories
        for turn in trajectory_summary(trajectory)["trained_turns"]
    ]
    say(
        finished=True,
        episodes=[episode.id for episode in run],
        trained_rids=rids,
        resumed=sum(episode.epoch > 0 for episode in run),
        end_reason=sorted(episode.end_reason.value for episode in run if not episode.end_reason.complete),
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    asyncio.run(main(options_of(sys.argv[1:])))
