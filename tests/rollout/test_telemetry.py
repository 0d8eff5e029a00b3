"""Spans of runs and episodes above those of the framework, and silence where nobody records."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import strands.telemetry.tracer as framework
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

from provider.agents import agent_on, scripted_model
from rollout.finished import finished
from scripted_engine import Reply, tool_call
from strands_sglang.rollout import telemetry
from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.episode import Failure
from strands_sglang.rollout.reward import Reward
from strands_sglang.rollout.telemetry import episode_span, quiet_tracing, recorded, run_span
from strands_sglang.rollout.totals import Totals


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has set a provider, and the framework has made no tracer yet."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(framework, "_tracer_instance", None)
    monkeypatch.setattr(telemetry, "_quiet_runs", 0)  # of workers of another tracer that nobody closed


@pytest.fixture
def spans(untraced: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Everything is recorded."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def answers(number: int, before: Callable[[], Awaitable[None]] | None = None) -> list[Any]:
    return [Reply(tool_call("calculator", expression=f"{number}+{number}"), before=before), f"it is {2 * number}"]


def roots(exporter: InMemorySpanExporter) -> dict[str, list[str]]:
    """Return the names of all spans below each episode, and those that are below none."""
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


async def test_the_frameworks_spans_are_below_their_own_episode(spans: InMemorySpanExporter) -> None:
    gate = asyncio.Event()
    waiting = []

    async def both() -> None:
        waiting.append(1)
        if len(waiting) == 2:
            gate.set()
        await gate.wait()  # neither goes on before the other is in the middle of its first turn

    async def episode(number: int, parent: dict[str, str]) -> None:
        model, _ = scripted_model(answers(number, both))
        with episode_span(f"t/{number}", task="t", sample=number, run="r1", parent=parent) as span:
            # As the runner does it: the agent works in a task of its own.
            await asyncio.ensure_future(agent_on(model).invoke_async("go"))
            span.ended(finished("t", number, 0.5, turns=3))

    with run_span("r1", samples_per_task=2, total=2) as run, quiet_tracing():
        await asyncio.gather(episode(0, run.carrier), episode(1, run.carrier))
        run.ended(Totals(2).snapshot())
    assert json.loads(json.dumps(run.carrier)) == run.carrier
    below = roots(spans)
    expected = ["invoke_agent Strands Agents", *["execute_event_loop_cycle", "chat"] * 2, "execute_tool calculator"]
    assert sorted(below.pop("t/0")) == sorted(below.pop("t/1")) == sorted(expected)
    assert below == {"": ["rollout"]}
    done = {span.name: span for span in spans.get_finished_spans()}
    top, one = done["rollout"], done["rollout.episode"]
    assert top.attributes is not None and one.attributes is not None and one.parent and top.context
    assert one.parent.span_id == top.context.span_id
    assert top.attributes["rollout.run"] == "r1" and top.attributes["rollout.done"] == 0
    told = {name.removeprefix("rollout."): value for name, value in one.attributes.items()}
    assert told["run"] == "r1" and told["task"] == "t" and told["episode"] == f"t/{told['sample']}"
    assert told["ended"] == "answered" and told["reward"] == 0.5 and told["turns"] == 3
    assert told["sampled_tokens"] == 12 and told["versions"] == ("v1",)
    assert one.status.status_code is not StatusCode.ERROR
    chat = done["chat"]
    assert any("toolResult" in str(event.attributes) for event in chat.events), "what is recorded is told everything"


async def test_bad_episodes(spans: InMemorySpanExporter) -> None:
    with episode_span("t/0", task="t", sample=0) as span:
        episode = finished(ended=Ended.ENGINE, failure=Failure("EngineUnavailableError", "gone"))
        episode.score = Reward(error="KeyError: 'x'")
        span.ended(episode)
    with pytest.raises(asyncio.CancelledError), episode_span("t/1", task="t", sample=1):
        raise asyncio.CancelledError
    with pytest.raises(KeyError), episode_span("t/2", task="t", sample=2):
        raise KeyError("x")
    broken, cancelled, raised = spans.get_finished_spans()
    assert broken.attributes is not None and cancelled.attributes is not None
    assert broken.status.status_code is StatusCode.ERROR
    assert broken.status.description == "EngineUnavailableError: gone"
    assert broken.attributes["rollout.ended"] == "engine"
    assert broken.attributes["rollout.reward_error"] == "KeyError: 'x'"
    assert cancelled.attributes["rollout.ended"] == "unfinished"
    assert cancelled.status.status_code is StatusCode.UNSET
    assert raised.status.status_code is StatusCode.ERROR


async def test_a_span_processor_that_raises_breaks_no_episode(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(SpanProcessor):
        def on_start(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("no disk")

    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    provider.add_span_processor(Broken())
    with episode_span("t/0", task="t", sample=0) as span:
        span.ended(finished())
    assert "no disk" in caplog.text


async def test_without_a_provider_there_are_no_spans(untraced: None) -> None:
    assert not recorded()
    before = trace.get_current_span()
    with run_span("r") as run, episode_span("t/0", task="t", sample=0, parent=run.carrier) as span:
        assert trace.get_current_span() is before
        span.ended(finished())
        run.ended(Totals().snapshot())
    assert run.carrier == {}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the framework wrote down as JSON for its spans."""
    kept: list[Any] = []
    serialize = framework.serialize

    def keeping(thing: Any) -> str:
        kept.append(thing)
        return serialize(thing)

    monkeypatch.setattr(framework, "serialize", keeping)
    return kept


async def test_quiet_tracing_writes_no_history_down(untraced: None, written: list[Any]) -> None:
    async def go() -> list[Any]:
        written.clear()
        model, _ = scripted_model(answers(2))
        agent = agent_on(model, system_prompt="be short")
        result = await agent.invoke_async("go")
        assert str(result).strip() == "it is 4"
        return [re.sub(r'"toolUseId": "\w+"', "an id", json.dumps(thing)) for thing in written]

    loud = await go()
    with quiet_tracing():
        with quiet_tracing():
            quiet = await go()
        assert await go() == quiet, "the inner one did not end the outer one"
    assert await go() == loud, "it is as it was"
    assert not any(
        callable(value) and name in dir(framework.Tracer) for name, value in vars(framework.get_tracer()).items()
    )
    assert any("toolResult" in thing for thing in loud)
    assert len(loud) >= 12 and len(quiet) <= 2, (loud, quiet)
    assert not any("toolResult" in thing or "be short" in thing for thing in quiet)


async def test_a_provider_set_in_the_middle_is_told_everything(
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


async def test_spans_that_are_sampled_out_are_not_described_either(
    untraced: None, written: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider(sampler=ALWAYS_OFF))
    model, _ = scripted_model(answers(2))
    with quiet_tracing(), episode_span("t/0", task="t", sample=0):
        await agent_on(model).invoke_async("go")
    assert not any("toolResult" in json.dumps(thing) for thing in written)


@pytest.mark.parametrize("change", ["another class", "no such methods", "no tracer", "it raises"])
def test_a_framework_it_does_not_know_is_left_alone(
    untraced: None, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
