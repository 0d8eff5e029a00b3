"""Progress as lines of text, for log files and terminals without cursor control: `TextView`.

    rollout done=412 total=1024 live=256 waiting=356 eta_seconds=1100 tokens_per_second=12431 ...

Invariant: each line is one write. After the title, every item is `field=value` without spaces, except `latest_error`,
which is the last item and is quoted. Unknown numbers are left out. A line contains no control characters.
"""

from __future__ import annotations

import json
import sys
from typing import TextIO

from strands_sglang._terminal import escape_for_terminal
from strands_sglang.runs.monitoring.metrics import RunMetrics

_MAX_ERROR = 200


class TextView:
    """Writes one line per update."""

    def __init__(self, title: str = "rollout", stream: TextIO | None = None, *, interval: float = 10.0) -> None:
        """Choose where to write; None: the `sys.stderr` of that moment. `interval`: seconds between two lines."""
        self.interval = interval
        self._title = escape_for_terminal("-".join(title.split())) or "rollout"
        self._stream = stream

    def begin(self, total: int | None) -> None:
        """Write that the run starts."""
        self._write("begins", RunMetrics(total=total))

    def update(self, snapshot: RunMetrics) -> None:
        """Write the current state of the run."""
        self._write("", snapshot)

    def end(self, snapshot: RunMetrics) -> None:
        """Write the final state of the run."""
        self._write("ended", snapshot)

    def _write(self, state: str, snapshot: RunMetrics) -> None:
        items = [self._title, *([f"state={state}"] if state else []), line(snapshot)]
        stream = self._stream or sys.stderr
        stream.write(" ".join(items) + "\n")
        stream.flush()


def line(snapshot: RunMetrics) -> str:
    """Return the metrics of a run as one line of `field=value` items."""
    known = {
        "done": snapshot.done,
        "total": snapshot.total,
        "live": snapshot.live,
        "waiting": snapshot.waiting,
        "seconds": round(snapshot.seconds),
        "eta_seconds": None if snapshot.eta is None else round(snapshot.eta),
        "tokens_per_second": round(snapshot.tokens_per_second),
        "turns_per_second": f"{snapshot.turns_per_second:.1f}",
        "cache_hit_rate": _short(snapshot.cache_hit_rate),
        "reward_mean": _short(snapshot.reward_mean),
        "rewards": snapshot.rewards,
        **{f"end_reason_{reason.value}": count for reason, count in snapshot.end_reasons.items()},
        "failures": snapshot.failures,
        "reward_errors": snapshot.reward_errors or None,
        "tool_errors": snapshot.tool_errors or None,
        "tool_timeouts": snapshot.tool_timeouts or None,
        "groups_kept": snapshot.groups_kept or None,
        "groups_dropped": snapshot.groups_dropped or None,
        "filter_errors": snapshot.filter_errors or None,
        "version": _word(newest_version(snapshot)),
        "engine_unreachable_seconds": round(snapshot.unreachable_seconds) or None,
    }
    items = [f"{name}={value}" for name, value in known.items() if value is not None]
    if snapshot.latest_error:
        items.append(
            f"latest_error={escape_for_terminal(json.dumps(snapshot.latest_error[:_MAX_ERROR], ensure_ascii=False))}"
        )
    return " ".join(items)


def newest_version(snapshot: RunMetrics) -> str | None:
    """Return the weight version that appeared last; None if the engine reported none."""
    return next((version for version in reversed(list(snapshot.versions)) if version is not None), None)


def _short(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _word(text: str | None) -> str | None:
    """Return a text without whitespace and control characters; None if nothing is left."""
    return escape_for_terminal("_".join((text or "").split())) or None
