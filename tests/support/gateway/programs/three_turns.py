"""A run of an agent in another process with three turns, which may kill itself: `play`, `killed`.

python three_turns.py DIRECTORY sampling|delivery TURN     while it samples a turn, or when it is recorded and not sent
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from strands_sglang import rollout
from strands_sglang.gateway import AgentProcess, server
from strands_sglang.ledger import Ledger
from strands_sglang.runs import RunResult
from support.families import tokenizer
from support.scripted_engine import Reply, ScriptedEngine, thought, tool_call

PROGRAM = str(Path(__file__).with_name("calculator.py"))


def script(prompt: str) -> str:
    done = prompt.count("<tool_response>")
    if done == 2:
        return thought("Done.", f"It is {prompt.rpartition('<tool_response>')[2].split()[0]}.")
    return thought(f"Step {done}.", tool_call("calculator", expression=["600 * 17", "10200 - 88"][done]))


async def play(directory: Path, dies_in: int = 0, **env: str) -> tuple[RunResult, ScriptedEngine]:
    """Run it; `dies_in`: the turn in which it kills itself."""
    made = 0

    def answer(prompt: str) -> Reply:
        nonlocal made
        made += 1
        return Reply(script(prompt), before=die if made == dies_in else None)

    def build(task: Any, model: Any) -> AgentProcess:
        return AgentProcess([sys.executable, PROGRAM, task.prompt], env=env)

    engine = ScriptedEngine(tokenizer("qwen3"), answer)
    run = await rollout(
        build, ["Compute 600 * 17, then - 88."], tokenizer=tokenizer("qwen3"), client=engine, directory=directory
    )
    return run, engine


async def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(directory: Path, where: str, turn: int) -> None:
    """Run it in a process of its own that kills itself."""
    tests = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests.parent / "src"), str(tests)])}
    done = subprocess.run([sys.executable, __file__, str(directory), where, str(turn)], env=env, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def main() -> None:
    directory, where, turn = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    sent, answered = 0, server._answered

    async def sending(request: Any, protocol: Any, call: Any, exchange: Any) -> Any:
        nonlocal sent
        sent += 1
        if where == "delivery" and sent == turn:
            await exchange.answer()
            while len(Ledger(directory).episode(Ledger(directory).ids()[0]).tree()) < turn:
                await asyncio.sleep(0.01)
            await die()
        return await answered(request, protocol, call, exchange)

    server._answered = sending
    asyncio.run(play(directory, turn if where == "sampling" else 0))


if __name__ == "__main__":
    main()
