"""A tool's result comes back from the record as it was, or is not written as something else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strands.middleware import ToolResultEvent

from strands_sglang.ledger.chain import Chain
from strands_sglang.ledger.event import Event, EventKind, decoded
from strands_sglang.rollout.tool_result import RecordedToolError, arguments_digest, from_record, to_record

leaves = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text() | st.binary()
)  # fmt: skip
values: st.SearchStrategy[Any] = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
)
odd = st.sampled_from([float("nan"), float("inf"), 1 << 70, {1, 2}, object(), "\udcff", {3: "x"}, 1j])


strange_but_plain = st.one_of(
    st.sampled_from([float("nan"), float("inf"), -float("inf"), 1 << 80, -(1 << 70), "half \ud800 a pair"]),
    st.tuples(st.integers(0, 5), st.text(max_size=3)),
)
"""What tools return, and JSON cannot hold as it stands."""


def recorded(result: Any, raised: str | None = None) -> Event:
    written: list[bytes] = []
    Chain(written.append, "t/0").append(EventKind.TOOL, {"result": result, "raised": raised})
    return decoded(written[0])[0]


@given(content=st.lists(st.dictionaries(st.text(), values, max_size=3), max_size=3), status=st.text(max_size=8))
def test_a_result_comes_back(content: list[Any], status: str) -> None:
    result: Any = {"toolUseId": "x", "status": status, "content": content, "structuredContent": {"a": content}}
    plain = to_record(ToolResultEvent(result))
    if "__bytes__" in repr(content):
        return
    assert plain is not None and "toolUseId" not in plain
    back = from_record(recorded(plain), "y")
    assert back.tool_result == {**result, "toolUseId": "y"}
    assert back.exception is None


@given(content=st.lists(values, max_size=2), strange=strange_but_plain, at=st.integers(0, 2))
def test_what_json_cannot_hold_comes_back_too(content: list[Any], strange: Any, at: int) -> None:
    content = [*content[:at], {"json": strange}, *content[at:]]
    result: Any = {"toolUseId": "x", "status": "success", "content": content}
    plain = to_record(ToolResultEvent(result))
    assert plain is not None
    assert repr(from_record(recorded(plain), "x").tool_result["content"]) == repr(content)


@pytest.mark.parametrize("strange", [object(), {1, 2}, {3: "a number as a name"}, 1j])
def test_what_cannot_be_written_is_not(strange: Any) -> None:
    result: Any = {"toolUseId": "x", "status": "success", "content": [{"json": strange}]}
    assert to_record(ToolResultEvent(result)) is None


def test_what_looks_like_bytes_of_ours_is_not_taken_for_them() -> None:
    result: Any = {"toolUseId": "x", "status": "success", "content": [{"json": {"__bytes__": "YQ=="}}]}
    assert to_record(ToolResultEvent(result)) is None


def test_an_error_has_its_words() -> None:
    result: Any = {"toolUseId": "x", "status": "error", "content": [{"text": "Error: nothing"}]}
    plain = to_record(ToolResultEvent(result, exception=KeyError("nothing")))
    back = from_record(recorded(plain, "KeyError: 'nothing'"), "x")
    assert isinstance(back.exception, RecordedToolError) and str(back.exception) == "KeyError: 'nothing'"


@given(one=values, other=values)
def test_arguments_are_equal_when_their_digests_are(one: Any, other: Any) -> None:
    assert arguments_digest(one) == arguments_digest(one)
    if isinstance(one, dict):
        assert arguments_digest(one) == arguments_digest(dict(reversed(one.items())))
    if arguments_digest(one) == arguments_digest(other):
        assert repr(one) == repr(other) or one == other


@given(strange=odd)
def test_strange_arguments_have_a_digest(strange: Any) -> None:
    assert len(arguments_digest({"a": strange})) == 16
