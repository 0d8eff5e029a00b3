from __future__ import annotations

import threading
from array import array

import pytest

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.encoding import HashChain, decoded, first_link, link
from strands_sglang.ledger.event import EventKind


def test_each_event_links_to_the_previous_one() -> None:
    written: list[bytes] = []
    chain = HashChain(written.append, "a/0")
    assert (chain.head, chain.number, chain.epoch) == (first_link("a/0"), 0, 0)
    for number in range(3):
        event = chain.append(EventKind.CALL_ERROR, {"x": number}, {"ids": array("i", [number])})
        assert (event.number, chain.number, chain.head) == (number, number + 1, event.digest)
    continued = HashChain(written.append, "a/0", epoch=2, number=chain.number, head=chain.head)
    continued.append(EventKind.RESUME, {})
    head = first_link("a/0")
    for number, data in enumerate(written):
        event, body, _ = decoded(data)
        assert (event.number, event.digest) == (number, link(head, body))
        head = event.digest
    assert head == continued.head and event.epoch == 2


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
