#!/usr/bin/env python3
"""Measures sessions of the gateway: CPU of a turn beside that of a Strands agent, delays of the event loop, and memory.

    python bench/gateway.py [--sessions 256] [--turns 40] [--kilobytes 78] [--rounds 3] [--json]
    python bench/gateway.py --engine [--rounds 5] [--json]      # on the lab's SGLang server

The same conversation is run by `rollout` in two ways, on an engine within the process that answers at once: by Strands
agents, and by agents in another process (pinned to another core) that send their whole history over HTTP with each
call, as coding agents do. System prompt, tools, calls and results are the same, so the prompts have the same tokens;
the template (Qwen3's) renders all 24 tools. Only the CPU time of this process counts. A task of the event loop measures
how late it is called before the last turn; *own* is the part in which the thread of the event loop used the CPU, the
rest is the machine's. Memory is what this process holds when all sessions are at their last turn, less what it held
before, in the first round.

With `--engine`, 64 agents in another process answer four questions each with the lab's tool policy, all at the same
time and greedy: through sessions of the gateway, on SGLang's own Chat Completions, and, as the bound of both, as
prepared bytes: the recorded requests of the gateway to `/generate`, sent again by a client that does nothing else. They
alternate on an engine whose prefix cache is emptied before each run.

Prints a table, or one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
from strands import tool

from agent_script import WORDS, script, tokenizer_from
from loopback import stay_on
from played_agent import TOKENIZER, ScriptedEngine, build, questions, resident_bytes
from strands_sglang.gateway import RemoteAgent
from strands_sglang.runs import RunOptions, rollout
from suite.long_jobs import Watch, percentile
from suite.stats import Spread, alternate, ratio

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from support.families import tokenizer_path

FAMILY = "qwen3"
TOOLS = 24
DESCRIPTION = "Work out one operation on two whole numbers."


def system_prompt(kilobytes: float) -> str:
    """Return a system prompt with which the first request has the size."""
    size = int(kilobytes * 1000) - len(json.dumps(tools(kilobytes))) - 150
    text = " ".join(WORDS)
    return " ".join([text] * (1 + size // len(text)))[:size]


def tools(kilobytes: float) -> list[dict[str, Any]]:
    """Return the tools as agents over HTTP send them; only the calculator is called."""
    text = " ".join(WORDS * 20)[: int(kilobytes * 1000 / 2 / TOOLS) - 240]
    expression = {"type": "string", "description": "Such as `615 * 17`."}
    parameters = {"type": "object", "properties": {"expression": expression}, "required": ["expression"]}
    names = ["calculator", *(f"tool_{number}" for number in range(1, TOOLS))]
    about = f"{DESCRIPTION} {text}"
    return [
        {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}
        for name in names
    ]


def result_of(expression: str) -> str:
    """Return what the calculator says."""
    return str(len(expression) * 1009)


def strands_tools(kilobytes: float) -> list[Any]:
    """Return the same tools for agents within the process."""

    async def call(expression: str) -> str:
        return result_of(expression)

    functions = (one["function"] for one in tools(kilobytes))
    return [
        tool(name=one["name"], description=one["description"], inputSchema={"json": one["parameters"]})(call)
        for one in functions
    ]


async def play(http: aiohttp.ClientSession, order: dict[str, Any], last: asyncio.Event, say: Any) -> None:
    """Run one agent: call, run the tools, and call again, until there is an answer; wait before the last call."""
    messages: list[Any] = [{"role": "system", "content": order["system"]}, {"role": "user", "content": order["prompt"]}]
    took: list[float] = []
    for turn in range(order["turns"]):
        if turn == order["turns"] - 1:
            say({"at_last": order["id"]})
            await last.wait()
        sent = await ask(http, order, messages, took)
        message = messages[-1]
        for call in message.get("tool_calls") or ():
            expression = json.loads(call["function"]["arguments"])["expression"]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result_of(expression)})
    say({"id": order["id"], "text": message["content"], "took": took, "bytes": sent})


async def converse(http: aiohttp.ClientSession, order: dict[str, Any], say: Any) -> None:
    """Run one agent that answers questions one after the other with a calculator, which really calculates."""
    sys.path.append(str(Path(__file__).resolve().parent.parent / "lab" / "tool_policy"))
    import task

    messages: list[Any] = [{"role": "system", "content": order["system"]}]
    took: list[float] = []
    for question in order["questions"]:
        messages.append({"role": "user", "content": question})
        for _ in range(3):
            sent = await ask(http, order, messages, took)
            calls = messages[-1].get("tool_calls") or ()
            if not calls:
                break
            for call in calls:
                # The policy writes malformed calls, too.
                result = task.calculate(str(json.loads(call["function"]["arguments"]).get("expression", "")))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    say({"id": order["id"], "text": messages[-1].get("content") or "", "took": took, "bytes": sent})


async def ask(http: aiohttp.ClientSession, order: dict[str, Any], messages: list[Any], took: list[float]) -> int:
    """Make one call and append the reply and its seconds; return the bytes that were sent."""
    body = json.dumps({"model": "policy", "messages": messages, "tools": order["tools"], **order.get("more", {})})
    began = time.monotonic()
    headers = {"Content-Type": "application/json"}
    async with http.post(f"{order['url']}/v1/chat/completions", data=body, headers=headers) as response:
        answer = await response.json()
        assert response.status == 200, answer
    took.append(time.monotonic() - began)
    messages.append(answer["choices"][0]["message"])
    return len(body)


async def told(work: Coroutine[Any, Any, None], id: str, say: Any) -> None:
    """Run an agent; tell its error, for which nobody else waits."""
    try:
        await work
    except Exception as error:
        say({"id": id, "error": f"{type(error).__name__}: {error}"})


async def drive() -> None:
    """Run agents as told on the standard input: one JSON object in a line each."""
    reader, running, last = asyncio.StreamReader(1 << 24), set[asyncio.Task[None]](), asyncio.Event()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def say(data: Any) -> None:
        print(json.dumps(data), flush=True)

    shared: dict[str, Any] = json.loads(await reader.readline())
    if "turns" in shared:  # else the engine needs every core
        stay_on(0)
    say({"ready": True})
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(600)) as http:
        while line := await reader.readline():
            order = json.loads(line)
            if order.get("go"):
                last.set()
                continue
            order = {**shared, **order}
            work = converse(http, order, say) if "questions" in order else play(http, order, last, say)
            running.add(asyncio.ensure_future(told(work, order["id"], say)))
        await asyncio.gather(*running)


class Driver:
    """The process that runs the agents."""

    def __init__(self, process: asyncio.subprocess.Process, count: int) -> None:
        self.process, self._count = process, count
        self.ready = asyncio.Event()
        self._ended: dict[str, asyncio.Future[str]] = {}
        self.took: list[float] = []
        self.bytes = self._waiting = self.resident = 0
        self.on_last: Callable[[], object] = lambda: None
        """Called when all agents are at their last turn."""

    def send(self, data: Any) -> None:
        """Tell the process something."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(data).encode() + b"\n")

    async def listen(self) -> None:
        """Read what the process says."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            said = json.loads(line)
            if "ready" in said:
                self.ready.set()
                continue
            if "at_last" in said:
                self._waiting += 1
                if self._waiting == self._count:
                    self.on_last()
                    gc.collect()
                    self.resident = resident_bytes()
                    self.send({"go": True})
                continue
            if "error" in said:
                self._ended.pop(said["id"]).set_exception(RuntimeError(said["error"]))
                continue
            self.took += said["took"]
            self.bytes = said["bytes"]
            self._ended.pop(said["id"]).set_result(said["text"])
        for left in self._ended.values():
            left.set_exception(RuntimeError("the process of the agents has ended"))

    async def run(self, id: str, **order: Any) -> str:
        """Run an agent; return its answer."""
        self._ended[id] = asyncio.get_running_loop().create_future()
        self.send({"id": id, **order})
        return await self._ended[id]


@asynccontextmanager
async def driver(count: int, **shared: Any) -> AsyncIterator[Driver]:
    """Start the process that runs the agents."""
    pipe, here = asyncio.subprocess.PIPE, Path(__file__)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(here), "--drive", stdin=pipe, stdout=pipe, limit=1 << 24
    )
    made = Driver(process, count)
    made.send(shared)
    listening = asyncio.ensure_future(made.listen())
    try:
        await asyncio.wait_for(made.ready.wait(), 300)
        yield made
    finally:
        listening.cancel()
        assert process.stdin is not None
        process.stdin.close()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), 10)


async def over_http(tokenizer: Any, engine: Any, sessions: int, options: argparse.Namespace) -> dict[str, float]:
    """Run agents in another process; return what it cost."""
    shared = {"turns": options.turns, "system": system_prompt(options.kilobytes), "tools": tools(options.kilobytes)}
    gc.collect()
    before = resident_bytes()
    async with driver(sessions, **shared) as agents:

        class Played(RemoteAgent):
            def __init__(self, task: Any) -> None:
                self.task = task

            async def run(self, session: Any, base_url: str, socket: Path | None) -> str:
                return await agents.run(self.task.id, url=base_url, prompt=self.task.prompt)

        watch = Watch()
        watching = asyncio.ensure_future(watch.measure())
        agents.on_last = watching.cancel  # what is measured next takes long itself
        found = await measured(lambda task, model: Played(task), tokenizer, engine, sessions, options)
    took = sorted(agents.took)
    return {
        **found,
        "late_p50_ms": percentile(watch.late, 0.5),
        "late_own_max_ms": percentile(watch.own, 1),
        "late_p99_ms": percentile(watch.late, 0.99),
        "late_own_p99_ms": percentile(watch.own, 0.99),
        "answer_p50_ms": 1e3 * took[len(took) // 2],
        "answer_p99_ms": 1e3 * took[int(0.99 * len(took))],
        "last_request_kb": agents.bytes / 1e3,
        "kb_per_session": (agents.resident - before) / 1e3 / sessions,
    }


async def in_process(tokenizer: Any, engine: Any, sessions: int, options: argparse.Namespace) -> dict[str, float]:
    """Run Strands agents; return what it cost."""
    system, given = system_prompt(options.kilobytes), strands_tools(options.kilobytes)

    def make(task: Any, model: Any) -> Any:
        return build(task, model, given, system_prompt=system)

    return await measured(make, tokenizer, engine, sessions, options)


async def measured(
    make: Callable[[Any, Any], Any], tokenizer: Any, engine: Any, sessions: int, options: argparse.Namespace
) -> dict[str, float]:
    """Run sessions, all at the same time; return the CPU of a turn and the tokens of a session."""
    began, cpu = time.monotonic(), time.process_time()
    run = await rollout(
        make,
        questions(sessions),
        tokenizer=tokenizer,
        client=engine,
        concurrency=sessions,
        on_hidden_tools="allow",
    )
    cpu, wall = time.process_time() - cpu, time.monotonic() - began
    turns = options.turns * sessions
    assert run.metrics.turns == turns and run.metrics.failures == 0, run.metrics
    joins = {turn.join.value for episode in run for turn in episode.tree}
    assert joins <= {"root", "proved", "kept"}, joins
    return {
        "ms_per_turn": 1e3 * cpu / turns,
        "turns_per_second": turns / wall,
        "first_prompt_tokens": float(len(run[0].tree[0].context)),
        "tokens_per_session": sum(sum(map(len, episode.trajectories)) for episode in run) / sessions,
    }


def on_script(options: argparse.Namespace) -> dict[str, Any]:
    """Measure both ways alternately, after a small round that does not count."""
    stay_on(1)
    tokenizer = tokenizer_from(options.tokenizer or tokenizer_path(FAMILY))
    turns_script = script(tokenizer, options.tokens)
    ways = {"gateway": over_http, "strands": in_process}

    def run(way: str, number: int, sessions: int = options.sessions) -> dict[str, float]:
        engine = ScriptedEngine(turns_script, options.turns - 1)
        return asyncio.run(ways[way](tokenizer, engine, sessions, options))

    for way in ways:
        run(way, 0, min(8, options.sessions))
    found = alternate(["strands", "gateway"], options.rounds, run, warm_up=False)
    tokens = {tuple(found[way][name]) for way in ways for name in ("first_prompt_tokens", "tokens_per_session")}
    assert len(tokens) == 2, f"the prompts of both ways must have the same tokens, got {tokens}"
    made: dict[str, Any] = {
        way: {name: Spread.of(values).to_json() for name, values in figures.items()} for way, figures in found.items()
    }
    made["gateway"]["kb_per_session"] = found["gateway"]["kb_per_session"][0]
    made["over_strands"] = ratio(found["gateway"]["ms_per_turn"], found["strands"]["ms_per_turn"]).to_json()
    return made


async def on_engine(rounds: int) -> dict[str, Any]:
    """Measure on the lab's engine."""
    from strands_sglang import SGLangClient
    from suite.against_engine import ENGINE_FLAGS, job
    from suite.processes import Engine
    from suite.recorder import Recorder, conversations, replay

    episodes = job(str(TOKENIZER))
    asked = {f"t{n}-{s}": one for n, one in enumerate(episodes["asked"]) for s in range(episodes["samples"])}
    sampling = episodes["sampling"]
    greedy = {"temperature": sampling["temperature"], "max_tokens": sampling["max_new_tokens"]}
    shared = {"system": episodes["system"], "tools": tools(20)[:1], "more": greedy}
    tokenizer = tokenizer_from(str(TOKENIZER))

    async def gateway(agents: Driver, url: str) -> dict[str, float]:
        class Asked(RemoteAgent):
            def __init__(self, id: str) -> None:
                self.id = id

            async def run(self, session: Any, base_url: str, socket: Path | None) -> str:
                return await agents.run(self.id, url=base_url, questions=asked[self.id])

        began, cpu = time.monotonic(), time.process_time()
        run = await rollout(
            lambda task, model: Asked(task.id),
            [{"prompt": questions[0], "id": id} for id, questions in asked.items()],
            tokenizer=tokenizer,
            client=SGLangClient(url, max_connections=1024),
            concurrency=len(asked),
            sampling_params=sampling,
            on_hidden_tools="allow",
            options=RunOptions(preflight=False),
        )
        cpu, wall = time.process_time() - cpu, time.monotonic() - began
        assert run.metrics.failures == 0, run.metrics
        return {
            "wall_s": wall,
            "turns": float(run.metrics.turns),
            "sampled": float(sum(episode.metrics.sampled_tokens for episode in run)),
            "cpu_ms": 1e3 * cpu / run.metrics.turns,
        }

    async def chat(agents: Driver, url: str) -> dict[str, float]:
        began, agents.took = time.monotonic(), []
        await asyncio.gather(*(agents.run(id, url=url, questions=questions) for id, questions in asked.items()))
        return {"wall_s": time.monotonic() - began, "turns": float(len(agents.took))}

    async def with_agents(work: Any, url: str) -> dict[str, float]:
        async with driver(0, **shared) as agents:
            measured: dict[str, float] = await work(agents, url)
            return measured

    def run(way: str, number: int) -> dict[str, float]:
        engine.flush_cache()
        if way == "bare":
            seconds, sampled = asyncio.run(replay(engine.url, prepared))
            return {"wall_s": seconds, "sampled": float(sampled), "turns": float(sum(map(len, prepared)))}
        return asyncio.run(with_agents(gateway if way == "gateway" else chat, engine.url))

    def measure() -> dict[str, dict[str, list[float]]]:
        return alternate(["bare", "gateway", "chat"], rounds, run, warm_up=False)  # recording was the warm-up

    with Engine(*ENGINE_FLAGS) as engine:
        await asyncio.to_thread(run, "chat", 0)
        with Recorder(engine.url) as recorder:
            engine.flush_cache()
            await asyncio.to_thread(asyncio.run, with_agents(gateway, recorder.url))
        prepared = [[one.request for one in chain] for chain in conversations(recorder.exchanges)]
        found = await asyncio.to_thread(measure)
    bare = found["bare"]["wall_s"]
    return {
        way: {name: Spread.of(values).to_json() for name, values in figures.items()}
        | {"wall_over_bare": ratio(figures["wall_s"], bare).to_json()}
        for way, figures in found.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sessions", type=int, default=256)
    parser.add_argument("--turns", type=int, default=40, help="at least 2")
    parser.add_argument("--kilobytes", type=float, default=78, help="size of the first request")
    parser.add_argument("--tokens", type=int, default=64, help="sampled tokens per turn")
    parser.add_argument("--tokenizer", help=f"a folder; default: that of {FAMILY}")
    parser.add_argument("--engine", action="store_true", help="64 sessions on the lab's engine")
    parser.add_argument("--rounds", type=int, help="runs in each way; default: 1, and 5 on the engine")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--drive", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        return asyncio.run(drive())
    options.rounds = options.rounds or (5 if options.engine else 1)
    logging.disable(logging.WARNING)  # the policy's template renders no tools, which is logged every time
    found = asyncio.run(on_engine(options.rounds)) if options.engine else on_script(options)
    if options.json:
        print(json.dumps(found))
        return None
    for way, figures in found.items():
        print(way)
        for name, value in figures.items() if "median" not in figures else [("", figures)]:
            print(f"{name:>22}{value['median'] if isinstance(value, dict) else value:>12,.3f}")
    return None


if __name__ == "__main__":
    main()
