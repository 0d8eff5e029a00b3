"""Agents of many kinds, each with the script of an engine: whatever makes an episode more than a list of turns."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from strands import Agent, tool
from strands.agent.conversation_manager import (
    NullConversationManager,
    SlidingWindowConversationManager,
    SummarizingConversationManager,
)
from strands.hooks import AfterModelCallEvent, AfterToolCallEvent
from strands.multiagent import GraphBuilder

from strands_sglang import SGLangModel
from strands_sglang.errors import ContextOverflowError, EngineUnavailableError
from strands_sglang.runs import Limits, Task
from support.rollout.scripts import RAN, PromptEngine, Script, asked, last_step, steps
from support.scripted_engine import Answer, tool_call


@tool
async def step(number: int) -> str:
    """Take a step.

    Args:
        number: Which.
    """
    RAN(f"step {number}")
    return f"step {number}"


@tool
async def slow(number: int) -> str:
    """Take a step, slowly."""
    RAN(f"slow {number}")
    await asyncio.sleep(0.01)
    return f"slow {number}"


@tool
def blocking(number: int) -> str:
    """Take a step in a thread."""
    RAN(f"blocking {number}")
    time.sleep(0.003)
    return f"blocking {number}"


@tool
async def fragile(number: int) -> str:
    """Take a step that fails."""
    RAN(f"fragile {number}")
    if number == 1:
        raise KeyError("nothing there")
    if number == 2:
        await asyncio.sleep(60)
    return f"step {number}"


@tool
async def read(name: str) -> str:
    """Read a long text."""
    RAN(f"read {name}")
    return f"{name}: " + "line of text. " * 40


def plain(model: SGLangModel, **settings: Any) -> Agent:
    """Return a quiet agent with the tool `step`, which keeps its history as it is."""
    settings.setdefault("tools", [step])
    settings.setdefault("conversation_manager", NullConversationManager())
    return Agent(model=model, callback_handler=None, **settings)


def build(task: Task, model: SGLangModel) -> Any:
    """Return the agent of most tests."""
    return plain(model)


def other_prompt(task: Task, model: SGLangModel) -> Any:
    return plain(model, system_prompt="You are another.")


def other_tools(task: Task, model: SGLangModel) -> Any:
    return plain(model, tools=[step, slow])


def other_result(task: Task, model: SGLangModel) -> Any:
    """Return an agent that edits the result of its second step."""
    agent = plain(model)

    def shout(event: AfterToolCallEvent) -> None:
        if event.result["content"][0].get("text") == "step 2":
            event.result = {**event.result, "content": [{"text": "step 2!"}]}

    agent.hooks.add_callback(AfterToolCallEvent, shout)
    return agent


@dataclass(frozen=True)
class Kind:
    """One kind of agent."""

    name: str
    build: Callable[[Task, SGLangModel], Any]
    script: Script
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of `rollout`."""
    context: int | None = None
    """Tokens that its engine takes."""

    def engine(self) -> PromptEngine:
        """Return a new engine."""
        return PromptEngine(self.script, context=self.context)

    def __str__(self) -> str:
        return self.name


def parallel(prompt: str, before: int) -> Answer:
    done = prompt.count("<tool_response>") // 3
    if done == 2:
        return "the end"
    number = 10 * done
    return "\n".join(tool_call(name, number=number + at) for at, name in enumerate(("slow", "blocking", "step")))


def build_parallel(task: Task, model: SGLangModel) -> Any:
    return plain(model, tools=[slow, blocking, step])


def fragile_script(prompt: str, before: int) -> Answer:
    done = prompt.count("<tool_response>")
    return tool_call("fragile", number=done + 1) if done < 3 else "the end"


def helper_script(prompt: str, before: int) -> Answer:
    """The main agent asks its helper twice; the helper takes two steps for each question."""
    if "You help." in prompt:
        return steps(2, f"helped with {asked(prompt)}")(prompt, before)
    done = prompt.count("<tool_response>")
    return tool_call("helper", input=f"question {done}") if done < 2 else "the end"


def build_helper(task: Task, model: SGLangModel) -> Any:
    helper = plain(model, name="helper", system_prompt="You help.", description="Helps.")
    return plain(model, tools=[helper.as_tool()])


def helpers_script(prompt: str, before: int) -> Answer:
    """The main agent asks three helpers at once, twice; two run in threads, and are asked the same the second time."""
    if "You help." in prompt:
        return steps(2, f"helped with {asked(prompt)}")(prompt, before)
    done = prompt.count("<tool_response>") // 3
    if done == 2:
        return "the end"
    words = ("alpha", "beta", "gamma") if done == 0 else ("delta", "delta", "delta")
    calls = [tool_call("helper", input=words[0])]
    return "\n".join(calls + [tool_call("threaded", question=word) for word in words[1:]])


def build_helpers(task: Task, model: SGLangModel) -> Any:
    helper = plain(model, name="helper", system_prompt="You help.", description="Helps.")

    @tool
    def threaded(question: str) -> str:
        """Ask a helper in a thread."""
        return str(plain(model, system_prompt="You help.")(question)).strip()

    return plain(model, tools=[helper.as_tool(), threaded])


def nested_script(prompt: str, before: int) -> Answer:
    if "You are at the bottom." in prompt:
        return steps(1, "deep")(prompt, before)
    if "You are in the middle." in prompt:
        return "middle" if "<tool_response>" in prompt else tool_call("bottom", input="down")
    return "the end" if "<tool_response>" in prompt else tool_call("middle", input="down")


def build_nested(task: Task, model: SGLangModel) -> Any:
    bottom = plain(model, name="bottom", system_prompt="You are at the bottom.", description="Below.")
    middle = plain(
        model, name="middle", system_prompt="You are in the middle.", description="Between.", tools=[bottom.as_tool()]
    )
    return plain(model, tools=[middle.as_tool()])


def graph_script(prompt: str, before: int) -> Answer:
    return steps(2, "done")(prompt, before)


def build_graph(task: Task, model: SGLangModel) -> Any:
    builder = GraphBuilder()
    first = builder.add_node(plain(model, name="a", system_prompt="I am a."), "a")
    for name in "bc":
        builder.add_edge(first, builder.add_node(plain(model, name=name, system_prompt=f"I am {name}."), name))
    builder.set_entry_point("a")
    graph = builder.set_max_node_executions(9).build()

    async def work() -> str:
        result = await graph.invoke_async(str(task.prompt))
        return str(result.status.value)

    return work


def retry_script(prompt: str, before: int) -> Answer:
    """Every second prompt fails twice; the others get a bad answer first."""
    done = last_step(prompt)
    if done % 2 and before < 2:
        return EngineUnavailableError("the engine is away", attempts=3, status=503)
    if not done % 2 and before == 0:
        return "a bad answer"
    return tool_call("step", number=done + 1) if done < 3 else "the end"


def build_retry(task: Task, model: SGLangModel) -> Any:
    agent = plain(model)

    async def again(event: AfterModelCallEvent) -> None:
        message = event.stop_response.message if event.stop_response else None
        event.retry = event.exception is not None or "a bad answer" in str(message)

    agent.hooks.add_callback(AfterModelCallEvent, again)
    return agent


def build_window(task: Task, model: SGLangModel) -> Any:
    return plain(model, conversation_manager=SlidingWindowConversationManager(window_size=4, per_turn=True))


def overflow_script(prompt: str, before: int) -> Answer:
    if prompt.count("line of text") > 90:
        return ContextOverflowError("too long", status=400, requested_tokens=900, limit_tokens=400)
    name = re.findall(r'"name": "([a-z])"', prompt)[-1:] or ["`"]
    return tool_call("read", name=chr(ord(name[0]) + 1)) if name[0] < "d" else "the end"


def build_overflow(task: Task, model: SGLangModel) -> Any:
    return plain(model, tools=[read], conversation_manager=SlidingWindowConversationManager())


def summary_script(prompt: str, before: int) -> Answer:
    if "Please summarize this conversation." in prompt:
        return "THE SUMMARY"
    return "an answer" if "<tool_response>" in prompt.rpartition("question")[2] else tool_call("step", number=1)


def build_summary(task: Task, model: SGLangModel) -> Any:
    manager = SummarizingConversationManager(
        summary_ratio=0.5, preserve_recent_messages=2, summarization_system_prompt="You sum up."
    )
    agent = plain(model, conversation_manager=manager)

    async def work() -> str:
        for number in range(4):
            result = await agent.invoke_async(f"question {number} " + "word " * 100)
        return str(result)

    return work


def malformed_script(prompt: str, before: int) -> Answer:
    done = prompt.count("<tool_response>")
    if done == 1:
        return '<tool_call>\n{"name": "step", "arguments": {"number": }\n</tool_call>'
    if done == 2:
        return tool_call("step", number=2) + "\n" + '<tool_call>\n{"name": "step"'
    return tool_call("step", number=done + 1) if done < 5 else "the end"


class Sum(BaseModel):
    """A number."""

    value: int


def structured_script(prompt: str, before: int) -> Answer:
    if "the end" in prompt:
        return '{"value": 2}'
    return steps(2)(prompt, before)


def build_structured(task: Task, model: SGLangModel) -> Any:
    agent = plain(model)

    async def work() -> str:
        result = await agent.invoke_async(str(task.prompt), structured_output_model=Sum)
        after = await agent.structured_output_async(Sum, "the end, as data")
        return f"{result.structured_output} {after}"

    return work


KINDS = [
    Kind("tools", build, steps(3)),
    Kind("parallel", build_parallel, parallel),
    Kind(
        "fragile",
        lambda task, model: plain(model, tools=[fragile]),
        fragile_script,
        {"limits": Limits(tool_timeout=0.1)},
    ),
    Kind("helper", build_helper, helper_script),
    Kind("helpers", build_helpers, helpers_script),
    Kind("nested", build_nested, nested_script),
    Kind("graph", build_graph, graph_script),
    Kind("retry", build_retry, retry_script),
    Kind("window", build_window, steps(5)),
    Kind("overflow", build_overflow, overflow_script),
    Kind(
        "learning",
        build,
        steps(3),
        {"sampling_params": {"max_new_tokens": 90_000}},
        context=50_000,
    ),
    Kind("summary", build_summary, summary_script, {"context_window_limit": 700}),
    Kind("malformed", build, malformed_script),
    Kind("structured", build_structured, structured_script),
    Kind("many", build, steps(9)),
]
"""Every kind."""
