"""EventLog: any data can be written, and nothing is written after the end of an episode."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.errors import CallCancelledError, LedgerError
from strands_sglang.ledger.encoding import HashChain, decoded
from strands_sglang.ledger.event import EventKind
from strands_sglang.runs.recording.event_log import EventLog

anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary() | st.just({1}),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()) | st.integers(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(st.characters(), max_size=3), anything, max_size=4))
def test_any_data_can_be_written(data: dict[str, Any]) -> None:
    written: list[bytes] = []
    log = EventLog("t/0", HashChain(written.append, "t/0"))
    log.write(EventKind.BEGIN, data)
    log.write(EventKind.END, {"text": "\udcff lone", "number": np.int64(3), "large": 1 << 80, "object": object})
    events = [decoded(one)[0] for one in written]
    assert [event.number for event in events] == [0, 1]
    end = events[1].data
    assert (end["text"], end["number"], end["large"]) == ("\\udcff lone", 3, str(1 << 80))
    assert "object" in end["object"]


def test_only_reward_and_end_are_written_after_close() -> None:
    written: list[bytes] = []
    log = EventLog("t/0", HashChain(written.append, "t/0"))
    log.write(EventKind.BEGIN, {})
    log.close()
    for kind in (EventKind.CALL, EventKind.CALL_ERROR, EventKind.TOOL, EventKind.ROLLBACK, EventKind.RESUME):
        with pytest.raises(CallCancelledError, match="episode t/0 has ended"):
            log.write(kind, {})
    log.write(EventKind.REWARD, {})
    log.write(EventKind.END, {})
    assert [decoded(one)[0].kind.value for one in written] == ["begin", "reward", "end"]


def test_no_thread_writes_after_the_end() -> None:
    for _ in range(20):
        written: list[bytes] = []
        log = EventLog("t/0", HashChain(written.append, "t/0"))
        started = threading.Barrier(5)

        def keep_writing(log: EventLog = log, started: threading.Barrier = started) -> None:
            started.wait()
            with pytest.raises(CallCancelledError):
                while True:
                    log.write(EventKind.TOOL, {})

        threads = [threading.Thread(target=keep_writing) for _ in range(4)]
        for thread in threads:
            thread.start()
        started.wait()
        log.close()
        log.write(EventKind.END, {})
        count = len(written)
        for thread in threads:
            thread.join()
        assert len(written) == count and decoded(written[-1])[0].kind is EventKind.END


def test_no_chain_writes_nothing_and_a_failing_chain_raises() -> None:
    EventLog("t/0", None).write(EventKind.BEGIN, {"anything": object()})

    def refuse(data: bytes) -> None:
        raise LedgerError("no space")

    with pytest.raises(LedgerError, match="no space"):
        EventLog("t/0", HashChain(refuse, "t/0")).write(EventKind.BEGIN, {})
