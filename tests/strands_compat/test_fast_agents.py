"""Agents inside `fast_agents`: the same hooks, events, messages, metrics, traces, spans and errors as outside."""

from __future__ import annotations

import asyncio
import copy
import re
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, nullcontext
from enum import Enum
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import strands.event_loop.event_loop as sdk_loop
import strands.telemetry.tracer as framework
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from pydantic import BaseModel
from strands import Agent, tool
from strands.event_loop import streaming
from strands.hooks import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    AfterToolsEvent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    BeforeToolsEvent,
    MessageAddedEvent,
)
from strands.middleware import InvokeModelStage

from strands_sglang import Limits, SGLangModel, Task, _strands_compat, fast_agents
from strands_sglang._strands_compat.fast_agents import TRACER_METHODS, fast_deepcopy, result_only
from strands_sglang.engine import FinishReason
from strands_sglang.errors import EngineError
from strands_sglang.runs import EndReason
from support.provider.agents import agent_on, ask, calculator, scripted_model
from support.rollout.agent_kinds import plain as plain_agent
from support.rollout.scripts import PromptEngine, assert_proved, steps
from support.rollout.scripts import run as rollout_of
from support.scripted_engine import Reply, tool_call

agent_module: Any = import_module("strands.agent.agent")

TIMES = {"gen_ai.server.time_to_first_token", "gen_ai.server.request.duration"}
"""Attributes of spans that are missing if the time is 0 ms."""
EVENTS = (
    *(BeforeInvocationEvent, AfterInvocationEvent, BeforeModelCallEvent, AfterModelCallEvent, MessageAddedEvent),
    *(BeforeToolsEvent, AfterToolsEvent, BeforeToolCallEvent, AfterToolCallEvent),
)
LOOK = (
    "strands/event_loop/, strands/agent/agent.py or strands/telemetry/tracer.py has changed: compare event_loop_cycle, "
    "recurse_event_loop and Tracer with _strands_compat/fast_agents.py, adapt it and its `_recognised`"
)


@tool
async def broken(reason: str) -> str:
    """Fail."""
    raise ValueError(reason)


class Sum(BaseModel):
    """A sum."""

    value: int


def two_calls() -> str:
    return tool_call("calculator", expression="1+1") + "\n" + tool_call("calculator", expression="2+2")


def plain(value: Any) -> Any:
    """Return a value without what differs from run to run: ids, times, objects."""
    text = re.sub(r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}", "ID", repr(value))
    text = re.sub(r"\d+(\.\d+)?e-\d+|\d+\.\d+", "SECONDS", text)
    # The time to the first byte is left out if it is below a millisecond.
    text = re.sub(r", 'timeToFirstByteMs': \d+|'(latencyMs|timeToFirstByteMs)': \d+(, )?", "", text)
    return re.sub(r"'tree': '\w+'|(, )?'timestamp': [^,}]+", "", text)


def seen_by_hooks(agent: Agent) -> list[str]:
    """Record every hook event of an agent: its type and what it carries."""
    seen: list[str] = []

    def keep(event: Any) -> None:
        fields = {name: value for name, value in vars(event).items() if name not in ("agent", "invocation_state")}
        messages = copy.deepcopy(agent.messages) if "message" not in fields else None
        state = sorted(getattr(event, "invocation_state", None) or ())
        seen.append(plain((type(event).__name__, state, fields, messages)))

    for kind in EVENTS:
        agent.add_hook(keep, kind)
    return seen


async def both(run: Callable[[], Any]) -> tuple[Any, Any]:
    """Return what a run returns inside `fast_agents` and with the SDK's loop."""
    with fast_agents():
        assert agent_module.event_loop_cycle is not sdk_loop.event_loop_cycle, LOOK
        fast = await run()
    assert agent_module.event_loop_cycle is sdk_loop.event_loop_cycle, "restored"
    return fast, await run()


async def same(run: Callable[[], Any]) -> Any:
    """Assert that a run returns the same inside `fast_agents` and with the SDK's loop, and return it."""
    fast, sdk = await both(run)
    assert fast == sdk
    return fast


def described(agent: Agent, model: SGLangModel, result: Any) -> dict[str, Any]:
    """Return everything that an invocation leaves behind."""
    metrics = agent.event_loop_metrics

    def names(one: Any) -> Any:
        return one.name, one.end_time is not None, [names(child) for child in one.children]

    tree = model.current_episode.tree
    return {
        "result": plain(result if isinstance(result, BaseException) else (result.stop_reason, result.message)),
        "state": plain({key: value for key, value in (getattr(result, "state", None) or {}).items()}),
        "structured": plain(getattr(result, "structured_output", None)),
        "messages": plain(agent.messages),
        "usage": dict(metrics.accumulated_usage),
        "cycles": metrics.cycle_count,
        "tools": {
            name: (one.call_count, one.success_count, one.error_count) for name, one in metrics.tool_metrics.items()
        },
        "traces": [names(one) for one in metrics.traces],
        "tokens": [(turn.parent, turn.status.value, list(turn.sampled), list(turn.context)) for turn in tree],
    }


async def invoked(agent: Agent, model: SGLangModel, **options: Any) -> tuple[Any, Any]:
    """Invoke an agent in an episode; return its result, and what hooks saw with everything that is left behind."""
    seen = seen_by_hooks(agent)
    with model.episode("e"):
        result = await agent.invoke_async("go", **options)
        return result, (seen, described(agent, model, result))


SCRIPTS: dict[str, list[Any]] = {
    "answer": ["it is 4"],
    "calls": [tool_call("calculator", expression="1+1"), two_calls(), "<think>\nwell\n</think>\n\nit is 4"],
    "a tool fails": [tool_call("broken", reason="no"), "sorry"],
    "an unknown tool": [tool_call("nothing", x="1"), "sorry"],
    "a malformed call": ['<tool_call>\n{"name": "calculator"\n</tool_call>', "sorry"],
    "cut off": [tool_call("calculator", expression="1+1"), Reply("it is", ended=False, finish=FinishReason.LENGTH)],
    "the engine fails first": [EngineError("down")],
    "the engine fails later": [tool_call("calculator", expression="1+1"), EngineError("down")],
    "blank": [Reply("")],
}


@pytest.mark.parametrize("caller", [nullcontext, result_only])
@pytest.mark.parametrize("name", SCRIPTS)
async def test_hooks_and_everything_left_behind_are_the_same(name: str, caller: Any) -> None:
    async def run() -> Any:
        model, _ = scripted_model(SCRIPTS[name])
        agent = agent_on(model, tools=[calculator, broken], system_prompt="be short")
        seen = seen_by_hooks(agent)
        with model.episode("e"), caller(agent):
            try:
                result: Any = await agent.invoke_async("go")
            except Exception as error:
                result = error
            return seen, described(agent, model, result), type(getattr(result, "original_exception", None))

    await same(run)


@pytest.mark.parametrize("name", SCRIPTS)
async def test_callback_handlers_and_streams_receive_the_same(name: str) -> None:
    async def run() -> Any:
        told: list[str] = []
        streamed: list[str] = []

        def handler(**event: Any) -> None:
            told.append(plain({key: value for key, value in event.items() if not key.startswith("event_loop")}))

        for listener, into in ((handler, told), (None, streamed)):
            model, _ = scripted_model(SCRIPTS[name])
            agent = Agent(model=model, tools=[calculator, broken], callback_handler=listener)
            with model.episode("e"):
                try:
                    if listener is not None:
                        await agent.invoke_async("go")
                    else:
                        async for event in agent.stream_async("go"):
                            into.append(plain(sorted(event)))
                except Exception as error:
                    into.append(type(error).__name__)
        return told, streamed

    assert len((await same(run))[1]) > 3


@pytest.mark.parametrize("receiver", ["nobody", "handler", "middleware"])
async def test_events_are_dropped_only_if_nobody_receives_them(receiver: str) -> None:
    async def run() -> Any:
        heard: list[str] = []

        async def around(context: Any, next_fn: Any) -> AsyncGenerator[Any, None]:
            async for event in next_fn(context):
                heard.append(type(event).__name__)
                yield event

        model, _ = scripted_model(SCRIPTS["calls"])
        agent = agent_on(model)
        if receiver == "handler":
            agent.callback_handler = lambda **event: heard.append(plain(sorted(event)))
        elif receiver == "middleware":
            agent.add_middleware(agent_module.AgentStreamStage, around)
        with model.episode("e"), result_only(agent):
            streamed = [event async for event in agent.stream_async("go")]
        return heard, streamed

    fast, sdk = await both(run)
    assert fast[0] == sdk[0] and bool(fast[0]) == (receiver != "nobody")
    assert (len(fast[1]) < len(sdk[1]) / 2) == (receiver == "nobody") and str(fast[1][-1]["result"]) == "it is 4\n"


async def test_retries_and_discarded_replies() -> None:
    async def run() -> Any:
        model, engine = scripted_model([tool_call("calculator", expression="1+1"), "bad", "good"])
        agent = agent_on(model)

        def again(event: AfterModelCallEvent) -> None:
            if event.stop_response is not None and "bad" in str(event.stop_response.message):
                event.retry = True

        agent.add_hook(again, AfterModelCallEvent)
        _, left = await invoked(agent, model)
        return left, [list(call.ids) for call in engine.calls]

    (_, left), _ = await same(run)
    assert [status for _, status, *_ in left["tokens"]] == ["kept", "rejected", "kept"]


@pytest.mark.parametrize("when", ["before", "in the model", "in a tool", "after the model"])
async def test_cancellations(when: str) -> None:
    async def run() -> Any:
        agents: list[Agent] = []

        @tool
        async def stopping(x: str) -> str:
            """Stop."""
            if when == "in a tool":
                agents[0].cancel()
            return x

        async def cancel() -> None:
            if when == "in the model":
                agents[0].cancel()

        model, _ = scripted_model([Reply(tool_call("stopping", x="1"), before=cancel), "never"])
        agents.append(agent_on(model, tools=[stopping]))
        if when == "before":
            agents[0].add_hook(lambda event: agents[0].cancel(), BeforeModelCallEvent)
        if when == "after the model":
            agents[0].add_hook(lambda event: agents[0].cancel(), AfterModelCallEvent)
        result, left = await invoked(agents[0], model)
        assert result.stop_reason == "cancelled"
        return left

    await same(run)


async def test_interrupts() -> None:
    async def run() -> Any:
        model, _ = scripted_model([tool_call("ask", question="how many?"), "three, then"])
        agent = agent_on(model, tools=[ask])
        seen = seen_by_hooks(agent)
        with model.episode("e"):
            result = await agent.invoke_async("go")
            assert result.stop_reason == "interrupt" and result.interrupts
            answer: Any = {"interruptResponse": {"interruptId": result.interrupts[0].id, "response": "three"}}
            await asyncio.sleep(0.1)
            result = await agent.invoke_async([answer])
            return seen, described(agent, model, result)

    fast, sdk = await both(run)
    assert [re.sub(r"'Interrupt.*?ID", "", one) for one in fast[0]] == [
        re.sub(r"'Interrupt.*?ID", "", one) for one in sdk[0]
    ]
    assert fast[1] == sdk[1]


async def test_structured_output() -> None:
    async def run() -> Any:
        model, engine = scripted_model([tool_call("calculator", expression="1+1"), "it is 2", '{"value": 2}'])
        result, left = await invoked(agent_on(model), model, structured_output_model=Sum)
        assert result.structured_output == Sum(value=2)
        return left, [sorted(call.sampling) for call in engine.calls]

    await same(run)


@pytest.mark.parametrize("limits", [{"turns": 2}, {"output_tokens": 3}, {"total_tokens": 10}])
async def test_limits(limits: Any) -> None:
    async def run() -> Any:
        model, _ = scripted_model([tool_call("calculator", expression="1+1")] * 5)
        return (await invoked(agent_on(model), model, limits=limits))[1]

    await same(run)


@pytest.mark.parametrize("late", [False, True])
async def test_spans_are_the_same(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """Also if the tracer provider is set when the agent, inside the block, has run without one."""

    async def run() -> Any:
        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", None if late else provider)
        monkeypatch.setattr(framework, "_tracer_instance", None)
        model, _ = scripted_model([*(["hello"] * late), *SCRIPTS["calls"]])
        agent = agent_on(model, system_prompt="be short")
        with model.episode("e"):
            if late:
                await agent.invoke_async("hi")
                monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
            await agent.invoke_async("go")
        spans = exporter.get_finished_spans()
        names = {span.context.span_id: span.name for span in spans}
        provider.shutdown()
        return sorted(
            plain((span.name, span.parent and names.get(span.parent.span_id),
                   sorted({*(span.attributes or ())} - TIMES),
                   [(event.name, dict(event.attributes or {})) for event in span.events], span.status.status_code))
            for span in spans
        )  # fmt: skip

    assert any("toolResult" in one for one in await same(run))


async def test_an_agent_shared_by_two_episodes_at_once_is_refused_by_the_sdk() -> None:
    async def run() -> Any:
        model, engine = scripted_model(lambda prompt: Reply("it is 4", before=lambda: asyncio.sleep(0.05)))
        agent = agent_on(model)

        async def play(name: str) -> Any:
            with model.episode(name) as episode:
                result = await agent.invoke_async(name)
                return str(result), len(episode.tree)

        ends = await asyncio.gather(play("one"), play("two"), return_exceptions=True)
        return plain(ends), plain(agent.messages), len(engine.calls)

    ends, _, calls = await same(run)
    assert "it is 4" in ends and "ConcurrencyException" in ends and calls == 1


@pytest.mark.parametrize("in_thread", [False, True])
async def test_an_agent_invoked_inside_a_tool_of_another(in_thread: bool) -> None:
    async def run() -> Any:
        replies = [tool_call("helper", topic="sums"), *SCRIPTS["calls"], "so it is 4"]
        model, engine = scripted_model(replies)
        inner = agent_on(model, system_prompt="you help")

        @tool
        async def helper(topic: str) -> str:
            """Ask a helper."""
            return str(await asyncio.to_thread(inner, topic) if in_thread else await inner.invoke_async(topic))

        outer = agent_on(model, tools=[helper])
        seen = seen_by_hooks(outer), seen_by_hooks(inner)
        with model.episode("e"):
            result = await outer.invoke_async("go")
            assert str(result).strip() == "so it is 4"
            callers = [turn.caller and turn.caller[0] for turn in model.current_episode.tree]
            assert callers == [None, 0, None, None, None]
            return seen, described(outer, model, result), described(inner, model, result), engine.prompts

    await same(run)


OTHER: Any = {"role": "user", "content": [{"text": "other"}]}
EDITS: dict[str, Callable[[Any], Any]] = {
    "text": lambda agent: agent.messages[0]["content"][0].update(text="GO"),
    "number": lambda agent: agent.messages[1]["content"][-1]["toolUse"]["input"].update(expression=True),
    "drop": lambda agent: agent.messages.__delitem__(slice(1, 3)),
    "insert": lambda agent: agent.messages.insert(0, copy.deepcopy(OTHER)),
    "replace the list": lambda agent: setattr(agent, "messages", [copy.deepcopy(OTHER), *agent.messages[1:]]),
    "append": lambda agent: agent.messages[0]["content"].append({"text": "more"}),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
async def test_history_that_a_hook_edits_is_seen(edit: Callable[[Any], Any]) -> None:
    async def run() -> Any:
        model, engine = scripted_model([tool_call("calculator", expression="1+1")] * 3 + ["done"])
        agent = agent_on(model)

        def change(event: BeforeModelCallEvent) -> None:
            if len(agent.messages) == 5:
                edit(agent)

        agent.add_hook(change, BeforeModelCallEvent)
        return (await invoked(agent, model))[1], engine.prompts

    await same(run)


async def test_middleware_that_a_hook_adds_receives_all_events() -> None:
    async def run() -> list[int]:
        agent, seen = agent_on(scripted_model(SCRIPTS["calls"])[0]), []

        async def count(context: Any, next_fn: Any) -> AsyncGenerator[Any, None]:
            number = 0
            async for event in next_fn(context):
                number += 1
                yield event
            seen.append(number)

        def add(event: BeforeModelCallEvent) -> None:
            if len(agent.messages) == 3:
                agent.add_middleware(InvokeModelStage, count)

        agent.add_hook(add, BeforeModelCallEvent)
        await agent.invoke_async("go")
        return seen

    assert min(await same(run)) > 1


async def test_a_number_that_is_not_finite_and_becomes_none_is_an_edit() -> None:
    async def run() -> Any:
        model, engine = scripted_model(SCRIPTS["calls"])
        agent = agent_on(model)

        def edit(event: BeforeModelCallEvent) -> None:
            value: Any = None if len(agent.messages) > 3 else float("nan")
            if len(agent.messages) > 2:
                agent.messages[2]["content"][0]["toolResult"]["content"] = [{"json": {"v": value}}]

        agent.add_hook(edit, BeforeModelCallEvent)
        await agent.invoke_async("go")
        return [list(prompt) for prompt in engine.prompts]

    await same(run)


@pytest.mark.parametrize("name", ["validate_and_prepare_tools", "process_stream"])
async def test_code_that_replaces_a_name_of_the_sdk_runs(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module: Any = streaming if name == "process_stream" else sdk_loop
    original, calls = getattr(module, name), []

    def spy(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return original(*args, **kwargs)

    async def run() -> int:
        calls.clear()
        with monkeypatch.context() as patched:
            patched.setattr(module, name, spy)
            await agent_on(scripted_model(SCRIPTS["calls"])[0]).invoke_async("go")
        return len(calls)

    assert await same(run) > 0


async def test_a_proxy_of_a_model_is_called() -> None:
    class Proxy:
        """Counts calls of `stream`; everything else is the model's."""

        def __init__(self, model: Any) -> None:
            self.model, self.calls = model, 0

        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            return type(self.model)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.model, name)

        def stream(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return self.model.stream(*args, **kwargs)

    async def run() -> int:
        proxy = Proxy(scripted_model(SCRIPTS["calls"])[0])
        await Agent(model=proxy, tools=[calculator], callback_handler=None).invoke_async("go")  # type: ignore[arg-type]
        return proxy.calls

    assert await same(run) == 3


# --- what is faster ---------------------------------------------------------------------------------------------------


async def test_canary_a_thousand_turns_are_one_invocation_in_a_rollout(tmp_path: Path) -> None:
    count, seen = 1000, Counter[str]()
    ends: list[Any] = []

    def build(task: Task, model: SGLangModel) -> Agent:
        agent = plain_agent(model)
        for kind in EVENTS:
            agent.add_hook(lambda event: seen.update([type(event).__name__]), kind)
        agent.add_hook(lambda event: ends.append(event.result.stop_reason), AfterInvocationEvent)
        return agent

    engine = PromptEngine(steps(count))
    engine.tail = 60
    episode = (await rollout_of(build, ["go"], engine, tmp_path, limits=Limits(max_turns=count + 1)))[0]
    assert (episode.end_reason, episode.metrics.turns) == (EndReason.ANSWERED, count + 1), (LOOK, episode.failure)
    assert (seen["BeforeInvocationEvent"], seen["AfterInvocationEvent"], ends) == (1, 1, ["end_turn"])
    assert seen["BeforeModelCallEvent"] == seen["AfterModelCallEvent"] == count + 1
    assert seen["BeforeToolCallEvent"] == seen["AfterToolsEvent"] == count
    assert len(episode.trajectories) == 1
    assert_proved(tmp_path)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python 3.12 does not count calls from C as recursion")
async def test_canary_without_it_a_long_invocation_fails() -> None:
    """If this fails, the SDK was fixed, and `_flat_loop` can be removed."""
    engine = PromptEngine(steps(1000))
    engine.tail = 60
    episode = (await rollout_of(lambda task, model: plain_agent(model), ["go"], engine, fast_agents=False))[0]
    assert episode.end_reason is EndReason.AGENT_ERROR and episode.failure is not None
    assert "maximum recursion depth" in episode.failure.message and episode.metrics.turns > 250


async def test_canary_history_is_copied_fast_and_serialised_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider(sampler=ALWAYS_OFF))
    monkeypatch.setattr(framework, "_tracer_instance", None)
    written: list[str] = []
    copied: list[int] = []
    serialize, deepcopy = framework.serialize, copy.deepcopy

    def serializing(value: Any) -> str:
        written.append(repr(value))
        return serialize(value)

    def copying(value: Any, memo: Any = None) -> Any:
        copied.append(len(value or ()))
        return deepcopy(value, memo)

    monkeypatch.setattr(framework, "serialize", serializing)
    monkeypatch.setattr(copy, "deepcopy", copying)

    async def run() -> tuple[int, int]:
        written.clear()
        copied.clear()
        model, _ = scripted_model(SCRIPTS["calls"])
        await agent_on(model, system_prompt="be short").invoke_async("go")
        return sum("toolResult" in one or "be short" in one for one in written), copied.count(5)

    fast, sdk = await both(run)
    assert fast == (0, 0) and min(sdk) >= 2, (fast, sdk, LOOK)


# --- entering and leaving ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begins", [True, False])
async def test_an_invocation_under_way_when_a_block_begins_or_ends_is_not_affected(begins: bool) -> None:
    block = ExitStack()
    turns = 0

    async def change() -> None:
        nonlocal turns
        turns += 1
        if turns == 2 and begins:
            block.enter_context(fast_agents())
        elif turns == 2:
            block.close()

    model, _ = scripted_model([Reply(tool_call("calculator", expression="1+1"), before=change)] * 4 + ["done"])
    agent = agent_on(model)
    seen = seen_by_hooks(agent)
    if not begins:
        block.enter_context(fast_agents())
    with block:
        result = await agent.invoke_async("go")
    assert str(result).strip() == "done" and len(agent.messages) == 10
    assert sum("BeforeInvocationEvent" in one for one in seen) == 1
    assert agent_module.event_loop_cycle is sdk_loop.event_loop_cycle


async def test_a_replacement_of_other_code_stays() -> None:
    original = sdk_loop.recurse_event_loop
    with fast_agents():
        ours = sdk_loop.recurse_event_loop

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            async for event in ours(*args, **kwargs):
                yield event

        sdk_loop.recurse_event_loop = wrapper
    try:
        assert sdk_loop.recurse_event_loop is wrapper
        model, _ = scripted_model(SCRIPTS["calls"])
        assert str(await agent_on(model).invoke_async("go")).strip() == "it is 4"
    finally:
        sdk_loop.recurse_event_loop = original


@pytest.mark.parametrize("change", ["no recursion", "other parameters", "other copies", "other tracer", "instrumented"])
async def test_an_unrecognised_sdk_is_reported_once_and_left_alone(
    change: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_strands_compat, "_reported", set())
    if change == "no recursion":
        monkeypatch.delattr(sdk_loop, "recurse_event_loop")
    elif change == "other parameters":
        monkeypatch.setattr(sdk_loop, "recurse_event_loop", lambda agent: None)
    elif change == "other copies":
        monkeypatch.setattr(streaming, "copy", object())
    elif change == "other tracer":
        monkeypatch.delattr(framework.Tracer, TRACER_METHODS[0])
    else:
        monkeypatch.setattr(agent_module, "event_loop_cycle", lambda **kwargs: sdk_loop.event_loop_cycle(**kwargs))
    before = {**vars(sdk_loop)}, {**vars(agent_module)}, {**vars(framework.Tracer)}
    for _ in range(2):
        with fast_agents():
            assert ({**vars(sdk_loop)}, {**vars(agent_module)}, {**vars(framework.Tracer)}) == before
    assert [one.message for one in caplog.records if "fast_agents" in one.message] == [
        f"adaptation=<fast_agents>, strands_agents=<{version('strands-agents')}> | not applied, the SDK is not as "
        "expected: turns of long conversations take more CPU time, and an invocation of more than about 300 turns fails"
    ]


# --- copies -----------------------------------------------------------------------------------------------------------

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    | st.tuples(inner, inner),
    max_leaves=12,
)  # fmt: skip


class Colour(str, Enum):
    RED = "red"


def types(value: Any) -> Any:
    """Return the types in a value."""
    if isinstance(value, dict):
        return dict, {key: types(item) for key, item in value.items()}
    return (type(value), [types(item) for item in value]) if isinstance(value, list | tuple) else type(value)


def mutables(value: Any) -> set[int]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    own = {id(value)} if isinstance(value, dict | list | bytearray) else set()
    return own.union(*(mutables(item) for item in inner))


@given(PLAIN)
def test_a_copy_equals_and_shares_nothing(value: Any) -> None:
    copied = fast_deepcopy([value])
    assert copied == [value] and types(copied) == types([value])
    assert not mutables(copied) & mutables([value])


@pytest.mark.parametrize("value", [bytearray(b"x"), Colour.RED, (1, [2]), 2**70, "\ud800", {1: 2}, {1, 2}, 1e999])
def test_what_marshal_or_json_would_change_keeps_its_type(value: Any) -> None:
    copied = fast_deepcopy([value])
    assert copied == [value] and type(copied[0]) is type(value)
