"""Spans for OpenTelemetry: one for the run, one for each episode, the framework's own below them.

    rollout
      rollout.episode                  ended, reward, turns, tokens; an error where something broke
        invoke_agent Strands Agents    from here on the framework's
          execute_event_loop_cycle
            chat
            execute_tool calculator

Nothing has to be switched on: whoever sets a tracer provider gets spans, as with the framework itself.

Invariant: without a tracer provider an episode costs no span, and the framework does not write its history down for
spans that nobody records; with one, everything is recorded as if this file were not there. Telemetry never breaks an
episode.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import ProxyTracerProvider, Span, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.totals import RunMetrics

logger = logging.getLogger(__name__)

_UNFINISHED = "unfinished"
_NAMES = TraceContextTextMapPropagator()


class RunSpan:
    """The span of a run."""

    def __init__(self, span: Span | None = None) -> None:
        """Wrap a span; None: nothing is recorded."""
        self._span = span
        self.carrier: dict[str, str] = {}
        """What names it to episodes, in this process or another: plain data; empty when nothing is recorded."""
        if span is not None:
            _NAMES.inject(self.carrier, trace.set_span_in_context(span))

    def ended(self, metrics: RunMetrics) -> None:
        """Write down what the run came to."""
        if self._span is not None:
            self._span.set_attributes(metrics.to_dict("rollout."))


class EpisodeSpan:
    """The span of an episode."""

    def __init__(self, span: Span | None = None) -> None:
        """Wrap a span; None: nothing is recorded."""
        self._span = span

    def ended(self, episode: Episode) -> None:
        """Write down how the episode ended."""
        span, used = self._span, episode.metrics
        if span is None:
            return
        span.set_attribute("rollout.ended", episode.ended.value)
        for name in ("turns", "branches", "tokens", "sampled_tokens", "tool_calls", "tool_errors", "failed_calls"):
            span.set_attribute(f"rollout.{name}", getattr(used, name))
        span.set_attribute("rollout.versions", [str(version) for version in used.versions])
        if episode.reward is not None:
            span.set_attribute("rollout.reward", episode.reward)
        if episode.score.error is not None:
            span.set_attribute("rollout.reward_error", episode.score.error)
        if episode.failure is not None and episode.ended.failed:
            words = f"{episode.failure.kind}: {episode.failure.message}"
            span.set_attribute("rollout.failure", words)
            span.set_status(Status(StatusCode.ERROR, words))


_NO_RUN, _NO_EPISODE = RunSpan(), EpisodeSpan()


def recorded() -> bool:
    """Return whether anybody has set a tracer provider."""
    return not isinstance(trace.get_tracer_provider(), ProxyTracerProvider)


@contextmanager
def run_span(run: str, *, samples_per_task: int = 1, total: int | None = None) -> Iterator[RunSpan]:
    """Open the span of a run.

    Args:
        run: Its id.
        samples_per_task: Episodes of each task.
        total: Episodes it is about; None: not known.
    """
    about = {"rollout.run": run, "rollout.samples_per_task": samples_per_task, "rollout.total": total}
    with _current("rollout", about, {}) as span:
        yield _NO_RUN if span is None else RunSpan(span)


@contextmanager
def episode_span(
    episode: str, *, task: str, sample: int, run: str = "", parent: Mapping[str, str] | None = None
) -> Iterator[EpisodeSpan]:
    """Open the span of an episode, and make it the one below which the framework's own go.

    It is the current span of this asyncio task, and of those it starts; other episodes do not see it.

    Args:
        episode: Its id.
        task: Id of its task.
        sample: Number among the samples of its task.
        run: Id of the run.
        parent: `RunSpan.carrier` of its run; empty or None: below whatever span is current.
    """
    about = {"rollout.episode": episode, "rollout.task": task, "rollout.sample": sample, "rollout.run": run}
    with _current("rollout.episode", {**about, "rollout.ended": _UNFINISHED}, parent or {}) as span:
        yield _NO_EPISODE if span is None else EpisodeSpan(span)


@contextmanager
def _current(name: str, attributes: Mapping[str, Any], parent: Mapping[str, str]) -> Iterator[Span | None]:
    """Open a span and make it the current one; None when nothing is recorded."""
    span = _started(name, attributes, parent) if recorded() else None
    if span is None:
        yield None
    else:
        with trace.use_span(span, end_on_exit=True):
            yield span


def _started(name: str, attributes: Mapping[str, Any], parent: Mapping[str, str]) -> Span | None:
    known = {key: value for key, value in attributes.items() if value is not None}
    try:
        context = _NAMES.extract(dict(parent)) if parent else None
        return trace.get_tracer("strands_sglang.rollout").start_span(name, context, attributes=known)
    except Exception as error:  # a span processor of the user's is asked on the way
        logger.warning("span=<%s>, error=<%s> | a span could not be opened", name, error)
        return None


_DESCRIBE = ("_add_event_messages", "_add_system_prompt_event", "end_tool_call_span", "end_agent_span")
"""Methods of the framework's tracer that write messages down as JSON, and only then hand them to a span."""
_quiet_lock = threading.Lock()
_quiet_runs = 0


@contextmanager
def quiet_tracing() -> Iterator[None]:
    """Keep the framework from writing down the whole history, twice a turn, for spans that nobody records.

    What a span that does not record is told goes nowhere, so leaving it out changes nothing that can be seen. Spans
    that do record are told everything, also those of a provider that is set later. May be nested, and used by any
    number of runs at once; does nothing with a framework that it does not know.
    """
    global _quiet_runs
    tracer = _framework_tracer()
    if tracer is None:
        yield
        return
    with _quiet_lock:
        _quiet_runs += 1
        for name in _DESCRIBE:
            method = getattr(tracer, name, None)
            if callable(method) and name not in vars(tracer):
                vars(tracer)[name] = _if_recording(method)
    try:
        yield
    finally:
        with _quiet_lock:
            _quiet_runs -= 1
            if not _quiet_runs:
                for name in _DESCRIBE:
                    if getattr(vars(tracer).get(name), "quiet", False):
                        del vars(tracer)[name]


def _framework_tracer() -> Any:
    """Return the tracer all agents share; None when it is not the one that this file knows."""
    try:
        from strands.telemetry.tracer import Tracer, get_tracer

        tracer = get_tracer()
        return tracer if type(tracer) is Tracer and hasattr(tracer, "__dict__") else None
    except Exception:
        logger.debug("the framework's tracer was not found", exc_info=True)
        return None


def _if_recording(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that passes over spans that do not record."""

    def described(*args: Any, **kwargs: Any) -> Any:
        span = args[0] if args else kwargs.get("span")
        if isinstance(span, Span) and not span.is_recording():
            return None
        return method(*args, **kwargs)

    described.quiet = True  # type: ignore[attr-defined]  # so that only our own is taken away again
    return described
