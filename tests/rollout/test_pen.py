"""Whatever an episode has to say is written; nothing is behind its end."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.errors import CallCancelledError, LedgerError
from strands_sglang.ledger.chain import Chain
from strands_sglang.ledger.event import EventKind, decoded
from strands_sglang.rollout.pen import Pen

anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary() | st.just({1}),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()) | st.integers(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(st.characters(), max_size=3), anything, max_size=4))
def test_everything_can_be_written(data: dict[str, Any]) -> None:
    written: list[bytes] = []
    pen = Pen("t/0", Chain(written.append, "t/0"))
    pen.write(EventKind.BEGIN, data)
    pen.write(EventKind.END, {"text": "\udcff lone", "number": np.int64(3), "large": 1 << 80, "object": object})
    events = [decoded(one)[0] for one in written]
    assert [event.number for event in events] == [0, 1]
    end = events[1].data
    assert (end["text"], end["number"], end["large"]) == ("\\udcff lone", 3, str(1 << 80))
    assert "object" in end["object"]


def test_plain_data_is_written_as_it_is() -> None:
    written: list[bytes] = []
    data = {"a": [1, 2.5, None, True, "\N{SNOWMAN}"], "b": {"c": {}}}
    Pen("t/0", Chain(written.append, "t/0")).write(EventKind.BEGIN, data)
    assert decoded(written[0])[0].data == data


def test_only_reward_and_end_are_written_when_it_is_closed() -> None:
    written: list[bytes] = []
    pen = Pen("t/0", Chain(written.append, "t/0"))
    pen.write(EventKind.BEGIN, {})
    pen.close()
    for kind in (EventKind.CALL, EventKind.FAULT, EventKind.TOOL, EventKind.CUT, EventKind.RESUME):
        with pytest.raises(CallCancelledError, match="episode t/0 is over"):
            pen.write(kind, {})
    pen.write(EventKind.REWARD, {})
    pen.write(EventKind.END, {})
    assert [decoded(one)[0].kind.value for one in written] == ["begin", "reward", "end"]


def test_nothing_comes_behind_the_end_from_any_thread() -> None:
    for _ in range(20):
        written: list[bytes] = []
        pen = Pen("t/0", Chain(written.append, "t/0"))
        begun = threading.Barrier(5)

        def scribble(pen: Pen = pen, begun: threading.Barrier = begun) -> None:
            begun.wait()
            with pytest.raises(CallCancelledError):
                while True:
                    pen.write(EventKind.TOOL, {})

        threads = [threading.Thread(target=scribble) for _ in range(4)]
        for thread in threads:
            thread.start()
        begun.wait()
        pen.close()
        pen.write(EventKind.END, {})
        count = len(written)
        for thread in threads:
            thread.join()
        assert len(written) == count and decoded(written[-1])[0].kind is EventKind.END


def test_without_a_ledger_nothing_is_written_and_a_broken_one_is_told() -> None:
    Pen("t/0", None).write(EventKind.BEGIN, {"anything": object()})

    def refuse(data: bytes) -> None:
        raise LedgerError("no space")

    with pytest.raises(LedgerError, match="no space"):
        Pen("t/0", Chain(refuse, "t/0")).write(EventKind.BEGIN, {})
