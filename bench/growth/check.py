"""Compares the simulation with real runs on this machine.

`rollout` runs in one process, over HTTP, on a loopback server that answers after a fixed time; tools take a fixed time,
too. The simulation gets the same numbers, and the CPU coefficients of `coefficients.json`. With few episodes, both are
limited by waiting; with many, by the core of the process. Other programs on the machine take a part of that core: the
simulated core is as fast as the part that the process really got.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from agent_script import TOOL, tokenizer_from
from growth.coefficients import Coefficients
from growth.model import Engines, Workload
from growth.simulation import Simulation
from growth.speed import Speed
from loopback_process import AgentLoopback
from played_agent import questions
from strands_sglang import SGLangClient
from strands_sglang.runs import rollout

TURNS, TOKENS, LATENCY, TOOL_SECONDS = 8, 64, 0.5, 0.3


@tool(name=TOOL)
async def calculator(expression: str) -> str:
    """Work out one operation.

    Args:
        expression: Such as `615 * 17`.
    """
    await asyncio.sleep(TOOL_SECONDS)
    return str(len(expression) * 1009)


def build(task: Any, model: Any) -> Agent:
    """Return the agent of an episode."""
    return Agent(model=model, tools=[calculator], callback_handler=None, conversation_manager=NullConversationManager())


async def real(tokenizer: Any, url: str, episodes: int, seconds: float) -> dict[str, float]:
    """Run episodes for some seconds, always the same number at once; return the rate, the CPU used, and their size."""
    ended: list[tuple[float, float]] = []
    generations = 1 + int(seconds / (TURNS * (LATENCY + TOOL_SECONDS)))
    total = (1 + generations) * episodes
    client, speed = SGLangClient(url, max_connections=episodes), Speed()
    watching = asyncio.ensure_future(speed.watch(0.5))
    run = await rollout(
        build,
        questions(total),
        tokenizer=tokenizer,
        client=client,
        concurrency=episodes,
        on_episode=lambda episode: ended.append((time.perf_counter(), time.process_time())),
    )
    watching.cancel()
    await client.close()
    assert not run.metrics.failures, run.metrics
    # All episodes start at once, so whole generations of them are compared: from the end of the first to the last.
    first, last = ended[episodes - 1], ended[total - 1]
    wall = last[0] - first[0]
    return {
        "turns_per_second": generations * episodes * TURNS / wall,
        "core": (last[1] - first[1]) / wall / speed.slowdown,
        "context": run[0].metrics.prompt_tokens / TURNS,
        "prompt": run[0].metrics.prompt_tokens / TURNS - (TURNS - 1) / 2 * run[0].metrics.tokens / TURNS,
        "tokens": run[0].metrics.tokens,
    }


def simulated(episodes: int, seen: dict[str, float], known: Coefficients, core: float) -> float:
    """Return the turns per second that the simulation gives for the same run.

    Args:
        episodes: Episodes at the same time.
        seen: What `real` returned.
        known: The coefficients.
        core: Speed of the core, as a part of one that is not shared.
    """
    added = max(8, int(seen["tokens"] / TURNS) - TOKENS)
    work = Workload(
        episodes=episodes, turns=TURNS, sampled=TOKENS, result=added, prompt=max(1, int(seen["prompt"])), spread=1e-6
    )
    each = LATENCY / TOKENS
    batch = 4 * episodes
    engines = Engines(1, batch / each, batch, 1e3 * each, 1e12, 10**12)
    slower = {name: getattr(known, name) / core for name in vars(known) if name.startswith("cpu_")}
    simulation = Simulation(
        work, engines, Coefficients(**{**vars(known), **slower}), workers=1, tool_seconds=TOOL_SECONDS, seed=2
    )
    simulation.run(10 * LATENCY)
    return simulation.run(10 * LATENCY + 60).turns_per_second


async def check(tokenizer_path: str, known: Coefficients, *, quick: bool = False) -> list[dict[str, float]]:
    """Return, for several numbers of episodes, the measured and the simulated turns per second."""
    tokenizer, rows = tokenizer_from(tokenizer_path), []
    with AgentLoopback(tokenizer_path, [TURNS - 1], tokens=TOKENS, latency=LATENCY) as server:
        url = server.urls[TURNS - 1]
        await real(tokenizer, url, 4, 1.0)
        for episodes in (4, 12) if quick else (4, 12, 24, 64):
            seen = await real(tokenizer, url, episodes, 1.0 if quick else 8.0)
            waiting = episodes / (LATENCY + TOOL_SECONDS)
            full = seen["turns_per_second"] < 0.7 * waiting  # the core is the limit, not waiting
            rate = simulated(episodes, seen, known, min(1.0, seen["core"]) if full else 1.0)
            rows.append(
                {
                    "episodes": episodes,
                    "measured": round(seen["turns_per_second"], 1),
                    "simulated": round(rate, 1),
                    "error": round(rate / seen["turns_per_second"] - 1, 3),
                    "core": round(seen["core"], 2),
                    "limited_by_core": int(full),
                }
            )
            print(rows[-1], flush=True)
    return rows
