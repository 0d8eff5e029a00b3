"""Tampering with a ledger in memory: `LedgerEditor` and the changes in `CHANGES`.

`plain` encodes the edited events with their old digests. `forged` recomputes every digest, number and takeover, as an
attacker who knows the format would; `rewritten` also the trajectories that end events declare. None changes what is
stored apart from the events, such as a seal.
"""

from __future__ import annotations

import copy
import pickle
import random
from array import array
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from strands_sglang.ledger.encoding import decoded, encoded, first_link, link, trajectory_summary
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.ledger.record import EpisodeRecord

Change = Callable[["LedgerEditor", random.Random], bool]
"""Changes the events of an editor; returns False if there is nothing to change."""


@dataclass(eq=False)
class EditedEvent:
    """One event of a ledger."""

    event: Event
    raw: bytes
    """Its original bytes; empty for a new event."""
    before: EditedEvent | None = None
    """Preceding event."""


class LedgerEditor:
    """Events of any number of episodes, in the order they were written."""

    def __init__(self, raws: Iterable[bytes]) -> None:
        self.events: list[EditedEvent] = []
        for raw in raws:
            event, body, _ = decoded(raw)
            entry = EditedEvent(event, raw)
            if event.number:
                entry.before = next(
                    one
                    for one in reversed(self.events)
                    if one.event.episode == event.episode and link(one.event.digest, body) == event.digest
                )
            self.events.append(entry)
        self._pickled = pickle.dumps(self.events)

    def copy(self) -> LedgerEditor:
        """Return an independent copy."""
        again = LedgerEditor(())
        again.events = pickle.loads(self._pickled)
        return again

    def of(self, *kinds: EventKind) -> list[EditedEvent]:
        return [entry for entry in self.events if entry.event.kind in kinds]

    def after(self, entry: EditedEvent) -> list[EditedEvent]:
        return [one for one in self.events if one.before is entry]

    def plain(self) -> list[bytes]:
        """Return the encoded events with their old digests."""
        raws = []
        for entry in self.events:
            digest = entry.event.digest
            again = copy.copy(entry.event)
            previous = first_link(again.episode) if entry.before is None else entry.before.event.digest
            raws.append(encoded(again, previous)[: -len(digest)] + digest)
        return raws

    def forged(self) -> list[bytes]:
        """Return the encoded events with recomputed digests, numbers and takeovers."""
        raws = []
        for entry in self.events:  # a predecessor comes before its successor
            event, before = entry.event, entry.before
            event.number = 0 if before is None else before.event.number + 1
            if before is not None and event.kind is EventKind.RESUME:
                event.data |= {"from_event": before.event.number, "head": before.event.digest.hex()}
            raws.append(encoded(event, first_link(event.episode) if before is None else before.event.digest))
        return raws

    def rewritten(self) -> list[bytes]:
        """Return the encoded events with every digest recomputed but those of prompts, which say what was sent."""
        for end in (entry.event for entry in self.of(EventKind.END)):
            events = tuple(entry.event for entry in self.events if entry.event.episode == end.episode)
            with suppress(Exception):  # of what is no tree, the trajectories stay as they were
                tree = EpisodeRecord(end.episode, events).tree()
                end.data["trajectories"] = [dict(trajectory_summary(one)) for one in tree.trajectories()]
        return self.forged()


def token(editor: LedgerEditor, rng: random.Random) -> bool:
    """Change one token."""
    arrays = [
        entry.event.arrays[name]
        for entry in editor.of(EventKind.CALL)
        for name in ("closing", "context", "sampled")
        if entry.event.arrays[name]
    ]
    values = rng.choice(arrays)
    at = rng.randrange(len(values))
    values[at] = rng.choice([values[at] + 1, values[at] ^ 1, rng.randrange(151_000)])
    return True


def logprob(editor: LedgerEditor, rng: random.Random) -> bool:
    """Change one logprob, possibly by one bit."""
    values = rng.choice([one for entry in editor.of(EventKind.CALL) if (one := entry.event.arrays["logprobs"])])
    at = rng.randrange(len(values))
    bits = memoryview(values).cast("B").cast("Q")
    choice = rng.randrange(3)
    if choice == 0:
        bits[at] ^= 1
    else:
        values[at] = -rng.random() if choice == 1 else rng.choice([0.5, float("nan"), float("-inf")])
    return True


def version(editor: LedgerEditor, rng: random.Random) -> bool:
    """Change the weight version of some tokens."""
    spans = rng.choice([one for entry in editor.of(EventKind.CALL) if (one := entry.event.data["versions"])])
    at = rng.randrange(len(spans))
    if len(spans) > 1 and rng.random() < 0.5:
        first, second = spans[0], spans[1]
        first[2] = second[1] = rng.choice([place for place in range(first[1] + 1, second[2])] or [first[2]])
    else:
        spans[at][0] = rng.choice(["v1", "v2", "step-9", None])
    return True


def mask(editor: LedgerEditor, rng: random.Random) -> bool:
    """Change which tokens are trained."""
    end = rng.choice([entry for entry in editor.of(EventKind.END) if "rejected" in entry.event.data]).event.data
    calls = editor.of(EventKind.CALL)
    choice = rng.randrange(4)
    if choice == 0:
        turn = rng.randrange(end["metrics"]["turns"] or 1)
        end["rejected"] = sorted(set(end["rejected"]) ^ {turn})
    elif choice == 1:
        rng.choice(calls).event.data["purpose"] = rng.choice(["episode", "side", "constrained"])
    elif end["trajectories"]:
        one = rng.choice(end["trajectories"])
        if choice == 2:
            one["trained_tokens"] += rng.choice([-1, 1])
        else:
            one["trained_turns"] = sorted(set(one["trained_turns"]) ^ {rng.randrange(end["metrics"]["turns"] + 1)})
    return True


def place(editor: LedgerEditor, rng: random.Random) -> bool:
    """Change the position of a turn, or its prompt."""
    data = rng.choice(editor.of(EventKind.CALL)).event.data
    name = rng.choice(["turn", "parent", "start", "join", "prompt_tokens", "prompt_digest", "detail", "forked_from"])
    if name == "prompt_digest":
        data[name] = _other_hex(data[name], rng)
    elif name == "join":
        data[name] = rng.choice(["root", "proved", "kept", "forked"])
    elif name == "detail":
        data["detail"]["prompt_tokens"] += rng.choice([-1, 1])
    elif name in ("parent", "forked_from"):
        data[name] = rng.choice([None, *range(data["turn"] + 2)])
    else:
        data[name] += rng.choice([-1, 1, 7])
    return True


def declared(editor: LedgerEditor, rng: random.Random) -> bool:
    """Change the declarations of an end event."""
    end = rng.choice([entry for entry in editor.of(EventKind.END) if "rejected" in entry.event.data]).event.data
    name = rng.choice(["digest", "tokens", "branch", "drop", "order", "metrics"])
    those = end["trajectories"]
    if name == "metrics":
        end["metrics"][rng.choice(["turns", "tokens", "sampled_tokens"])] += 1
    elif not those:
        return False
    elif name == "drop":
        those.pop(rng.randrange(len(those)))
    elif name == "order":
        rng.shuffle(those)
    else:
        one = rng.choice(those)
        one[name] = _other_hex(one[name], rng) if name == "digest" else one[name] + rng.choice([-1, 1])
    return True


def story(editor: LedgerEditor, rng: random.Random) -> bool:
    """Change data other than tokens: the task, a tool's result, the reward, the final messages."""
    entry = rng.choice(
        editor.of(EventKind.BEGIN, EventKind.TOOL, EventKind.REWARD, EventKind.END, EventKind.CALL_ERROR)
    )
    data = entry.event.data
    name = rng.choice([name for name in data if name not in ("metrics", "rejected", "trajectories")])
    data[name] = _other(data[name], rng)
    return True


def order(editor: LedgerEditor, rng: random.Random) -> bool:
    """Swap two events of an episode."""
    first = rng.choice(editor.events)
    others = [entry for entry in editor.events if entry.event.episode == first.event.episode and entry is not first]
    _exchange(first, rng.choice(others))
    return True


def swap(editor: LedgerEditor, rng: random.Random) -> bool:
    """Swap events of the same kind between two episodes."""
    first = rng.choice(editor.events)
    others = [
        entry
        for entry in editor.events
        if entry.event.kind is first.event.kind and entry.event.episode != first.event.episode
    ]
    if others:
        _exchange(first, rng.choice(others))
    return bool(others)


def drop(editor: LedgerEditor, rng: random.Random) -> bool:
    """Remove an event."""
    entry = rng.choice(editor.events)
    for one in editor.after(entry):
        one.before = entry.before
    editor.events.remove(entry)
    return True


def duplicate(editor: LedgerEditor, rng: random.Random) -> bool:
    """Insert a copy of an event after it."""
    entry = rng.choice(editor.events)
    again = copy.deepcopy(EditedEvent(entry.event, entry.raw))
    again.before = entry
    for one in editor.after(entry):
        one.before = again
    editor.events.insert(editor.events.index(entry) + 1, again)
    return True


def number(editor: LedgerEditor, rng: random.Random) -> bool:
    """Change the number, epoch or episode of an event."""
    event = rng.choice(editor.events).event
    choice = rng.randrange(3)
    if choice == 0:
        event.epoch += rng.choice([1, 2])
    elif choice == 1:
        event.number += rng.choice([1, 2])
    else:
        event.episode = rng.choice([entry.event.episode for entry in editor.events] + ["another/0"])
    return True


CHANGES: dict[str, Change] = {
    "token": token,
    "logprob": logprob,
    "version": version,
    "mask": mask,
    "place": place,
    "declared": declared,
    "story": story,
    "order": order,
    "swap": swap,
    "drop": drop,
    "duplicate": duplicate,
    "number": number,
}
"""All changes, by name."""


def _exchange(first: EditedEvent, second: EditedEvent) -> None:
    one, other = first.event, second.event
    one.kind, other.kind = other.kind, one.kind
    one.data, other.data = other.data, one.data
    one.arrays, other.arrays = other.arrays, one.arrays


def _other(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool) or value is None:
        return "something"
    if isinstance(value, int | float):
        return value + rng.choice([-1, 1])
    if isinstance(value, str):
        return value + rng.choice("xyz")
    if isinstance(value, list):
        return [*value, "something"]
    if isinstance(value, dict) and value:
        name = rng.choice(list(value))
        return {**value, name: _other(value[name], rng)}
    return {"something": 1} if isinstance(value, dict) else array("i")


def _other_hex(value: str, rng: random.Random) -> str:
    at = rng.randrange(len(value))
    return value[:at] + rng.choice([digit for digit in "0123456789abcdef" if digit != value[at]]) + value[at + 1 :]
