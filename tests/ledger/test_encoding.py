"""Events as bytes: packing of arrays, encoding, digests and the hash chain."""

from __future__ import annotations

import hashlib
import math
import struct
import threading
from array import array
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.errors import LedgerError
from strands_sglang.ledger import encoding as packing
from strands_sglang.ledger.encoding import (
    HashChain,
    decoded,
    encoded,
    episode_of,
    first_link,
    frames,
    ids_digest,
    link,
    packed,
    trajectory_digest,
    trajectory_summary,
    unpacked,
)
from strands_sglang.ledger.event import Event, EventKind
from support.ledger.episodes import rich_episode

INTEGERS = st.lists(
    st.one_of(
        st.integers(0, 2**16 - 1), st.integers(0, 2**24 - 1), st.integers(0, 2**31 - 1), st.integers(-(2**31), -1)
    )
).map(lambda values: array("i", values))
DOUBLES = st.one_of(
    st.lists(st.floats(width=32)), st.lists(st.floats()), st.lists(st.sampled_from([-0.0, 0.0, -1e-45, 1e-300]))
).map(lambda values: array("d", values))
BYTES = st.binary().map(lambda values: array("B", values))
ARRAYS = st.dictionaries(st.text(), st.one_of(INTEGERS, DOUBLES, BYTES), max_size=5)


def memory(arrays: dict[str, array[Any]]) -> list[tuple[str, str, bytes]]:
    return [(name, values.typecode, values.tobytes()) for name, values in arrays.items()]


@settings(max_examples=500)
@given(ARRAYS)
def test_arrays_are_restored_bit_for_bit(arrays: dict[str, array[Any]]) -> None:
    blob, shapes = packed(arrays)
    assert memory(unpacked(blob, shapes)) == memory(arrays)
    assert memory(unpacked(memoryview(blob), tuple(map(tuple, shapes)))) == memory(arrays)


@pytest.mark.parametrize(
    ("values", "code", "size"),
    [
        *((array("i", [0, 65535]), "i2", 4), (array("i", [0, 65536]), "i3", 6), (array("i", [2**24 - 1]), "i3", 3)),
        *((array("i", [2**24]), "i4", 4), (array("i", [-1]), "i4", 4)),
        (array("d", [-0.0, float(np.float32(-0.1)), math.inf, -math.inf, math.nan]), "d4", 20),
        (array("d", [-0.1]), "d8", 8),
        (array("d", [1e300]), "d8", 8),
        (array("d", [struct.unpack("<d", b"\1\0\0\0\0\0\xf0\x7f")[0]]), "d8", 8),  # NaN with a payload
        *((array("B", b"abc"), "B1", 3), (array("B", b"abcd"), "B4", 4), (array("i"), "i2", 0)),
    ],
)
def test_smallest_code_is_chosen(values: array[Any], code: str, size: int) -> None:
    blob, shapes = packed({"x": values})
    assert (shapes, len(blob)) == ([["x", code, len(values)]], size)
    assert unpacked(blob, shapes)["x"].tobytes() == values.tobytes()


def test_byte_planes_start_with_the_lowest_byte() -> None:
    assert packed({"x": array("i", [0x010203, 0x040506])})[0] == bytes([3, 6, 2, 5, 1, 4])
    assert packed({"x": array("d", [1.0, -2.0])})[0] == bytes([0, 0, 0, 0, 0x80, 0, 0x3F, 0xC0])


def test_big_endian_machine_writes_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values with swapped bytes, as on a big-endian machine, are packed and unpacked as the same bytes."""
    ids, logprobs = array("i", [7, 70000, 2**31 - 1]), array("d", [-0.5, -0.1])
    expected = packed({"ids": ids, "logprobs": logprobs})
    monkeypatch.setattr(packing, "_SWAPPED", True)
    turned = array("i", ids)
    turned.byteswap()
    blob, _ = packed({"ids": turned})
    assert blob == expected[0][: len(blob)]
    back = unpacked(*expected)
    for values in back.values():
        values.byteswap()
    assert back == {"ids": ids, "logprobs": logprobs}


@pytest.mark.parametrize("values", [array("f", [1.0]), [1, 2], b"12", np.zeros(2, np.int32)])
def test_other_types_are_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="array 'x'"):
        packed({"x": values})


@pytest.mark.parametrize(
    "shapes",
    [
        *(None, "x", [["x", "i3"]], ["xyz"], [[1, "i3", 2]], [["x", "i3", 2.0]], [["x", "i3", True], ["y", "B1", 3]]),
        *([["x", "i3", -2], ["y", "B1", 12]], [["x", "i5", 1]], [["x", 3, 2]], [["x", None, 2]], [["x", "i3", 1]]),
        *([["x", "i3", 3]], [["x", "i3", 1], ["x", "i3", 1]], [["x", "B4", 6]], [["x", "i3", 10**30]]),
        *([["x", "d8", 1]], [], [{"x": 1}]),
    ],
)
def test_wrong_shapes_are_refused(shapes: Any) -> None:
    blob, right = packed({"x": array("i", [70000, 1])})
    assert right == [["x", "i3", 2]]
    with pytest.raises(ValueError):
        unpacked(blob, shapes)


@given(ARRAYS, st.data())
def test_changed_size_is_refused(arrays: dict[str, array[Any]], data: st.DataObject) -> None:
    blob, shapes = packed(arrays)
    if blob:
        with pytest.raises(ValueError):
            unpacked(blob[: data.draw(st.integers(0, len(blob) - 1))], shapes)
    with pytest.raises(ValueError):
        unpacked(blob + b"\0", shapes)


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
        assert (back.episode, back.epoch, back.number) == (event.episode, event.epoch, event.number)
        assert (back.kind, back.data) == (event.kind, event.data)
        assert sorted(memory(dict(back.arrays))) == sorted(memory(dict(event.arrays)))
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
        sampled = sum(len(recorder.tree[id].sampled) for id in trained)
        assert summary["trained_tokens"] == sampled == trajectory.loss_mask.sum()
        assert (summary["branch"], summary["tokens"]) == (trajectory.branch, len(trajectory))
        assert orjson.loads(orjson.dumps(summary)) == summary
        for name in ("token_ids", "loss_mask", "logprobs", "versions", "turns", "origins"):
            before = trajectory_digest(trajectory)
            values = getattr(trajectory, name)
            kept, values[-1] = values[-1], values[-1] + 1
            assert trajectory_digest(trajectory) != before
            values[-1] = kept
            assert trajectory_digest(trajectory) == before == summary["digest"]


def test_failed_append_leaves_the_chain_unchanged() -> None:
    written: list[bytes] = []

    def full(data: bytes) -> None:
        raise LedgerError("full")

    chain = HashChain(written.append, "a/0")
    with pytest.raises(TypeError):
        chain.append(EventKind.CALL_ERROR, {"x": object()})
    with pytest.raises(ValueError, match="array 'x'"):
        chain.append(EventKind.CALL_ERROR, {}, {"x": array("f", [1.0])})
    broken = HashChain(full, "a/0")
    with pytest.raises(LedgerError, match="full"):
        broken.append(EventKind.CALL_ERROR, {})
    for one in (chain, broken):
        assert (one.number, one.head) == (0, first_link("a/0"))
    assert not written


def test_threads_append_to_one_chain() -> None:
    written: list[bytes] = []
    chain = HashChain(written.append, "a/0")
    threads = [
        threading.Thread(target=lambda: [chain.append(EventKind.CALL_ERROR, {}) for _ in range(200)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    head = first_link("a/0")
    for number, data in enumerate(written):
        event, body, _ = decoded(data)
        assert (event.number, event.digest) == (number, link(head, body))
        head = event.digest
    assert len(written) == 1600
