"""The time line of an episode: where its seconds went, from the durations that its events state.

The ledger records how long each engine call and each tool call took, not when it began. Calls of one conversation
follow each other; tools of one turn run beside each other, after the call; calls of a sub-agent are inside their tool.

Invariant: durations are the recorded ones. Time that no event accounts for (scheduling, hooks, the agent's own code) is
reported as the rest and not placed anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strands_sglang.ledger.event import Event, EventKind

_MAX_DEPTH = 8


def timeline(events: Sequence[Event], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the time line of an episode.

    `metrics`: metrics of its end event; empty if it has not ended. Returns `spans`: lists of kind ("engine", "tool" or
    "error"), start and duration in seconds, depth (0: the agent itself, 1: inside a tool), a label, and the id of the
    turn or of the tool call. `placed`: seconds that the spans cover. `total`: seconds of the whole episode; None if it
    has not ended. `rest`: seconds that no span covers.
    """
    by_within: dict[tuple[str, ...], list[Event]] = {}
    for event in events:
        if event.kind in (EventKind.CALL, EventKind.TOOL, EventKind.CALL_ERROR):
            within = event.data.get("within")
            key = tuple(map(str, within)) if isinstance(within, list) else ()
            by_within.setdefault(key, []).append(event)
    spans: list[list[Any]] = []
    placed = _lay_out((), 0.0, by_within, spans)
    total = _seconds(metrics.get("seconds")) or None
    rest = None if total is None else max(0.0, round(total - placed, 4))
    return {"spans": spans, "placed": round(placed, 4), "total": total, "rest": rest}


def _lay_out(
    within: tuple[str, ...], start: float, events: Mapping[tuple[str, ...], list[Event]], spans: list[list[Any]]
) -> float:
    """Add the spans of the events inside a tool call, or of the agent itself; return when the last one ends."""
    cursor = after_call = start
    depth = len(within)
    for event in events.get(within, ()):
        data = event.data
        if event.kind is EventKind.CALL:
            detail = data.get("detail")
            seconds = _seconds(detail.get("latency_ms") if isinstance(detail, dict) else None) / 1000
            spans.append(["engine", round(cursor, 4), seconds, depth, f"turn {data.get('turn')}", data.get("turn")])
            cursor = after_call = cursor + seconds
        elif event.kind is EventKind.TOOL:
            id, seconds = str(data.get("id")), _seconds(data.get("seconds"))
            spans.append(["tool", round(after_call, 4), seconds, depth, str(data.get("name")), id])
            cursor = max(cursor, after_call + seconds)
            if depth < _MAX_DEPTH:
                _lay_out((*within, id), after_call, events, spans)
        else:
            spans.append(["error", round(cursor, 4), 0.0, depth, str(data.get("error")), event.number])
    return cursor


def _seconds(value: Any) -> float:
    return float(value) if type(value) in (int, float) and value > 0 else 0.0
