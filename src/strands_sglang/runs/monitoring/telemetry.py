"""OpenTelemetry spans: one for the run, one for each episode, with the spans of the Strands SDK below them.

    rollout
      rollout.episode                  end reason, reward, turns, tokens; status ERROR if the episode failed
        invoke_agent Strands Agents    this span and those below it are the SDK's
          execute_event_loop_cycle
            chat
            execute_tool calculator

Nothing has to be enabled: as in the SDK itself, spans are recorded if a tracer provider is set.

Invariant: without a tracer provider no span is created. Telemetry never breaks an episode.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import INVALID_SPAN, ProxyTracerProvider, Span, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from strands_sglang.runs.episode import Episode
from strands_sglang.runs.monitoring.metrics import RunMetrics

logger = logging.getLogger(__name__)

_UNFINISHED = "unfinished"
_PROPAGATOR = TraceContextTextMapPropagator()


def carrier_of(span: Span) -> dict[str, str]:
    """Return a span as plain data, to be the parent of spans in any process; empty if it is not recorded."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span))
    return carrier


def run_ended(span: Span, metrics: RunMetrics) -> None:
    """Set the final metrics of a run as attributes."""
    span.set_attributes(metrics.to_dict("rollout."))


def episode_ended(span: Span, episode: Episode) -> None:
    """Set end reason, counts, reward and failure of an episode as attributes."""
    if not span.is_recording():
        return
    span.set_attribute("rollout.end_reason", episode.end_reason.value)
    for name in ("turns", "branches", "tokens", "sampled_tokens", "tool_calls", "tool_errors", "failed_calls"):
        span.set_attribute(f"rollout.{name}", getattr(episode.metrics, name))
    span.set_attribute("rollout.versions", [str(version) for version in episode.metrics.versions])
    if episode.reward is not None:
        span.set_attribute("rollout.reward", episode.reward)
    if episode.reward_detail.error is not None:
        span.set_attribute("rollout.reward_error", episode.reward_detail.error)
    if episode.failure is not None and episode.end_reason.failed:
        message = f"{episode.failure.kind}: {episode.failure.message}"
        span.set_attribute("rollout.failure", message)
        span.set_status(Status(StatusCode.ERROR, message))


def recorded() -> bool:
    """Return whether a tracer provider is set."""
    return not isinstance(trace.get_tracer_provider(), ProxyTracerProvider)


def run_span(run: str, *, samples_per_task: int = 1, total: int | None = None) -> AbstractContextManager[Span]:
    """Open the span of a run; `total`: number of its episodes, None: not known."""
    attributes = {"rollout.run": run, "rollout.samples_per_task": samples_per_task, "rollout.total": total}
    return _current("rollout", attributes, {})


def episode_span(
    episode: str, *, task: str, sample: int, run: str = "", parent: Mapping[str, str] | None = None
) -> AbstractContextManager[Span]:
    """Open the span of an episode and make it the parent of the SDK's spans.

    It is the current span of this asyncio task and of the tasks it starts; it is not visible to other episodes.
    `parent`: `carrier_of` the span of its run; empty or None: the current span is the parent.
    """
    attributes = {"rollout.episode": episode, "rollout.task": task, "rollout.sample": sample, "rollout.run": run}
    return _current("rollout.episode", {**attributes, "rollout.end_reason": _UNFINISHED}, parent or {})


@contextmanager
def _current(name: str, attributes: Mapping[str, Any], parent: Mapping[str, str]) -> Iterator[Span]:
    """Open a span and make it the current one; yields a span without effect if nothing is recorded."""
    span = _start_span(name, attributes, parent) if recorded() else None
    if span is None:
        yield INVALID_SPAN
    else:
        with trace.use_span(span, end_on_exit=True):
            yield span


def _start_span(name: str, attributes: Mapping[str, Any], parent: Mapping[str, str]) -> Span | None:
    known = {key: value for key, value in attributes.items() if value is not None}
    try:
        context = _PROPAGATOR.extract(dict(parent)) if parent else None
        return trace.get_tracer("strands_sglang.runs").start_span(name, context, attributes=known)
    except Exception as error:  # span processors of the user run here
        logger.warning("span=<%s>, error=<%s> | span could not be opened", name, error)
        return None
