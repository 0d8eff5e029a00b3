from __future__ import annotations

import hashlib
import random
from array import array
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.encoding import (
    decoded,
    encoded,
    episode_of,
    first_link,
    frames,
    ids_digest,
    link,
    trajectory_digest,
    trajectory_summary,
)
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.tokens import TokenTree
from support.ledger.episodes import random_episode, rich_episode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=10,
)  # fmt: skip
EVENTS = st.builds(
    Event,
    st.text(st.characters(codec="utf-8")),
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from(EventKind),
    st.dictionaries(st.text(st.characters(codec="utf-8")), JSON),
    st.fixed_dictionaries(
        {},
        optional={
            "sampled": st.lists(st.integers(0, 2**31 - 1)).map(lambda values: array("i", values)),
            "logprobs": st.lists(st.floats(width=32)).map(lambda values: array("d", values)),
            "routed_experts": st.binary().map(lambda values: array("B", values)),
        },
    ),
)


@given(st.lists(EVENTS, max_size=4), st.binary(min_size=16, max_size=16))
def test_events_are_decoded_unchanged(events: list[Event], previous: bytes) -> None:
    written = [encoded(event, previous) for event in events]
    whole = b"".join(written)
    assert frames(whole) == written
    at = 0
    for event, data in zip(events, written, strict=True):
        assert episode_of(data) == event.episode
        back, body, at = decoded(whole, at)
        assert (back.episode, back.epoch, back.number, back.kind, back.data) == (
            *(event.episode, event.epoch, event.number),
            *(event.kind, event.data),
        )
        assert {name: (values.typecode, values.tobytes()) for name, values in back.arrays.items()} == {
            name: (values.typecode, values.tobytes()) for name, values in event.arrays.items()
        }
        assert back.digest == event.digest == link(previous, body)
    assert at == len(whole)


def test_changed_bit_changes_the_digest_or_is_refused() -> None:
    event = Event("é/0", 1, 2, EventKind.CALL, {"a": [1.5, None]}, {"x": array("i", [1, 70000])})
    data = encoded(event, first_link("é/0"))
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            try:
                back, body, end = decoded(bytes(changed))
            except LedgerError:
                continue
            assert end != len(data) or link(first_link("é/0"), body) != back.digest


def test_digest_covers_the_position_in_the_chain() -> None:
    def digest(episode: str, epoch: int, number: int, previous: bytes) -> bytes:
        event = Event(episode, epoch, number, EventKind.CALL_ERROR, {})
        encoded(event, previous)
        return event.digest

    start = first_link("a/0")
    digests = {digest("a/0", 0, 0, start), digest("a/1", 0, 0, start), digest("a/0", 1, 0, start)}
    digests |= {digest("a/0", 0, 1, start), digest("a/0", 0, 0, first_link("a/1"))}
    assert len(digests) == 5


@pytest.mark.parametrize("cut", [0, 3, 7, 20, -17, -1])
def test_truncated_event_is_refused(cut: int) -> None:
    data = encoded(Event("a/0", 0, 0, EventKind.CALL_ERROR, {"x": 1}, {"x": array("i", [1])}), first_link("a/0"))
    with pytest.raises(LedgerError):
        decoded(data[:cut])
    with pytest.raises(LedgerError):
        frames(data + data[: cut or 1])


@pytest.mark.parametrize(
    "head", [[], ["a/0"], ["a/0", 0, 0, "unknown", {}, []], ["a/0", 0, 0, "end", {}, [["x", "i2", 1]]], {}, 1]
)
def test_malformed_event_is_refused(head: Any) -> None:
    text = orjson.dumps(head)
    data = len(text).to_bytes(4, "little") + bytes(4) + text + bytes(16)
    with pytest.raises(LedgerError, match="not an event"):
        decoded(data)
    if not isinstance(head, list) or len(head) < 2:
        with pytest.raises(LedgerError, match="not an event"):
            episode_of(data)


def test_digest_of_ids_does_not_depend_on_the_container() -> None:
    ids = [1, 70000, 2**31 - 1]
    expected = hashlib.blake2b(np.array(ids, "<i4").tobytes(), digest_size=16).hexdigest()
    assert {ids_digest(ids), ids_digest(array("i", ids)), ids_digest(tuple(ids)), ids_digest(np.array(ids))} == {
        expected
    }


def test_trajectory_summary() -> None:
    recorder = rich_episode(lambda data: None)
    for trajectory in recorder.tree.trajectories():
        summary = trajectory_summary(trajectory)
        trained = {t.id for t in recorder.tree.turns if t.id in summary["trained_turns"]}
        assert (
            summary["trained_tokens"]
            == sum(len(recorder.tree[id].sampled) for id in trained)
            == trajectory.loss_mask.sum()
        )
        assert (summary["branch"], summary["tokens"]) == (trajectory.branch, len(trajectory))
        assert orjson.loads(orjson.dumps(summary)) == summary
        for name in ("token_ids", "loss_mask", "logprobs", "versions", "turns", "origins"):
            before = trajectory_digest(trajectory)
            values = getattr(trajectory, name)
            kept, values[-1] = values[-1], values[-1] + 1
            assert trajectory_digest(trajectory) != before
            values[-1] = kept
            assert trajectory_digest(trajectory) == before == summary["digest"]


def test_trajectory_digest_survives_serialization() -> None:
    for seed in range(20):
        recorder = random_episode(lambda data: None, random.Random(seed))
        again = TokenTree.from_dict(recorder.tree.to_dict())
        assert [trajectory_summary(one) for one in again.trajectories()] == recorder.events[-1].data["trajectories"]
