"""What a call event says, each checked by itself: `CallFacts`.

Invariant: facts that were read have the types that docs/ledger.md gives, ids, logprobs and version spans of the same
length, spans without gaps. Whether they follow from the turns before is the proof's to say.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import Event

LARGEST_LOGPROB = 1e-3
"""What a logprob may be above 0: engines subtract 32-bit floats, and those of some thousands are rounded by as much."""

PURPOSES = ("episode", "side", "constrained")
"""What a turn may be sampled for."""

_JOINS_ALONE = ("root", "forked")
_JOINS_BEHIND = ("proved", "kept", "forked")


@dataclass(slots=True, eq=False)
class CallFacts:
    """One turn as the ledger tells it."""

    number: int
    """Number of the event."""
    turn: int
    """Id of the turn."""
    parent: int | None
    """Id of the turn it goes on from."""
    start: int
    """Position in the branch of its first token."""
    purpose: str
    """What it was sampled for."""
    join: str
    """How it was joined to its parent."""
    named: tuple[int, ...]
    """Ids of further turns it says it comes from: what it was forked from, its caller."""
    prompt: str
    """Digest of the prompt that was sent."""
    sent: int
    """Tokens of that prompt."""
    detail: Mapping[str, Any]
    """What else is known of the call."""
    closing: npt.NDArray[np.int32]
    """Tokens that close the parent's turn."""
    context: npt.NDArray[np.int32]
    """Tokens rendered from the template."""
    sampled: npt.NDArray[np.int32]
    """Tokens that came out of the engine."""
    logprobs: npt.NDArray[np.float64]
    """Log-probability of each sampled token."""
    spans: tuple[tuple[str | None, int], ...]
    """Weight versions, and how many sampled tokens are of each, in order."""

    @property
    def first(self) -> int:
        """Position in the branch of its first sampled token."""
        return self.start + len(self.closing) + len(self.context)

    @property
    def end(self) -> int:
        """Position in the branch behind its last token."""
        return self.first + len(self.sampled)

    def misjoined(self) -> str | None:
        """Return why a turn cannot be joined in this way; None when it can."""
        if self.join not in (_JOINS_ALONE if self.parent is None else _JOINS_BEHIND):
            where = "without a turn before it" if self.parent is None else "behind another turn"
            return f"joined as {self.join!r:.50}, {where}"
        if self.parent is None and len(self.closing):
            return f"{len(self.closing)} closing tokens, but no turn before them to close"
        return None

    def impossible(self) -> tuple[int, str] | None:
        """Return the position of the first token that cannot be, and why; None when all can."""
        for at, values in (
            (self.start, self.closing),
            (self.start + len(self.closing), self.context),
            (self.first, self.sampled),
        ):
            if len(values) and values.min() < 0:
                where = int((values < 0).argmax())
                return at + where, f"{values[where]} is not a token id"
        good = np.isfinite(self.logprobs) & (self.logprobs <= LARGEST_LOGPROB)
        if not good.all():
            where = int(good.argmin())
            return self.first + where, f"{self.logprobs[where]} is not a logprob"
        return None


def read_call(event: Event) -> CallFacts:
    """Return what a call event says.

    Raises:
        LedgerError: It is not of the form of a call.
    """
    data = event.data
    caller: Any = data.get("caller")
    if caller is not None and not (
        isinstance(caller, list) and len(caller) == 2 and isinstance(caller[1], str | None) and _whole(caller[0])
    ):
        raise LedgerError(f"its caller is {caller!r:.100}")
    forked_from = _number(data, "forked_from", nothing=True)
    sampled, logprobs = _values(event, "sampled", "i"), _values(event, "logprobs", "d")
    if len(logprobs) != len(sampled):
        raise LedgerError(f"{len(sampled)} sampled tokens but {len(logprobs)} logprobs")
    within = data.get("within", [])
    if not isinstance(within, list) or not all(isinstance(call, str) for call in within):
        raise LedgerError(f"it says it is within {within!r:.100}")
    _number(data, "requests") if "requests" in data else None
    facts = CallFacts(
        number=event.number,
        turn=_required(data, "turn"),
        parent=_number(data, "parent", nothing=True),
        start=_required(data, "start"),
        purpose=_text(data, "purpose"),
        join=_text(data, "join"),
        named=tuple(id for id in (forked_from, None if caller is None else caller[0]) if id is not None),
        prompt=_text(data, "prompt"),
        sent=_required(data, "sent"),
        detail=data["detail"] if isinstance(data.get("detail"), dict) else {},
        closing=_values(event, "closing", "i"),
        context=_values(event, "context", "i"),
        sampled=sampled,
        logprobs=logprobs,
        spans=_spans(data.get("versions"), len(sampled)),
    )
    if facts.purpose not in PURPOSES:
        raise LedgerError(f"its purpose is {facts.purpose!r:.50}")
    _text(data, "finish")
    _check_experts(event, facts.end)
    return facts


def _check_experts(event: Event, end: int) -> None:
    experts: Any = event.data.get("experts")
    values = event.arrays.get("experts")
    if experts is None and values is None:
        return
    rows = experts.get("rows") if isinstance(experts, dict) else None
    if values is None or not isinstance(rows, list) or not all(_whole(row) for row in rows):
        raise LedgerError(f"its experts are {experts!r:.100}")
    count, start = sum(rows), _required(experts, "start")
    if start + count > end or (len(values) % (4 * count) if count else len(values)):
        raise LedgerError(f"{len(values)} bytes of experts do not make {count} rows from {start} on of {end}")


def _spans(spans: Any, count: int) -> tuple[tuple[str | None, int], ...]:
    found, at = [], 0
    for span in spans if isinstance(spans, list) else [spans]:
        if not isinstance(span, list) or len(span) != 3 or not isinstance(span[0], str | None):
            raise LedgerError(f"its versions are {spans!r:.100}")
        version, start, end = span
        if not _whole(start) or not _whole(end) or start != at or end <= at:
            raise LedgerError(f"its version spans {spans!r:.100} have a gap or overlap at sampled token {at}")
        found.append((version, end - start))
        at = end
    if at != count:
        raise LedgerError(f"its version spans cover {at} of {count} sampled tokens")
    return tuple(found)


def _values(event: Event, name: str, code: str) -> npt.NDArray[Any]:
    values = event.arrays.get(name)
    if not isinstance(values, array) or values.typecode != code:
        raise LedgerError(f"it has no array {name!r} of type {code!r}")
    return np.asarray(values)


def _whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _number(data: Mapping[str, Any], name: str, *, nothing: bool = False) -> int | None:
    value = data.get(name)
    if not (value is None and nothing) and not _whole(value):
        raise LedgerError(f"its {name} is {value!r:.50}")
    return value


def _required(data: Mapping[str, Any], name: str) -> int:
    value = _number(data, name)
    assert value is not None
    return value


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise LedgerError(f"its {name} is {value!r:.50}")
    return value
