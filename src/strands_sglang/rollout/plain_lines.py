"""Progress as lines of text, for logs and terminals that are none: `PlainLines`.

    rollout done=412 total=1024 live=256 waiting=356 eta_seconds=1100 tokens_per_second=12431 ...

Invariant: one line is one write, and every word of it behind the first is `field=value` without spaces, but for
`trouble`, which comes last and is quoted. A number that is not known is left out. Nothing in it moves a cursor.
"""

from __future__ import annotations

import json
import sys
from typing import TextIO

from strands_sglang.ledger.shown import shown
from strands_sglang.rollout.totals import RunMetrics

_LONGEST = 200
"""Characters kept of the latest trouble."""


class PlainLines:
    """Writes a line now and then."""

    def __init__(self, title: str = "rollout", stream: TextIO | None = None, *, interval: float = 10.0) -> None:
        """Choose where to write.

        Args:
            title: First word of every line.
            stream: Where to write; None: stderr, as it is when a line is written.
            interval: Seconds between two lines.
        """
        self.interval = interval
        """Seconds between two lines."""
        self._title = shown("-".join(title.split())) or "rollout"
        self._stream = stream

    def begin(self, total: int | None) -> None:
        """Say that the run begins."""
        self._write("begins", RunMetrics(total=total))

    def update(self, snapshot: RunMetrics) -> None:
        """Say how far it is."""
        self._write("", snapshot)

    def end(self, snapshot: RunMetrics) -> None:
        """Say how it ended."""
        self._write("ended", snapshot)

    def _write(self, state: str, snapshot: RunMetrics) -> None:
        words = [self._title, *([f"state={state}"] if state else []), line(snapshot)]
        stream = self._stream or sys.stderr
        stream.write(" ".join(words) + "\n")
        stream.flush()


def line(snapshot: RunMetrics) -> str:
    """Return the numbers of a run in one line of `field=value`."""
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
        **{f"ended_{ended.value}": count for ended, count in snapshot.ended.items()},
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
    words = [f"{name}={value}" for name, value in known.items() if value is not None]
    if snapshot.latest_trouble:
        words.append(f"trouble={shown(json.dumps(snapshot.latest_trouble[:_LONGEST], ensure_ascii=False))}")
    return " ".join(words)


def newest_version(snapshot: RunMetrics) -> str | None:
    """Return the weight version that was seen first by the latest episodes; None: no engine told one."""
    return next((version for version in reversed(list(snapshot.versions)) if version is not None), None)


def _short(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _word(text: str | None) -> str | None:
    """Return a text without spaces, and without what would move a cursor."""
    return shown("_".join((text or "").split())) or None
