"""A tool's result comes back from the record as it was, or is not written as something else."""

from __future__ import annotations

from typing import Any

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


@given(content=st.lists(values, max_size=2), strange=odd, at=st.integers(0, 2))
def test_what_cannot_be_written_is_not(content: list[Any], strange: Any, at: int) -> None:
    content = [*content[:at], {"json": strange}, *content[at:]]
    result: Any = {"toolUseId": "x", "status": "success", "content": content}
    assert to_record(ToolResultEvent(result)) is None


def test_what_looks_like_bytes_of_ours_is_not_taken_for_them() -> None:
    result: Any = {"toolUseId": "x", "status": "success", "content": [{"json": {"__bytes__": "YQ=="}}]}
    assert to_record(ToolResultEvent(result)) is None


def test_tuples_are_lists_to_the_model_too() -> None:
    """A template writes both the same; they come back as lists."""
    result: Any = {"toolUseId": "x", "status": "success", "content": [{"json": {"a": (1, 2)}}]}
    plain = to_record(ToolResultEvent(result))
    assert plain is not None
    assert from_record(recorded(plain), "x").tool_result["content"] == [{"json": {"a": [1, 2]}}]


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
