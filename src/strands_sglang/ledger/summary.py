"""One summary row per episode, for tables of a run: `SummaryRow`; `run_rows` returns those of a run.

`SummaryBuilder` computes a row from the events of an episode, also while the run is being written.

Invariants: a row states nothing that is not in the events of its episode. Reading never raises on damaged events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict

import orjson

from strands_sglang._json import as_dict, as_list, dump_text, jsonable
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.encoding import EventHead, decoded_head
from strands_sglang.ledger.event import AFTER_END, OF_OTHER_MODELS, EventKind
from strands_sglang.ledger.fingerprint import digest_of, earlier_in, experiment_id, fingerprint_in, stated_in
from strands_sglang.ledger.reader import Ledger

TEXT_CHARACTERS = 200
"""Maximum length of `prompt`, `text` and `failure` in a row, in characters."""

_MAX_VERSIONS = 64
_MAX_PARTS = 32
_LARGEST_PART = 1e300


class SummaryRow(TypedDict):
    """What a table shows of one episode. The row of an episode that has not ended covers its events so far."""

    id: str
    task_id: str
    sample: int
    """Number among the samples of the task, from 0."""
    reward: float | None
    """The newest reward; None: not scored, or scoring failed."""
    parts: dict[str, float]
    """The named parts of the newest reward that are finite numbers, at most 32."""
    reward_error: str | None
    """Why scoring failed, shortened; None: it did not."""
    end_reason: str | None
    """Why it ended, as the value of an `EndReason`; None: it has not ended."""
    failure: str | None
    """Class and message of the error that ended it, shortened; None: no error."""
    turns: int
    """Recorded turns, without those that were rolled back."""
    branches: int
    """Number of branches; 0 if it has not ended."""
    tokens: int
    """Recorded tokens; a token that several branches share counts once."""
    sampled_tokens: int
    """Sampled tokens; part of `tokens`."""
    prompt_tokens: int
    """Tokens of all prompts together; a token counts each time it was sent."""
    cached_tokens: int
    """The part of `prompt_tokens` served from the engine's prefix cache, as far as it was reported."""
    tool_calls: int
    tool_errors: int
    """Tool calls with an error as their result."""
    failed_calls: int
    """Malformed tool calls."""
    versions: list[str | None]
    """Weight versions in the order of first use, at most 64; None: the engine did not report one."""
    end_time: float | None
    """Unix time of the end in seconds; None: it has not ended."""
    seconds: float
    """Seconds from start to end in the last process; 0 if it has not ended."""
    engine_seconds: float
    """Seconds spent waiting for the engine, summed over calls."""
    tool_seconds: float
    """Seconds spent waiting for tools, summed over calls."""
    prompt: str
    """First `TEXT_CHARACTERS` characters of the task's prompt."""
    question: str
    """Digest of the task's whole prompt, 8 hex digits: tasks with another one ask something else; "": unknown."""
    text: str
    """First `TEXT_CHARACTERS` characters of the final text."""
    epoch: int
    """How many times it was resumed."""
    experiment: str
    """Digest of its fingerprint: rows with another one were run as another experiment; "": unknown. If it has turns of
    earlier calls with another one, their digests follow, each after a "+"."""
    events: int
    """Number of events that the row covers."""


# The accepted types and the default of each declared type of a column. A column with another type needs a line here.
_CHECKS: dict[str, tuple[tuple[type, ...], Any]] = {
    "str": ((str,), ""),
    "str | None": ((str,), None),
    "int": ((int,), 0),
    "float": ((int, float), 0.0),
    "float | None": ((int, float), None),
}
_COLUMNS = {
    name: _CHECKS[kind.__forward_arg__]
    for name, kind in SummaryRow.__annotations__.items()
    if name not in ("id", "versions", "parts")
}


def checked_row(id: str, values: Mapping[str, Any]) -> SummaryRow:
    """Return a row with every column; values of a wrong type are replaced by the column's default."""
    row: dict[str, Any] = {"id": id}
    for name, (types, default) in _COLUMNS.items():
        value = values.get(name)
        row[name] = value if type(value) in types else default
    known = as_list(values.get("versions"))[:_MAX_VERSIONS]
    row["versions"] = [one for one in known if one is None or isinstance(one, str)]
    row["parts"] = _parts(values.get("parts"))
    return row  # type: ignore[return-value]


def row_line(row: SummaryRow) -> bytes:
    """Return a row as one line of JSON."""
    try:
        return orjson.dumps(row) + b"\n"
    except TypeError:  # a lone surrogate
        return orjson.dumps(jsonable(row)) + b"\n"


def run_rows(directory: Path | str) -> list[SummaryRow]:
    """Return the row of every episode of a run, in the order of their first events.

    Args:
        directory: Directory of the run.

    Example:
        ```python
        bad = [row["id"] for row in run_rows("runs/first") if row["reward"] == 0]
        ```
    """
    builders: dict[str, SummaryBuilder] = {}
    for id, place in (ledger := Ledger(directory)).read_through():
        builders.setdefault(id, SummaryBuilder(id)).add_encoded(place.data)
    if again := {id: SummaryBuilder(id, keep=True) for id, builder in builders.items() if builder.outdated}:
        for id, place in ledger.events(again):
            again[id].add_encoded(place.data)
    return [(again.get(id) or builder).row() for id, builder in builders.items()]


class SummaryBuilder:
    """Computes the row of one episode from its events, added in any order. Holds no tokens and no messages.

    Events are believed as they are: damaged chains and wrong digests are the business of `verify`. Events of a process
    that lost the episode to another are left out. After the end of the episode, little of it is kept.

    Example:
        ```python
        builder = SummaryBuilder("sum/0")
        for raw in encoded_events:
            builder.add(decoded_head(raw))
        print(builder.row()["turns"])
        ```
    """

    __slots__ = ("_end", "_heads", "_keep", "_last", "count", "id", "outdated")

    def __init__(self, id: str, *, keep: bool = False) -> None:
        """Prepare; `keep`: keep everything, so that the row is right also if the episode is resumed after its end."""
        self.id = id
        self.count = 0
        self.outdated = False
        """Whether the episode was resumed after its end: all its events must be added to a builder that keeps them."""
        self._keep = keep
        self._heads: list[EventHead] = []
        self._last = (-1, -1)  # epoch and number of the last event, without scores
        self._end: tuple[int, int] | None = None  # of the end, if what came before it is not kept

    def add(self, head: EventHead) -> None:
        """Add an event."""
        self.count += 1
        if head.kind is EventKind.TOOL_LIST or head.kind in OF_OTHER_MODELS:
            return  # no column needs it
        at = head.epoch, head.number
        if self._end is not None and head.kind not in AFTER_END:
            self.outdated = self.outdated or at > self._end
            if at < self._end and not _needed(head, self._end):
                return
        counts = head.counts if head.kind is EventKind.CALL else _NO_COUNTS
        self._heads.append(EventHead(self.id, *at, head.kind, _light(head), counts))
        if head.kind in AFTER_END or at < self._last:
            return
        self._last = at
        if head.kind is EventKind.END and not self._keep:
            self._end = at
            self._heads = [one for one in self._heads if _needed(one, at)]

    def add_encoded(self, data: bytes) -> None:
        """Add an event as the ledger has it. One that cannot be decoded is counted; `verify` reports it."""
        try:
            self.add(decoded_head(data))
        except LedgerError:
            self.count += 1

    def row(self) -> SummaryRow:
        """Return the row of the events so far. `events` counts all added events, orphans and damaged ones included."""
        heads = list(_winning(self._heads))
        begin = next((head.data for head in heads if head.kind is EventKind.BEGIN), {})
        last = next((head for head in reversed(heads) if head.kind not in AFTER_END), None)
        ended = last is not None and last.kind is EventKind.END
        values = {
            **(last.data if ended and last is not None else _running_values(heads)),
            **_begin_values(self.id, begin),
            **_reward_values(_newest_reward(heads)),
            "experiment": experiment_id(fingerprint_in(heads), earlier_in(heads)),
            "epoch": max((head.epoch for head in self._heads), default=0),
            "events": self.count,
        }
        return checked_row(self.id, values)


_NO_COUNTS: dict[str, int] = {}
_NEEDED = (EventKind.BEGIN, EventKind.RESUME, EventKind.ROLLBACK, EventKind.END, *AFTER_END)


def _needed(head: EventHead, end: tuple[int, int]) -> bool:
    """Return whether the row of an episode that ended there needs an event."""
    return head.kind in _NEEDED or (head.kind is EventKind.CALL and head.epoch < end[0])


def _end_values(end: Mapping[str, Any]) -> dict[str, Any]:
    failure, metrics = end.get("failure"), as_dict(end.get("metrics"))  # the names of metrics are those of columns
    return {
        **{name: value for name in _COLUMNS if type(value := metrics.get(name)) in (int, float)},
        "versions": as_list(metrics.get("versions"))[:_MAX_VERSIONS],
        "end_reason": _scalar(end.get("end_reason")),
        "failure": _short(f"{failure.get('kind')}: {failure.get('message')}") if isinstance(failure, dict) else None,
        "end_time": _scalar(end.get("time")),
        "text": _short(end.get("text")),
    }


def _light(head: EventHead) -> dict[str, Any]:
    """Return the data of an event without messages, results and trajectories."""
    data = head.data
    if head.kind is EventKind.END:
        return _end_values(data)
    if head.kind is EventKind.BEGIN:
        return {
            "task": {
                **{"id": _scalar(as_dict(data.get("task")).get("id")), "prompt": _prompt(data)},
                "question": _question(data),
            },
            "sample": _scalar(data.get("sample")),
            "fingerprint": _digests(data),
        }
    if head.kind is EventKind.RESUME:
        return {"fingerprint": _digests(data)}
    if head.kind is EventKind.TOOL:
        result = data.get("result")
        failed = isinstance(result, dict) and result.get("status") == "error"
        return {"seconds": _number(data.get("seconds")), "failed": failed}
    if head.kind is EventKind.CALL:
        detail = as_dict(data.get("detail"))
        return {
            "turn": _number(data.get("turn")),
            "prompt_tokens": _number(data.get("prompt_tokens")),
            "versions": [span[0] for span in as_list(data.get("versions"))[:_MAX_VERSIONS] if _is_span(span)],
            "cached": _number(detail.get("cached_tokens")),
            "latency": _number(detail.get("latency_ms")),
            "failed": len(as_list(detail.get("failed_calls"))),
        }
    if head.kind is EventKind.REWARD:
        values = {"value": _scalar(data.get("value")), "parts": _parts(data.get("parts"))}
        return {**values, "error": _short(data.get("error")), "by": _digest(data.get("by"))}
    return {"turns": _number(data.get("turns"))} if head.kind is EventKind.ROLLBACK else {}


def _digests(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the fingerprint that an event states with digests in place of its texts, which may be long."""
    return {name: digest_of(text) for name, text in stated_in(data).items()}


def _digest(by: Any) -> str | None:
    return digest_of(by) if isinstance(by, str) else None


def _winning(heads: Iterable[EventHead]) -> list[EventHead]:
    """Return the events of the newest takeover's chain, in order."""
    by_epoch: dict[int, list[EventHead]] = {}
    for head in heads:
        by_epoch.setdefault(head.epoch, []).append(head)
    kept: list[EventHead] = []
    limit: float = float("inf")
    for epoch in sorted(by_epoch, reverse=True):
        kept += [head for head in by_epoch[epoch] if head.number < limit]
        taken = (head.number for head in by_epoch[epoch] if head.kind is EventKind.RESUME)
        limit = min(limit, min(taken, default=limit))
    return sorted(kept, key=lambda head: head.number)


def _newest_reward(heads: Iterable[EventHead]) -> dict[str, Any] | None:
    newest = None
    for head in heads:
        if head.kind is EventKind.REWARD:
            newest = head.data
        elif head.kind is EventKind.RESUME:
            newest = None
    return newest


def _running_values(heads: Iterable[EventHead]) -> dict[str, Any]:
    """Return the counts of an episode that has not ended."""
    calls: list[EventHead] = []
    tools: list[EventHead] = []
    for head in heads:
        if head.kind is EventKind.CALL:
            calls.append(head)
        elif head.kind is EventKind.TOOL:
            tools.append(head)
        elif head.kind is EventKind.ROLLBACK:
            calls = [call for call in calls if call.data["turn"] < head.data["turns"]]
    sampled = sum(call.counts.get("sampled", 0) for call in calls)
    return {
        "turns": len(calls),
        "tokens": sampled + sum(call.counts.get(name, 0) for call in calls for name in ("closing", "context")),
        "sampled_tokens": sampled,
        "prompt_tokens": int(sum(call.data["prompt_tokens"] for call in calls)),
        "cached_tokens": int(sum(call.data["cached"] for call in calls)),
        "tool_calls": len(tools),
        "tool_errors": sum(tool.data["failed"] for tool in tools),
        "failed_calls": sum(call.data["failed"] for call in calls),
        "versions": list(dict.fromkeys(one for call in calls for one in call.data["versions"])),
        "engine_seconds": float(sum(call.data["latency"] for call in calls) / 1000),
        "tool_seconds": float(sum(tool.data["seconds"] for tool in tools)),
    }


def _reward_values(reward: Mapping[str, Any] | None) -> dict[str, Any]:
    given = reward or {}
    error = _short(given.get("error")) or None
    return {"reward": given.get("value"), "parts": given.get("parts"), "reward_error": error}


def _begin_values(id: str, begin: Mapping[str, Any]) -> dict[str, Any]:
    task, sample = id.rpartition("/")[::2]
    return {
        "task_id": as_dict(begin.get("task")).get("id", task),
        "sample": begin.get("sample", int(sample) if sample.isascii() and sample.isdigit() else 0),
        "prompt": _prompt(begin),
        "question": as_dict(begin.get("task")).get("question"),
    }


def _question(begin: Mapping[str, Any]) -> str:
    prompt = as_dict(begin.get("task")).get("prompt")
    return digest_of(dump_text(prompt))[:8] if prompt else ""


def _prompt(begin: Mapping[str, Any]) -> str:
    prompt = as_dict(begin.get("task")).get("prompt")
    if isinstance(prompt, list):  # content blocks, or messages
        return _short(" ".join(str(block.get("text") or "") for block in prompt[:20] if isinstance(block, dict)))
    return _short(prompt)


def _short(text: Any) -> str:
    return text[:TEXT_CHARACTERS] if isinstance(text, str) else ""


def _parts(value: Any) -> dict[str, float]:
    numbers = {
        name[:TEXT_CHARACTERS]: float(part)
        for name, part in as_dict(value).items()
        if isinstance(name, str) and type(part) in (int, float) and -_LARGEST_PART < part < _LARGEST_PART
    }
    return dict(list(numbers.items())[:_MAX_PARTS])


def _is_span(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and (value[0] is None or isinstance(value[0], str))


def _scalar(value: Any) -> Any:
    """Return a value that holds no others; None for a list or a dict, which may be of any size."""
    return None if isinstance(value, (list, dict)) else value


def _number(value: Any) -> float:
    return value if type(value) in (int, float) else 0
