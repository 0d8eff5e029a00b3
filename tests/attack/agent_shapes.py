"""What the SDK makes of agents, in random conversations: windows, summaries, graphs, swarms, sessions, agents as tools.

Each episode is a run on a scripted engine. What the engine was sent must be what was recorded, every sampled token is
trained at most once, and the certificate is PROVED.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from strands import Agent
from strands.agent.conversation_manager import (
    ConversationManager,
    NullConversationManager,
    SlidingWindowConversationManager,
    SummarizingConversationManager,
)
from strands.multiagent import GraphBuilder, Swarm
from strands.session import FileSessionManager

from attack.reply_tracking import quiet
from strands_sglang import SGLangModel
from strands_sglang.proof.finding import Verdict
from strands_sglang.proof.verify import verify
from strands_sglang.runs import Limits, Task
from support.rollout.agent_kinds import fragile, plain, read, step
from support.rollout.scripts import PromptEngine, Script, run
from support.scripted_engine import Answer, assert_exact, tool_call

PATIENCE = 60.0
"""Seconds after which an episode is stuck."""
_NAMES = ("ann", "bob", "cec")


def _script(seed: int) -> Script:
    def script(prompt: str, before: int) -> Answer:
        rng = random.Random(f"{seed} {before} {prompt}")
        if "summarize this conversation" in prompt:
            return f"THE SUMMARY {rng.randrange(3)}"
        since = prompt.rpartition("question")[2]
        if since.count("<tool_response>") > 3 or rng.random() < 0.3:
            return rng.choice(["an answer", "an answer", "yes " * rng.randrange(60), ""])
        calls = [tool_call("step", number=rng.randrange(3)), tool_call("read", name=rng.choice("ab"))]
        calls += [tool_call("fragile", number=1), '<tool_call>\n{"name": "step", "arguments": {\n</tool_call>']
        if '"name": "handoff_to_agent"' in prompt:
            calls += [tool_call("handoff_to_agent", agent_name=rng.choice(_NAMES), message=f"question {before}")] * 3
        if '"name": "helper"' in prompt:
            calls += [tool_call("helper", input=f"question {rng.randrange(2)}")] * 3
        return "\n".join(rng.choices(calls, k=rng.choice([1, 1, 2])))

    return script


class Shape:
    """Agents of one episode, drawn by chance."""

    def __init__(self, seed: int, sessions: Path) -> None:
        self.rng, self.sessions = random.Random(seed), sessions
        self.name = self.rng.choice([*SHAPES])
        self.managers = [self._window, self._window, self._summary, NullConversationManager]

    def _window(self) -> ConversationManager:
        return SlidingWindowConversationManager(
            window_size=self.rng.randint(2, 8), per_turn=self.rng.choice([True, False, 2])
        )

    def _summary(self) -> ConversationManager:
        ratio, recent = self.rng.choice([0.3, 0.5, 0.8]), self.rng.randint(1, 4)
        return SummarizingConversationManager(summary_ratio=ratio, preserve_recent_messages=recent)

    def agent(self, model: SGLangModel, **settings: Any) -> Agent:
        system = self.rng.choice([None, "Be kind."])
        settings = {"tools": [step, read, fragile], "system_prompt": system, **settings}
        return plain(model, conversation_manager=self.rng.choice(self.managers)(), **settings)

    def build(self, task: Task, model: SGLangModel) -> Any:
        questions = [f"question {number} " + "word " * self.rng.choice([0, 0, 80]) for number in range(4)]
        questions = questions[: self.rng.randint(1, 4)]
        return SHAPES[self.name](self, model, questions)


def _asked(agent: Callable[[], Any], questions: list[str]) -> Any:
    """Return a function that asks the questions, each to a new agent of the shape."""

    async def work() -> str:
        found = ""
        for question in questions:
            found = str(await agent().invoke_async(question))
        return found

    return work


def _one(shape: Shape, model: SGLangModel, questions: list[str]) -> Any:
    agent = shape.agent(model)
    return _asked(lambda: agent, questions)


def _session(shape: Shape, model: SGLangModel, questions: list[str]) -> Any:
    """Restore the agent from its session for every question, also from one of an earlier question."""
    system = shape.rng.choice([None, "Be kind."])
    shape.managers = [shape.rng.choice(shape.managers)]  # a session is of one kind of manager

    def restored() -> Agent:
        session = FileSessionManager(session_id=shape.rng.choice("sst"), storage_dir=str(shape.sessions))
        return shape.agent(model, agent_id="a", session_manager=session, system_prompt=system)

    return _asked(restored, questions)


def _helper(shape: Shape, model: SGLangModel, questions: list[str]) -> Any:
    helper = shape.agent(model, name="helper", system_prompt="You help.", description="Helps.")
    agent = shape.agent(model, tools=[step, helper.as_tool(preserve_context=shape.rng.random() < 0.5)])
    return _asked(lambda: agent, questions)


def _graph(shape: Shape, model: SGLangModel, questions: list[str]) -> Any:
    builder = GraphBuilder()
    nodes = [builder.add_node(shape.agent(model, name=name), name) for name in _NAMES]
    for at, node in enumerate(nodes[1:], 1):
        builder.add_edge(shape.rng.choice(nodes[:at]), node)
    builder.set_entry_point(_NAMES[0])
    graph = builder.set_max_node_executions(6).build()
    return _asked(lambda: graph, questions[:2])


def _swarm(shape: Shape, model: SGLangModel, questions: list[str]) -> Any:
    nodes = [shape.agent(model, name=name, description=name) for name in _NAMES]
    swarm = Swarm(nodes, max_handoffs=4, max_iterations=5)
    return _asked(lambda: swarm, questions[:2])


SHAPES: Mapping[str, Callable[[Shape, SGLangModel, list[str]], Any]] = {
    "one agent": _one,
    "session": _session,
    "helper": _helper,
    "graph": _graph,
    "swarm": _swarm,
}


async def _play(seed: int, folder: Path) -> tuple[str, int]:
    """Run one episode; return its shape and its number of turns. Raises AssertionError if something is wrong."""
    shape, engine = Shape(seed, folder / "sessions"), PromptEngine(_script(seed))
    options = {
        "context_window_limit": shape.rng.choice([600, 1200, None]),
        "on_trim": shape.rng.choice(["fork", "keep"]),
    }
    options = {name: value for name, value in options.items() if value is not None}
    [episode] = await asyncio.wait_for(
        run(shape.build, [Task("go", id="t")], engine, folder / "run", limits=Limits(max_turns=40), **options), PATIENCE
    )
    assert_exact(engine, trees=[episode.tree])
    certificate = verify(folder / "run")
    assert certificate.verdict is Verdict.PROVED, certificate.text()
    return f"{shape.name}: {episode.end_reason.value}", len(episode.tree)


def attack_shapes(episodes: int, seed: int = 0) -> dict[str, Any]:
    """Run episodes of random shapes.

    Args:
        episodes: How many.
        seed: Of the first; each has its own, so that a failing one can be repeated alone.

    Returns:
        `shapes`: how many episodes; `turns`; `shape_faults`: how many are wrong; `kinds`: shapes and end reasons;
        `examples`: what is wrong with some.
    """
    counts, kinds, examples = Counter(shapes=0, turns=0, shape_faults=0), Counter[str](), list[str]()
    with quiet():
        for number in range(seed, seed + episodes):
            counts["shapes"] += 1
            with TemporaryDirectory() as folder:
                try:
                    kind, turns = asyncio.run(_play(number, Path(folder)))
                except (AssertionError, asyncio.TimeoutError) as error:
                    counts["shape_faults"] += 1
                    examples.append(f"seed {number}: {error!r:.500}")
                else:
                    kinds[kind] += 1
                    counts["turns"] += turns
    return {**counts, "kinds": dict(kinds), "examples": examples}
