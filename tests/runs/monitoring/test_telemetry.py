"""OpenTelemetry spans of runs and episodes, with the spans of the SDK below them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import strands.telemetry.tracer as framework
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from strands_sglang import fast_agents
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Failure
from strands_sglang.runs.monitoring.metrics import RunCounters
from strands_sglang.runs.monitoring.telemetry import (
    carrier_of,
    episode_ended,
    episode_span,
    recorded,
    run_ended,
    run_span,
)
from strands_sglang.runs.reward import Reward
from support.provider.agents import agent_on, scripted_model
from support.rollout.finished import finished
from support.scripted_engine import Reply, tool_call


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tracer provider is set, and the SDK has created no tracer yet."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(framework, "_tracer_instance", None)


@pytest.fixture
def spans(untraced: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Set a tracer provider that keeps all spans in memory."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def answers(number: int, before: Callable[[], Awaitable[None]] | None = None) -> list[Any]:
    return [Reply(tool_call("calculator", expression=f"{number}+{number}"), before=before), f"it is {2 * number}"]


def roots(exporter: InMemorySpanExporter) -> dict[str, list[str]]:
    """Return the names of all spans below each episode; key "": spans below no episode."""
    finished = {span.context.span_id: span for span in exporter.get_finished_spans() if span.context is not None}
    below: dict[str, list[str]] = {}
    for span in finished.values():
        at: ReadableSpan | None = span
        while at is not None and at.name != "rollout.episode":
            at = finished.get(at.parent.span_id) if at.parent is not None else None
        if at is not span:
            owner = str((at.attributes or {})["rollout.episode"]) if at is not None else ""
            below.setdefault(owner, []).append(span.name)
    return below


async def test_sdk_spans_are_below_their_own_episode(spans: InMemorySpanExporter) -> None:
    gate = asyncio.Event()
    waiting = []

    async def both() -> None:
        waiting.append(1)
        if len(waiting) == 2:
            gate.set()
        await gate.wait()  # neither continues before the other is in its first turn

    async def episode(number: int, parent: dict[str, str]) -> None:
        model, _ = scripted_model(answers(number, both))
        with episode_span(f"t/{number}", task="t", sample=number, run="r1", parent=parent) as span:
            # As in a run, the agent runs in its own asyncio task.
            await asyncio.ensure_future(agent_on(model).invoke_async("go"))
            episode_ended(span, finished("t", number, 0.5, turns=3))

    with run_span("r1", samples_per_task=2, total=2) as run, fast_agents():
        await asyncio.gather(episode(0, carrier_of(run)), episode(1, carrier_of(run)))
        run_ended(run, RunCounters(2).snapshot())
    assert json.loads(json.dumps(carrier_of(run))) == carrier_of(run)
    below = roots(spans)
    expected = ["invoke_agent Strands Agents", *["execute_event_loop_cycle", "chat"] * 2, "execute_tool calculator"]
    assert sorted(below.pop("t/0")) == sorted(below.pop("t/1")) == sorted(expected)
    assert below == {"": ["rollout"]}
    done = {span.name: span for span in spans.get_finished_spans()}
    top, one = done["rollout"], done["rollout.episode"]
    assert top.attributes is not None and one.attributes is not None and one.parent and top.context
    assert one.parent.span_id == top.context.span_id
    assert top.attributes["rollout.run"] == "r1" and top.attributes["rollout.done"] == 0
    attributes = {name.removeprefix("rollout."): value for name, value in one.attributes.items()}
    assert (
        attributes["run"] == "r1" and attributes["task"] == "t" and attributes["episode"] == f"t/{attributes['sample']}"
    )
    assert attributes["end_reason"] == "answered" and attributes["reward"] == 0.5 and attributes["turns"] == 3
    assert attributes["sampled_tokens"] == 12 and attributes["versions"] == ("v1",)
    assert one.status.status_code is not StatusCode.ERROR
    chat = done["chat"]
    assert any("toolResult" in str(event.attributes) for event in chat.events), "recorded spans have all details"


async def test_failed_and_cancelled_episodes(spans: InMemorySpanExporter) -> None:
    with episode_span("t/0", task="t", sample=0) as span:
        episode = finished(ended=EndReason.ENGINE_ERROR, failure=Failure("EngineUnavailableError", "gone"))
        episode.reward_detail = Reward(error="KeyError: 'x'")
        episode_ended(span, episode)
    with pytest.raises(asyncio.CancelledError), episode_span("t/1", task="t", sample=1):
        raise asyncio.CancelledError
    with pytest.raises(KeyError), episode_span("t/2", task="t", sample=2):
        raise KeyError("x")
    broken, cancelled, raised = spans.get_finished_spans()
    assert broken.attributes is not None and cancelled.attributes is not None
    assert broken.status.status_code is StatusCode.ERROR
    assert broken.status.description == "EngineUnavailableError: gone"
    assert broken.attributes["rollout.end_reason"] == "engine_error"
    assert broken.attributes["rollout.reward_error"] == "KeyError: 'x'"
    assert cancelled.attributes["rollout.end_reason"] == "unfinished"
    assert cancelled.status.status_code is StatusCode.UNSET
    assert raised.status.status_code is StatusCode.ERROR


async def test_span_processor_that_raises_does_not_break_episode(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(SpanProcessor):
        def on_start(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("no disk")

    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    provider.add_span_processor(Broken())
    with episode_span("t/0", task="t", sample=0) as span:
        episode_ended(span, finished())
    assert "no disk" in caplog.text


async def test_without_provider_no_spans_are_created(untraced: None) -> None:
    assert not recorded()
    before = trace.get_current_span()
    with run_span("r") as run, episode_span("t/0", task="t", sample=0, parent=carrier_of(run)) as span:
        assert trace.get_current_span() is before
        episode_ended(span, finished())
        run_ended(run, RunCounters().snapshot())
    assert carrier_of(run) == {}
