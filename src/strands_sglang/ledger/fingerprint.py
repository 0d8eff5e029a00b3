"""Reads from events which experiment an episode was run as: its fingerprint, one text for each part.

Invariant: the fingerprint is that of the call that ran the episode last, with the reward function of its newest score.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from strands_sglang._json import as_dict
from strands_sglang.ledger.event import EventKind


class _Event(Protocol):
    @property
    def kind(self) -> EventKind: ...
    @property
    def data(self) -> dict[str, Any]: ...


def fingerprint_in(events: Iterable[_Event]) -> dict[str, str]:
    """Return the fingerprint of an episode from its events, in order."""
    found: dict[str, Any] = {}
    for event in events:
        if event.kind in (EventKind.BEGIN, EventKind.RESUME):
            found |= as_dict(event.data.get("fingerprint"))
        elif event.kind is EventKind.REWARD and (by := event.data.get("by")) is not None:
            found["reward"] = by
    return {name: value for name, value in found.items() if isinstance(value, str)}


def experiment_id(fingerprint: Mapping[str, str]) -> str:
    """Return a short digest of a fingerprint; "" if it is empty."""
    text = "\0".join(f"{name}\0{fingerprint[name]}" for name in sorted(fingerprint))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest() if text else ""


def differing(fingerprints: Iterable[Mapping[str, str]]) -> dict[str, dict[str, int]]:
    """Return the parts in which episodes differ: each value with its number of episodes; empty: one experiment."""
    values: dict[str, Counter[str]] = {}
    for one in fingerprints:
        for name, value in one.items():
            values.setdefault(name, Counter())[value] += 1
    return {name: dict(counts) for name, counts in values.items() if len(counts) > 1}
