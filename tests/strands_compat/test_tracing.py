"""The SDK serialises no history for spans that nobody records, and everything for those that record."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import strands.telemetry.tracer as framework
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

from strands_sglang._strands_compat.event_loop import SWITCH
from strands_sglang._strands_compat.tracing import METHODS, quiet_tracing
from strands_sglang.runs.monitoring.telemetry import episode_span
from support.provider.agents import agent_on, scripted_model
from support.scripted_engine import tool_call

LOOK = (
    "strands/telemetry/tracer.py has changed: find the methods that serialise messages before they pass them to a "
    "span, and name them in METHODS of _strands_compat/tracing.py; if there are none any more, delete that module"
)


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tracer provider is set, and the SDK has made no tracer yet."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(framework, "_tracer_instance", None)


def answers(number: int) -> list[Any]:
    return [tool_call("calculator", expression=f"{number}+{number}"), f"it is {2 * number}"]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the framework serialised as JSON for its spans."""
    kept: list[Any] = []
    serialize = framework.serialize

    def keeping(thing: Any) -> str:
        kept.append(thing)
        return serialize(thing)

    monkeypatch.setattr(framework, "serialize", keeping)
    return kept


async def test_canary_no_history_is_serialised(
    untraced: None, written: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "1")

    async def go() -> list[Any]:
        written.clear()
        model, _ = scripted_model(answers(2))
        agent = agent_on(model, system_prompt="be short")
        result = await agent.invoke_async("go")
        assert str(result).strip() == "it is 4"
        return [re.sub(r'"toolUseId": "\w+"', "an id", json.dumps(thing)) for thing in written]

    missing = [name for name in METHODS if not hasattr(framework.Tracer, name)]
    assert not missing, f"{missing}: {LOOK}"
    loud = await go()
    with quiet_tracing():
        with quiet_tracing():
            quiet = await go()
        assert await go() == quiet, "the inner one did not end the outer one"
    assert await go() == loud, "it is as it was"
    assert not any(
        callable(value) and name in dir(framework.Tracer) for name, value in vars(framework.get_tracer()).items()
    )
    assert any("toolResult" in thing for thing in loud), LOOK
    assert len(loud) >= 12 and len(quiet) <= 2, (LOOK, loud, quiet)
    assert not any("toolResult" in thing or "be short" in thing for thing in quiet), LOOK


async def test_a_provider_set_later_receives_everything(
    untraced: None, written: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with quiet_tracing():
        model, _ = scripted_model(answers(2))
        agent = agent_on(model)
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        await agent.invoke_async("go")
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert any("toolResult" in str(event.attributes) for event in spans["chat"].events)
    assert spans["execute_tool calculator"].status.status_code is StatusCode.OK
    provider.shutdown()


async def test_unsampled_spans_are_not_described(
    untraced: None, written: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider(sampler=ALWAYS_OFF))
    model, _ = scripted_model(answers(2))
    with quiet_tracing(), episode_span("t/0", task="t", sample=0):
        await agent_on(model).invoke_async("go")
    assert not any("toolResult" in json.dumps(thing) for thing in written)


@pytest.mark.parametrize("change", ["another class", "no such methods", "no tracer", "it raises"])
def test_an_unrecognised_sdk_is_not_changed(untraced: None, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(framework.Tracer):
        pass

    class Bare:
        pass

    if change == "another class":
        monkeypatch.setattr(framework, "_tracer_instance", Other())
    elif change == "no such methods":
        monkeypatch.setattr(framework, "Tracer", Bare)
        monkeypatch.setattr(framework, "_tracer_instance", Bare())
    elif change == "no tracer":
        monkeypatch.delattr(framework, "get_tracer")
    else:
        monkeypatch.setattr(framework, "get_tracer", lambda: 1 / 0)
    tracer = framework._tracer_instance
    before = dict(vars(tracer)) if tracer is not None else {}
    with quiet_tracing():
        assert tracer is None or vars(tracer) == before
    assert tracer is None or vars(tracer) == before
