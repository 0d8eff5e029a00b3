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
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import ProxyTracerProvider, Span, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from strands_sglang.runs.episode import Episode
from strands_sglang.runs.monitoring.metrics import RunMetrics

logger = logging.getLogger(__name__)

_UNFINISHED = "unfinished"
_PROPAGATOR = TraceContextTextMapPropagator()


class RunSpan:
    """The span of a run."""

    def __init__(self, span: Span | None = None) -> None:
        """Wrap a span; None: nothing is recorded."""
        self._span = span
        self.carrier: dict[str, str] = {}
        """Trace context for the episodes, in this process or another: plain data; empty if nothing is recorded."""
        if span is not None:
            _PROPAGATOR.inject(self.carrier, trace.set_span_in_context(span))

    def ended(self, metrics: RunMetrics) -> None:
        """Set the final metrics as attributes."""
        if self._span is not None:
            self._span.set_attributes(metrics.to_dict("rollout."))


class EpisodeSpan:
    """The span of an episode."""

    def __init__(self, span: Span | None = None) -> None:
        """Wrap a span; None: nothing is recorded."""
        self._span = span

    def ended(self, episode: Episode) -> None:
        """Set end reason, counts, reward and failure as attributes."""
        span, used = self._span, episode.metrics
        if span is None:
            return
        span.set_attribute("rollout.end_reason", episode.end_reason.value)
        for name in ("turns", "branches", "tokens", "sampled_tokens", "tool_calls", "tool_errors", "failed_calls"):
            span.set_attribute(f"rollout.{name}", getattr(used, name))
        span.set_attribute("rollout.versions", [str(version) for version in used.versions])
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


@contextmanager
def run_span(run: str, *, samples_per_task: int = 1, total: int | None = None) -> Iterator[RunSpan]:
    """Open the span of a run; `total`: number of its episodes, None: not known."""
    attributes = {"rollout.run": run, "rollout.samples_per_task": samples_per_task, "rollout.total": total}
    with _current("rollout", attributes, {}) as span:
        yield RunSpan(span)


@contextmanager
def episode_span(
    episode: str, *, task: str, sample: int, run: str = "", parent: Mapping[str, str] | None = None
) -> Iterator[EpisodeSpan]:
    """Open the span of an episode and make it the parent of the SDK's spans.

    It is the current span of this asyncio task and of the tasks it starts; it is not visible to other episodes.
    `parent`: `RunSpan.carrier` of its run; empty or None: the current span is the parent.
    """
    attributes = {"rollout.episode": episode, "rollout.task": task, "rollout.sample": sample, "rollout.run": run}
    with _current("rollout.episode", {**attributes, "rollout.end_reason": _UNFINISHED}, parent or {}) as span:
        yield EpisodeSpan(span)


@contextmanager
def _current(name: str, attributes: Mapping[str, Any], parent: Mapping[str, str]) -> Iterator[Span | None]:
    """Open a span and make it the current one; yields None if nothing is recorded."""
    span = _start_span(name, attributes, parent) if recorded() else None
    if span is None:
        yield None
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
