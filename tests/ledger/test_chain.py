from __future__ import annotations

import threading
from array import array

import pytest

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.chain import Chain
from strands_sglang.ledger.event import EventKind, decoded, first_link, link


def test_each_event_follows_the_one_before() -> None:
    written: list[bytes] = []
    chain = Chain(written.append, "a/0")
    assert (chain.head, chain.number, chain.epoch) == (first_link("a/0"), 0, 0)
    for number in range(3):
        event = chain.append(EventKind.FAULT, {"x": number}, {"ids": array("i", [number])})
        assert (event.number, chain.number, chain.head) == (number, number + 1, event.digest)
    going_on = Chain(written.append, "a/0", epoch=2, number=chain.number, head=chain.head)
    going_on.append(EventKind.RESUME, {})
    head = first_link("a/0")
    for number, data in enumerate(written):
        event, body, _ = decoded(data)
        assert (event.number, event.digest) == (number, link(head, body))
        head = event.digest
    assert head == going_on.head and event.epoch == 2


def test_what_cannot_be_written_leaves_the_chain_as_it_was() -> None:
    written: list[bytes] = []

    def full(data: bytes) -> None:
        raise LedgerError("full")

    chain = Chain(written.append, "a/0")
    with pytest.raises(TypeError):
        chain.append(EventKind.FAULT, {"x": object()})
    with pytest.raises(ValueError, match="array 'x'"):
        chain.append(EventKind.FAULT, {}, {"x": array("f", [1.0])})
    broken = Chain(full, "a/0")
    with pytest.raises(LedgerError, match="full"):
        broken.append(EventKind.FAULT, {})
    for one in (chain, broken):
        assert (one.number, one.head) == (0, first_link("a/0"))
    assert not written


def test_threads_append_to_one_chain() -> None:
    written: list[bytes] = []
    chain = Chain(written.append, "a/0")
    threads = [
        threading.Thread(target=lambda: [chain.append(EventKind.FAULT, {}) for _ in range(200)]) for _ in range(8)
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
