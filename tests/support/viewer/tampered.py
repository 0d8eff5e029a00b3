"""Copies of a run that were changed after they were recorded, with all digests made again."""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from strands_sglang.ledger.encoding import encoded, first_link
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.run_dir import write_run
from strands_sglang.ledger.shard import OpenShard

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 3, 1 << 62, 1e300, -0.5, "", "text", "\u202e<script>", [], {}, [None], ["a", 1], [[["x"]]]),
    *({"text": 5}, {"value": "x"}, {"role": "user", "content": "plain"}, [{"id": 1}]),
)
"""What a value of an event is replaced by."""


def tampered_run(source: Path, into: Path, id: str, *, turn: int = 0, token: int = 3) -> Path:
    """Return a directory with the episodes of a run, where a sampled token of one episode is another."""
    (into / "ledger").mkdir(parents=True)
    shutil.copy(source / "run.json", into / "run.json")
    shard = OpenShard(into / "ledger" / "0-tampered.ledger", {"format": 1, "worker": "0"})
    for record in Ledger(source).episodes():
        for event in record.events:
            if record.id == id and event.kind is EventKind.CALL and event.data["turn"] == turn:
                event.arrays["sampled"][token] += 1
        _append(shard, record.id, record.events)
    shard.close()
    return into


def _append(shard: OpenShard, id: str, events: Iterable[Event]) -> None:
    """Write the events of an episode with new digests."""
    head = first_link(id)
    for event in events:
        shard.append(encoded(event, head), 1)
        head = event.digest


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container and key below a value."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


def _changed(event: Event, rng: random.Random) -> Event:
    """Return an event with one to three values replaced or removed."""
    event = copy.deepcopy(event)
    for _ in range(rng.randrange(1, 4)):
        known = list(_places(event.data))
        if not known:
            break
        holder, key = rng.choice(known)
        if isinstance(holder, dict) and rng.random() < 0.2:
            del holder[key]
        else:
            holder[key] = copy.deepcopy(rng.choice(ODD_VALUES))
    if rng.random() < 0.1:
        event.number = rng.choice([0, 5, 1 << 40])
    return event


def _write_episodes(directory: Path, episodes: dict[str, list[Event]]) -> None:
    (directory / "ledger").mkdir(parents=True)
    write_run(directory, {"run": "7c" * 16, "settings": {"chat_template_kwargs": {"messages": 1}}})
    shard = OpenShard(directory / "ledger" / "0-odd.ledger", {"format": 1, "worker": "0"})
    for id, events in episodes.items():
        _append(shard, id, events)
    shard.close()


def odd_run(source: Path, into: Path, *, seed: int = 0, episodes: int = 16) -> Path:
    """Return a directory with some episodes of a run, where values of their events are anything."""
    rng = random.Random(seed)
    originals = {record.id: record.events for record in Ledger(source).episodes()}
    changed: dict[str, list[Event]] = {}
    for id in rng.sample(sorted(originals), episodes):
        events = changed[id] = list(originals[id])
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(events))
            events[at] = _changed(events[at], rng)
    _write_episodes(into, changed)
    return into
