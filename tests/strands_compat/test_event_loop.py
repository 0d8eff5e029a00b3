"""The flat loop does what the SDK's loop does: the same hooks, events, messages, metrics, traces, spans and errors."""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
import strands.event_loop.event_loop as sdk_loop
import strands.telemetry.tracer as framework
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel
from strands import Agent, tool
from strands.agent import agent as agent_module
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
from strands.types.exceptions import EventLoopException, MaxTokensReachedException

from strands_sglang import SGLangModel
from strands_sglang._strands_compat import event_loop, guard
from strands_sglang._strands_compat.event_loop import SWITCH, is_flat, use_flat_loop, use_sdk_loop
from strands_sglang._strands_compat.model_calls import unobserved
from strands_sglang.engine import FinishReason
from strands_sglang.errors import EngineError
from support.provider.agents import agent_on, ask, calculator, scripted_model
from support.scripted_engine import Reply, tool_call

EVENTS = (
    *(BeforeInvocationEvent, AfterInvocationEvent, BeforeModelCallEvent, AfterModelCallEvent, MessageAddedEvent),
    *(BeforeToolsEvent, AfterToolsEvent, BeforeToolCallEvent, AfterToolCallEvent),
)
LOOK = (
    "strands/event_loop/ or strands/agent/agent.py has changed: compare event_loop_cycle, recurse_event_loop, "
    "stream_messages and process_stream with _strands_compat/event_loop.py, adapt it and its `_recognised`"
)


@tool
async def broken(reason: str) -> str:
    """Fail.

    Args:
        reason: Why.
    """
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
        seen.append(
            plain(
                (
                    type(event).__name__,
                    sorted(
                        event.invocation_state if hasattr(event, "invocation_state") and event.invocation_state else ()
                    ),
                    fields,
                    messages,
                )
            )
        )

    for kind in EVENTS:
        agent.add_hook(keep, kind)
    return seen


async def both(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> tuple[Any, Any]:
    """Return what a run returns with the flat loop and with the SDK's."""
    monkeypatch.delenv(SWITCH, raising=False)
    flat = await run()
    monkeypatch.setenv(SWITCH, "1")
    sdk = await run()
    monkeypatch.delenv(SWITCH)
    return flat, sdk


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


@pytest.mark.parametrize("name", SCRIPTS)
async def test_hooks_and_everything_left_behind_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> Any:
        model, _ = scripted_model(SCRIPTS[name])
        agent = agent_on(model, tools=[calculator, broken], system_prompt="be short")
        seen = seen_by_hooks(agent)
        with model.episode("e"):
            try:
                result: Any = await agent.invoke_async("go")
            except Exception as error:
                result = error
            return seen, described(agent, model, result), type(getattr(result, "original_exception", None))

    flat, sdk = await both(monkeypatch, run)
    for ours, theirs in zip(flat[0], sdk[0], strict=True):
        assert ours == theirs
    assert flat == sdk


@pytest.mark.parametrize("name", SCRIPTS)
async def test_callback_handlers_and_streams_receive_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> Any:
        told: list[str] = []
        streamed: list[str] = []
        model, _ = scripted_model(SCRIPTS[name])

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

    flat, sdk = await both(monkeypatch, run)
    assert flat == sdk and len(flat[1]) > 3


async def test_retries_and_discarded_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> Any:
        model, engine = scripted_model([tool_call("calculator", expression="1+1"), "bad", "good"])
        agent = agent_on(model)

        def again(event: AfterModelCallEvent) -> None:
            if event.stop_response is not None and "bad" in str(event.stop_response.message):
                event.retry = True

        agent.add_hook(again, AfterModelCallEvent)
        seen = seen_by_hooks(agent)
        with model.episode("e"):
            result = await agent.invoke_async("go")
            assert [turn.status.value for turn in model.current_episode.tree] == ["kept", "rejected", "kept"]
            return seen, described(agent, model, result), [list(call.ids) for call in engine.calls]

    flat, sdk = await both(monkeypatch, run)
    assert flat == sdk


@pytest.mark.parametrize("when", ["before", "in the model", "in a tool", "after the model"])
async def test_cancellations(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> Any:
        agents: list[Agent] = []

        @tool
        async def stopping(x: str) -> str:
            """Stop.

            Args:
                x: Anything.
            """
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
        seen = seen_by_hooks(agents[0])
        with model.episode("e"):
            result = await agents[0].invoke_async("go")
            assert result.stop_reason == "cancelled"
            return seen, described(agents[0], model, result)

    flat, sdk = await both(monkeypatch, run)
    assert flat == sdk


async def test_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
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

    flat, sdk = await both(monkeypatch, run)
    assert [re.sub(r"'Interrupt.*?ID", "", one) for one in flat[0]] == [
        re.sub(r"'Interrupt.*?ID", "", one) for one in sdk[0]
    ]
    assert flat[1] == sdk[1]


async def test_structured_output(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> Any:
        model, engine = scripted_model([tool_call("calculator", expression="1+1"), "it is 2", '{"value": 2}'])
        agent = agent_on(model)
        seen = seen_by_hooks(agent)
        with model.episode("e"):
            result = await agent.invoke_async("go", structured_output_model=Sum)
            assert result.structured_output == Sum(value=2)
            return seen, described(agent, model, result), [sorted(call.sampling) for call in engine.calls]

    flat, sdk = await both(monkeypatch, run)
    assert flat == sdk


@pytest.mark.parametrize("limits", [{"turns": 2}, {"output_tokens": 3}, {"total_tokens": 10}])
async def test_limits(limits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> Any:
        model, _ = scripted_model([tool_call("calculator", expression="1+1")] * 5)
        agent = agent_on(model)
        with model.episode("e"):
            return described(agent, model, await agent.invoke_async("go", limits=limits))

    flat, sdk = await both(monkeypatch, run)
    assert flat == sdk


async def test_spans_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> Any:
        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        monkeypatch.setattr(framework, "_tracer_instance", None)
        model, _ = scripted_model(SCRIPTS["calls"])
        agent = agent_on(model, system_prompt="be short")
        with model.episode("e"):
            await agent.invoke_async("go")
        spans = exporter.get_finished_spans()
        names = {span.context.span_id: span.name for span in spans}
        provider.shutdown()
        return sorted(
            plain((span.name, span.parent and names.get(span.parent.span_id), sorted(span.attributes or ()),
                   [(event.name, dict(event.attributes or {})) for event in span.events], span.status.status_code))
            for span in spans
        )  # fmt: skip

    flat, sdk = await both(monkeypatch, run)
    assert flat == sdk and any("toolResult" in one for one in flat)


async def test_canary_no_event_is_built_when_nobody_receives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[Any] = []
    process = streaming.process_stream

    def counting(*args: Any, **kwargs: Any) -> Any:
        streams.append(args)
        return process(*args, **kwargs)

    monkeypatch.setattr(streaming, "process_stream", counting)
    monkeypatch.setitem(event_loop._of_streaming, "process_stream", counting)  # else the SDK's loop would run

    async def streams_of(**settings: Any) -> int:
        streams.clear()
        model, _ = scripted_model(SCRIPTS["calls"])
        agent = Agent(model=model, tools=[calculator], **settings)
        assert is_flat(agent), LOOK
        assert str(await agent.invoke_async("go")).strip() == "it is 4"
        return len(streams)

    assert await streams_of(callback_handler=None) == 0, LOOK
    assert await streams_of(callback_handler=lambda **_: None) == 3, LOOK
    model, _ = scripted_model(SCRIPTS["calls"])
    agent = agent_on(model)
    assert str(agent("go")).strip() == "it is 4" and len(streams) == 3, LOOK
    seen: list[Any] = []

    async def middleware(context: Any, next_fn: Any) -> AsyncGenerator[Any, None]:
        context.messages[0]["content"][0]["text"] += "!"  # its own copy
        async for event in next_fn(context):
            seen.append(event)
            yield event

    model, engine = scripted_model(SCRIPTS["calls"])
    agent = agent_on(model)
    agent.add_middleware(InvokeModelStage, middleware)
    await agent.invoke_async("go")
    assert len(streams) == 6 and len(seen) > 20 and "go!<" in engine.prompts[-1], LOOK
    assert not event_loop._loops and not unobserved and not event_loop._conversations


async def test_long_invocations_need_no_recursion() -> None:
    model, _ = scripted_model([*([tool_call("calculator", expression="1+1")] * 400), "done"])
    agent = agent_on(model)
    assert str(await agent.invoke_async("go")).strip() == "done"
    assert len(agent.messages) == 802


async def test_errors_have_the_types_of_the_sdk() -> None:
    model, _ = scripted_model(SCRIPTS["the engine fails first"])
    with pytest.raises(EngineError):
        await agent_on(model).invoke_async("go")
    model, _ = scripted_model(SCRIPTS["the engine fails later"])
    with pytest.raises(EventLoopException) as raised:
        await agent_on(model).invoke_async("go")
    assert isinstance(raised.value.original_exception, EngineError)
    model, _ = scripted_model([Reply("it is", ended=False, finish=FinishReason.LENGTH)])
    with pytest.raises(MaxTokensReachedException):
        await agent_on(model).invoke_async("go")


@pytest.mark.parametrize("edit", ["text", "number", "drop", "insert", "replace the list", "append"])
async def test_history_that_a_hook_edits_is_seen(edit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> Any:
        model, engine = scripted_model([tool_call("calculator", expression="1+1")] * 3 + ["done"])
        agent = agent_on(model)

        def change(event: BeforeModelCallEvent) -> None:
            if len(agent.messages) != 5:
                return
            if edit == "text":
                agent.messages[0]["content"][0]["text"] = "GO"
            elif edit == "number":
                agent.messages[1]["content"][-1]["toolUse"]["input"]["expression"] = True
            elif edit == "drop":
                del agent.messages[1:3]
            elif edit == "insert":
                agent.messages.insert(0, {"role": "user", "content": [{"text": "first"}]})
            elif edit == "replace the list":
                agent.messages = [*agent.messages]
                agent.messages[0] = {"role": "user", "content": [{"text": "other"}]}
            else:
                agent.messages[0]["content"].append({"text": "more"})

        agent.add_hook(change, BeforeModelCallEvent)
        with model.episode("e"):
            result = await agent.invoke_async("go")
            return described(agent, model, result), engine.prompts

    flat, sdk = await both(monkeypatch, run)
    assert flat == sdk


async def test_agents_of_other_models_and_other_code_keep_the_sdk_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = scripted_model(["it is 4"])
    agent = agent_on(model)
    assert is_flat(agent)
    monkeypatch.setenv(SWITCH, "1")
    assert not is_flat(agent)
    monkeypatch.delenv(SWITCH)
    with monkeypatch.context() as patched:
        patched.setattr(sdk_loop, "_handle_model_execution", sdk_loop._handle_tool_execution)
        assert not is_flat(agent), "instrumented by other code"

    class Subclass(SGLangModel):
        async def stream(self, *args: Any, **kwargs: Any) -> Any:
            async for event in super().stream(*args, **kwargs):
                yield event

    other = Subclass(tokenizer=model.tokenizer, client=model.client)
    assert model.replies_whole and not other.replies_whole
    model.update_config(streaming=True)
    assert not model.replies_whole
    use_sdk_loop()
    try:
        assert agent_module.event_loop_cycle is sdk_loop.event_loop_cycle and not is_flat(agent)
        monkeypatch.setattr(guard, "_reported", set())
        with monkeypatch.context() as patched:
            patched.setattr(event_loop, "_NEEDED", ("not_there",))
            use_flat_loop()
        assert not is_flat(agent), "an SDK that looks different is left alone"
    finally:
        use_flat_loop()
    assert is_flat(agent)


async def test_middleware_that_a_hook_adds_receives_all_events(monkeypatch: pytest.MonkeyPatch) -> None:
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

    flat, sdk = await both(monkeypatch, run)
    assert flat == sdk and min(flat) > 1


async def test_a_number_that_is_not_finite_and_becomes_none_is_an_edit(monkeypatch: pytest.MonkeyPatch) -> None:
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

    flat, sdk = await both(monkeypatch, run)
    assert flat == sdk


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

    flat, sdk = await both(monkeypatch, run)
    assert flat == sdk > 0


async def test_a_proxy_of_a_model_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
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

    flat, sdk = await both(monkeypatch, run)
    assert flat == sdk == 3
