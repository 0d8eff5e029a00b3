"""Reads from events which experiment an episode was run as: its fingerprint, one text for each part.

Invariant: the fingerprint is that of the call that ran the episode last, with the reward function of its newest score.
It has no other parts than `PARTS`, whatever an event states.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from strands_sglang._json import as_dict
from strands_sglang.ledger.event import EventKind

PARTS = ("template", "parser", "agent", "reward", "settings", "model", "packages")
"""The parts of a fingerprint."""


class _Event(Protocol):
    @property
    def kind(self) -> EventKind: ...
    @property
    def data(self) -> dict[str, Any]: ...


def fingerprint_in(events: Iterable[_Event]) -> dict[str, str]:
    """Return the fingerprint of an episode from its events, in order."""
    found: dict[str, str] = {}
    for event in events:
        if event.kind in (EventKind.BEGIN, EventKind.RESUME):
            found |= stated_in(event.data)
        elif event.kind is EventKind.REWARD and isinstance(by := event.data.get("by"), str):
            found["reward"] = by
    return found


def stated_in(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the fingerprint that the data of a `BEGIN` or `RESUME` event states."""
    stated = as_dict(data.get("fingerprint"))
    return {name: value for name in PARTS if isinstance(value := stated.get(name), str)}


def experiment_id(fingerprint: Mapping[str, str]) -> str:
    """Return a short digest of a fingerprint; "" if it is empty."""
    return digest_of("\0".join(f"{name}\0{fingerprint[name]}" for name in sorted(fingerprint)))[:8]


def digest_of(text: str) -> str:
    """Return a digest of a text, the same object for equal texts; "" of the empty one."""
    data = text.encode("utf-8", "surrogatepass")
    return sys.intern(hashlib.blake2b(data, digest_size=16).hexdigest()) if text else ""


def differing(fingerprints: Iterable[Mapping[str, str]]) -> dict[str, dict[str, int]]:
    """Return the parts in which episodes differ: each value with its number of episodes; empty: one experiment."""
    values: dict[str, Counter[str]] = {}
    for one in fingerprints:
        for name, value in one.items():
            values.setdefault(name, Counter())[value] += 1
    return {name: dict(counts) for name, counts in values.items() if len(counts) > 1}
