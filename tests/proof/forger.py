"""Somebody who changes a ledger in memory: `Book`, which is edited and written out again.

`plain` writes an edited book with the digests it had; `forged` works out every digest of its episodes anew, numbers and
takeovers included, as somebody would who knows the format. Neither touches what is kept apart from the events: a seal.
"""

from __future__ import annotations

import copy
import pickle
import random
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from strands_sglang.ledger.event import Event, EventKind, decoded, encoded, first_link, link

Change = Callable[["Book", random.Random], bool]
"""Changes a book; returns False where it has nothing to change."""


@dataclass(eq=False)
class Line:
    """One event of a book."""

    event: Event
    raw: bytes
    """As it was written; b"" when it is new."""
    before: Line | None = None
    """The event it follows."""


class Book:
    """Events of any number of episodes, in the order they were written."""

    def __init__(self, raws: Iterable[bytes]) -> None:
        self.lines: list[Line] = []
        for raw in raws:
            event, body, _ = decoded(raw)
            line = Line(event, raw)
            if event.number:
                line.before = next(
                    one
                    for one in reversed(self.lines)
                    if one.event.episode == event.episode and link(one.event.digest, body) == event.digest
                )
            self.lines.append(line)
        self._pickled = pickle.dumps(self.lines)

    def copy(self) -> Book:
        """Return a book that can be edited without changing this one."""
        again = Book(())
        again.lines = pickle.loads(self._pickled)
        return again

    def of(self, *kinds: EventKind) -> list[Line]:
        return [line for line in self.lines if line.event.kind in kinds]

    def behind(self, line: Line) -> list[Line]:
        return [one for one in self.lines if one.before is line]

    def plain(self) -> list[bytes]:
        """Write it with the digests it had."""
        raws = []
        for line in self.lines:
            digest = line.event.digest
            again = copy.copy(line.event)
            previous = first_link(again.episode) if line.before is None else line.before.event.digest
            raws.append(encoded(again, previous)[: -len(digest)] + digest)
        return raws

    def forged(self) -> list[bytes]:
        """Write it with digests, numbers and takeovers that follow from each other."""
        raws = []
        for line in self.lines:  # what comes before is written before
            event, before = line.event, line.before
            event.number = 0 if before is None else before.event.number + 1
            if before is not None and event.kind is EventKind.RESUME:
                event.data |= {"from": before.event.number, "head": before.event.digest.hex()}
            raws.append(encoded(event, first_link(event.episode) if before is None else before.event.digest))
        return raws


def token(book: Book, rng: random.Random) -> bool:
    """Change one token."""
    arrays = [
        line.event.arrays[name]
        for line in book.of(EventKind.CALL)
        for name in ("closing", "context", "sampled")
        if line.event.arrays[name]
    ]
    values = rng.choice(arrays)
    at = rng.randrange(len(values))
    values[at] = rng.choice([values[at] + 1, values[at] ^ 1, rng.randrange(151_000)])
    return True


def logprob(book: Book, rng: random.Random) -> bool:
    """Change one logprob, by as little as can be."""
    values = rng.choice([one for line in book.of(EventKind.CALL) if (one := line.event.arrays["logprobs"])])
    at = rng.randrange(len(values))
    bits = memoryview(values).cast("B").cast("Q")
    choice = rng.randrange(3)
    if choice == 0:
        bits[at] ^= 1
    else:
        values[at] = -rng.random() if choice == 1 else rng.choice([0.5, float("nan"), float("-inf")])
    return True


def version(book: Book, rng: random.Random) -> bool:
    """Change which weights sampled some tokens."""
    spans = rng.choice([one for line in book.of(EventKind.CALL) if (one := line.event.data["versions"])])
    at = rng.randrange(len(spans))
    if len(spans) > 1 and rng.random() < 0.5:
        first, second = spans[0], spans[1]
        first[2] = second[1] = rng.choice([place for place in range(first[1] + 1, second[2])] or [first[2]])
    else:
        spans[at][0] = rng.choice(["v1", "v2", "step-9", None])
    return True


def mask(book: Book, rng: random.Random) -> bool:
    """Change what is trained."""
    end = rng.choice([line for line in book.of(EventKind.END) if "rejected" in line.event.data]).event.data
    calls = book.of(EventKind.CALL)
    choice = rng.randrange(4)
    if choice == 0:
        turn = rng.randrange(end["metrics"]["turns"] or 1)
        end["rejected"] = sorted(set(end["rejected"]) ^ {turn})
    elif choice == 1:
        rng.choice(calls).event.data["purpose"] = rng.choice(["episode", "side", "constrained"])
    elif end["trajectories"]:
        one = rng.choice(end["trajectories"])
        if choice == 2:
            one["loss"] += rng.choice([-1, 1])
        else:
            one["trained"] = sorted(set(one["trained"]) ^ {rng.randrange(end["metrics"]["turns"] + 1)})
    return True


def place(book: Book, rng: random.Random) -> bool:
    """Change where a turn stands, or what was sent."""
    data = rng.choice(book.of(EventKind.CALL)).event.data
    name = rng.choice(["turn", "parent", "start", "join", "sent", "prompt", "prompt_tokens", "forked_from"])
    if name == "prompt":
        data[name] = _other_hex(data[name], rng)
    elif name == "join":
        data[name] = rng.choice(["root", "proved", "kept", "forked"])
    elif name == "prompt_tokens":
        data["detail"][name] += rng.choice([-1, 1])
    elif name in ("parent", "forked_from"):
        data[name] = rng.choice([None, *range(data["turn"] + 2)])
    else:
        data[name] += rng.choice([-1, 1, 7])
    return True


def declared(book: Book, rng: random.Random) -> bool:
    """Change what the end of an episode declares."""
    end = rng.choice([line for line in book.of(EventKind.END) if "rejected" in line.event.data]).event.data
    name = rng.choice(["digest", "tokens", "leaf", "drop", "order", "metrics"])
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


def story(book: Book, rng: random.Random) -> bool:
    """Change what does not concern tokens: the task, a tool's result, the reward, the last words."""
    line = rng.choice(book.of(EventKind.BEGIN, EventKind.TOOL, EventKind.REWARD, EventKind.END, EventKind.FAULT))
    data = line.event.data
    name = rng.choice([name for name in data if name not in ("metrics", "rejected", "trajectories")])
    data[name] = _other(data[name], rng)
    return True


def order(book: Book, rng: random.Random) -> bool:
    """Exchange two events of an episode."""
    first = rng.choice(book.lines)
    others = [line for line in book.lines if line.event.episode == first.event.episode and line is not first]
    _exchange(first, rng.choice(others))
    return True


def swap(book: Book, rng: random.Random) -> bool:
    """Exchange events of the same kind between two episodes."""
    first = rng.choice(book.lines)
    others = [
        line for line in book.lines if line.event.kind is first.event.kind and line.event.episode != first.event.episode
    ]
    if others:
        _exchange(first, rng.choice(others))
    return bool(others)


def drop(book: Book, rng: random.Random) -> bool:
    """Take an event out."""
    line = rng.choice(book.lines)
    for one in book.behind(line):
        one.before = line.before
    book.lines.remove(line)
    return True


def duplicate(book: Book, rng: random.Random) -> bool:
    """Write an event twice, the second time behind the first."""
    line = rng.choice(book.lines)
    again = copy.deepcopy(Line(line.event, line.raw))
    again.before = line
    for one in book.behind(line):
        one.before = again
    book.lines.insert(book.lines.index(line) + 1, again)
    return True


def number(book: Book, rng: random.Random) -> bool:
    """Change where an event says it stands."""
    event = rng.choice(book.lines).event
    choice = rng.randrange(3)
    if choice == 0:
        event.epoch += rng.choice([1, 2])
    elif choice == 1:
        event.number += rng.choice([1, 2])
    else:
        event.episode = rng.choice([line.event.episode for line in book.lines] + ["another/0"])
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
"""Every change, by its name."""


def _exchange(first: Line, second: Line) -> None:
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
