from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from strands_sglang.ledger.encoding import HashChain, decoded, encoded, first_link
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.ledger.reader import Placed, resolved
from strands_sglang.ledger.record import ChainFault, EpisodeRecord
from support.ledger.episodes import (
    Recorder,
    Sink,
    made_by,
    plain_episode,
    random_episode,
    resumed_episode,
    rich_episode,
)


def record_of(*shards: Sequence[bytes]) -> EpisodeRecord:
    """Return the record of an episode whose events are in some shards, each event in its own block."""
    places = [Placed(event, str(number), at) for number, shard in enumerate(shards) for at, event in enumerate(shard)]
    return resolved(decoded(places[0].data)[0].episode, places)


def faults(record: EpisodeRecord) -> list[tuple[ChainFault, int | None, str, int]]:
    return [(problem.kind, problem.number, problem.shard, problem.byte) for problem in record.problems]


@pytest.mark.parametrize("make", [plain_episode, rich_episode, resumed_episode])
def test_chain_is_restored(make: Callable[[Sink], Recorder]) -> None:
    events, recorder = made_by(make)
    record = record_of(events)
    assert record.events == tuple(recorder.events) and not record.problems
    assert record.orphans == len(events) - len(recorder.events)
    assert (record.head, record.epoch) == (recorder.chain.head, recorder.chain.epoch)
    assert record.next_number == recorder.chain.number


def test_random_episodes_are_restored_from_any_shards() -> None:
    orphans = 0
    for seed in range(150):
        rng = random.Random(seed)
        events, recorder = made_by(random_episode, rng)
        shards: list[list[bytes]] = [[] for _ in range(3)]
        for event in events:  # events of an epoch stay in order, as one process writes them
            shards[decoded(event)[0].epoch % 3 if seed % 2 else rng.randrange(3)].append(event)
        rng.shuffle(shards)
        record = record_of(*[shard for shard in shards if shard])
        assert record.events == tuple(recorder.events) and not record.problems
        assert len(record.events) + record.orphans == len(events)
        orphans += record.orphans
    assert orphans


def test_lost_event() -> None:
    events, recorder = made_by(plain_episode)
    for lost in range(len(events) - 1):
        record = record_of(events[:lost] + events[lost + 1 :])
        assert record.events == tuple(recorder.events[:lost])
        assert faults(record) == [(ChainFault.MISSING, lost + 1, "0", lost)]
        later = len(events) - lost - 2
        assert (f"{later} later" in record.problems[0].message) == (later > 0)
        assert str(record.problems[0]).startswith(f"0, block at byte {lost}, event {lost + 1} of add/0: ")


def test_changed_event() -> None:
    """Detected even if the event's own digest is recomputed: the digest of the next event does not match."""
    events, recorder = made_by(plain_episode)
    for changed in range(len(events)):
        event, _, _ = decoded(events[changed])
        event.data["changed"] = True
        for previous, broken in ((b"x" * 16, changed), (recorder.events[changed - 1].digest, changed + 1)):
            if changed == 0 and broken:
                previous = first_link("add/0")
            other = [*events[:changed], encoded(event, previous), *events[changed + 1 :]]
            record = record_of(other)
            assert len(record.events) == broken
            if broken < len(events):
                assert faults(record)[0] == (ChainFault.BROKEN, broken, "0", broken)


def test_duplicate_event() -> None:
    events, recorder = made_by(plain_episode)
    for record, where in (
        (record_of([*events, events[3]]), ("0", len(events))),
        (record_of(events, [events[3]]), ("1", 0)),
    ):
        assert record.events == tuple(recorder.events)
        assert faults(record) == [(ChainFault.DUPLICATE, 3, *where)]
        assert "0, block at byte 3" in record.problems[0].message


def test_events_in_wrong_order() -> None:
    events, recorder = made_by(plain_episode)
    swapped = [*events[:2], events[3], events[2], *events[4:]]
    record = record_of(swapped)
    assert record.events == tuple(recorder.events)
    assert faults(record) == [(ChainFault.ORDER, 2, "0", 3)]
    assert not record_of(events[4:], events[:4]).problems  # shards may be in any order


def test_orphans_of_a_process_that_lost_the_episode() -> None:
    first: list[bytes] = []
    second: list[bytes] = []
    recorder = resumed_episode(first.append, second.append)
    for shards in ((first, second), (second, first)):
        record = record_of(*shards)
        assert record.events == tuple(recorder.events) and not record.problems
        assert (record.orphans, record.epoch) == (3, 1)
    lost = [event for event in first if decoded(event)[0].number != 6]
    record = record_of(lost, second)
    assert (record.orphans, record.problems, record.finished) == (2, [], True)  # missing orphans are ignored
    record = record_of(first)
    assert len(record.events) == 8 and record.end is not None and record.epoch == 0


def takeover(sink: Sink, recorder: Recorder, epoch: int, kept: int, worker: int = 0) -> HashChain:
    head = recorder.events[kept].digest
    chain = HashChain(sink, recorder.id, epoch=epoch, number=kept + 1, head=head)
    chain.append(EventKind.RESUME, {"from_event": kept, "head": head.hex(), "pid": 1, "worker": str(worker)})
    return chain


def test_highest_epoch_wins() -> None:
    events, recorder = made_by(plain_episode)
    one: list[bytes] = []
    two: list[bytes] = []
    longer = takeover(one.append, recorder, 1, 5)
    for _ in range(10):
        longer.append(EventKind.CALL_ERROR, {})
    short = takeover(two.append, recorder, 2, 2)
    record = record_of(events, one, two)
    assert (record.head, record.epoch, record.next_number) == (short.head, 2, 4)
    assert (record.orphans, record.problems) == (5 + 11, [])
    assert record_of(two, one, events).events == record.events


def test_longer_chain_wins_then_lower_digest() -> None:
    events, recorder = made_by(plain_episode)
    shards: list[list[bytes]] = [[], [], []]
    chains = [takeover(shard.append, recorder, 1, 3, worker) for worker, shard in enumerate(shards)]
    for chain in chains:
        chain.append(EventKind.CALL_ERROR, {})
    record = record_of(events, *shards)
    assert record.head == min(chain.head for chain in chains)
    assert record == record_of(*shards[::-1], events)
    for chain in chains:
        chain.append(EventKind.CALL_ERROR, {})
        record = record_of(events, *shards)
        assert record.head == min(chain.head for chain in chains if chain.number == 7)
        assert not record.problems and record.orphans == 4 + sum(map(len, shards)) - (record.next_number - 4)


def test_conflict_of_two_processes_in_one_epoch() -> None:
    """This must not happen. It is reported, and every reader gets the same record."""
    events, recorder = made_by(plain_episode)
    other: list[bytes] = []
    chain = HashChain(other.append, recorder.id, number=4, head=recorder.events[3].digest)
    for number in range(2):
        chain.append(EventKind.CALL_ERROR, {"x": number})
    record = record_of(events, other)
    assert record.events == tuple(recorder.events)
    assert faults(record) == [(ChainFault.CONFLICT, 4, "1", 0)]
    began_twice = made_by(plain_episode)[0]
    twin = Recorder(other.append, prompt="Another?")
    record = record_of(began_twice, other[-1:])
    assert faults(record) == [(ChainFault.CONFLICT, 0, "1", 0)] and record.begin is not None
    assert twin.id == record.id


def test_invalid_takeover() -> None:
    events, recorder = made_by(plain_episode)
    head = recorder.events[-1].digest
    for epoch, kind, data in [
        (1, EventKind.CALL_ERROR, {}),
        (0, EventKind.RESUME, {"from_event": 7, "head": head.hex()}),
        (1, EventKind.RESUME, {"from_event": 6, "head": head.hex()}),
        (1, EventKind.RESUME, {"from_event": 7, "head": recorder.events[-2].digest.hex()}),
    ]:
        event = Event(recorder.id, epoch, 8, kind, data)
        record = record_of(events, [encoded(event, head)])
        assert faults(record) == [(ChainFault.TAKEOVER, 8, "1", 0)]
        assert record.events == tuple(recorder.events) and record.epoch == epoch


def test_takeover_before_damaged_events() -> None:
    events, recorder = made_by(plain_episode)
    damaged = events[:3] + events[4:]
    record = record_of(damaged)
    assert record.problems and record.next_number == 3
    again: list[bytes] = []
    takeover(again.append, recorder, record.epoch + 1, 2)
    record = record_of(damaged, again)
    assert (record.problems, record.orphans, record.next_number) == ([], 4, 4)
    # without its first event the episode starts over in the next epoch
    record = record_of(events[1:])
    assert (record.events, record.begin, record.epoch) == ((), None, 0)
    assert faults(record) == [(ChainFault.MISSING, 1, "0", 0)]
    HashChain(again.append, recorder.id, epoch=1).append(EventKind.BEGIN, dict(recorder.events[0].data))
    record = record_of(events[1:], again[-1:])
    assert (record.problems, record.orphans, record.next_number) == ([], 7, 1)


def test_takeover_of_a_lost_event() -> None:
    events, recorder = made_by(plain_episode)
    later: list[bytes] = []
    takeover(later.append, recorder, 1, 5).append(EventKind.CALL_ERROR, {})
    record = record_of(events[:4], later)
    assert faults(record) == [(ChainFault.MISSING, 6, "1", 0)]
    assert (record.next_number, record.epoch) == (4, 1)


def test_unreadable_event() -> None:
    events, recorder = made_by(plain_episode)
    wrong = [b"", b"xyz", events[0][:-1], events[0] + b"x"]
    changed: list[tuple[str, Any]] = [("epoch", -1), ("number", "1"), ("number", True), ("epoch", None)]
    for name, value in [*changed, ("episode", "b/0"), ("data", [])]:
        event, _, _ = decoded(events[0])
        setattr(event, name, value)
        wrong.append(encoded(event, first_link("add/0")))
    record = record_of(events, wrong)
    assert record.events == tuple(recorder.events)
    assert faults(record) == [(ChainFault.UNREADABLE, None, "1", at) for at in range(len(wrong))]
    assert "an event of add/0" in str(record.problems[0])
    assert resolved("none/0", []) == EpisodeRecord("none/0", ())
