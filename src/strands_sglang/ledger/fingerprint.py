"""Reads from events which experiment an episode was run as: its fingerprint, one text for each part.

Invariant: the fingerprint is that of the call that ran the episode last, with the reward function of its newest score.
It has no other parts than `PARTS`, whatever an event states. An episode that still has turns of an earlier call is also
of that experiment (`earlier_in`).
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from strands_sglang._json import as_dict
from strands_sglang.ledger.event import EventKind

PARTS = ("template", "parser", "agent", "reward", "settings", "model", "packages")
"""The parts of a fingerprint."""
_OF_TURNS = ("agent", "settings", "model", "packages")
"""The parts that turns and tool results depend on, and that may differ between calls."""


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


def stated_for_turns(events: Iterable[_Event]) -> dict[int, dict[str, str]]:
    """Return the fingerprint of the call that made each turn, by turn, without turns that were rolled back."""
    stated: dict[str, str] = {}
    turns: dict[int, dict[str, str]] = {}
    for event in events:
        if event.kind in (EventKind.BEGIN, EventKind.RESUME):
            stated = stated | stated_in(event.data)
        elif event.kind is EventKind.CALL and isinstance(turn := event.data.get("turn"), int):
            turns[turn] = stated
        elif event.kind is EventKind.ROLLBACK and isinstance(left := event.data.get("turns"), int):
            turns = {turn: one for turn, one in turns.items() if turn < left}
    return turns


def earlier_of(last: Mapping[str, str], turns: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return in what the fingerprints of turns differ from the last one, each once; empty: in nothing."""
    found: list[dict[str, str]] = []
    for one in {id(one): one for one in turns}.values():
        known = (name for name in _OF_TURNS if name in one and name in last)
        parts = {name: one[name] for name in known if one[name] != last[name]}
        if parts and parts not in found:
            found.append(parts)
    return found


def earlier_in(events: Sequence[_Event]) -> list[dict[str, str]]:
    """Return in what earlier calls that turns of an episode are of differ from the last one, from its events."""
    return earlier_of(fingerprint_in(events), stated_for_turns(events).values())


def stated_in(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the fingerprint that the data of a `BEGIN` or `RESUME` event states."""
    stated = as_dict(data.get("fingerprint"))
    return {name: value for name in PARTS if isinstance(value := stated.get(name), str)}


def experiment_id(fingerprint: Mapping[str, str], earlier: Iterable[Mapping[str, str]] = ()) -> str:
    """Return short digests of a fingerprint and of those that differ from it, joined by "+"; "" if it is empty."""
    whole = (fingerprint, *({**fingerprint, **parts} for parts in earlier))
    return "+".join(digest_of("\0".join(f"{name}\0{one[name]}" for name in sorted(one)))[:8] for one in whole)


def digest_of(text: str) -> str:
    """Return a digest of a text, the same object for equal texts; "" of the empty one."""
    data = text.encode("utf-8", "surrogatepass")
    return sys.intern(hashlib.blake2b(data, digest_size=16).hexdigest()) if text else ""


def differing(episodes: Iterable[Iterable[Mapping[str, str]]]) -> dict[str, dict[str, int]]:
    """Return the parts that have several values: each with its number of episodes; empty: one experiment.

    `episodes`: of each, its fingerprint, and in what those of earlier calls differ from it (`earlier_in`).
    """
    values: dict[str, Counter[str]] = {}
    for fingerprints in episodes:
        for name, value in dict.fromkeys(item for one in fingerprints for item in one.items()):
            values.setdefault(name, Counter())[value] += 1
    return {name: dict(counts) for name, counts in values.items() if len(counts) > 1}
