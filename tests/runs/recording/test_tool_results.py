"""Tool results are rebuilt from the record unchanged, or recorded as None."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strands.middleware import ToolResultEvent

from strands_sglang.ledger.encoding import HashChain, decoded
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.runs.recording.event_data import RecordedToolError, arguments_digest, result_data, result_of

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
"""Values that tools return and JSON cannot represent."""


def recorded(result: Any, raised: str | None = None) -> Event:
    written: list[bytes] = []
    HashChain(written.append, "t/0").append(EventKind.TOOL, {"result": result, "raised": raised})
    return decoded(written[0])[0]


@given(content=st.lists(st.dictionaries(st.text(), values, max_size=3), max_size=3), status=st.text(max_size=8))
def test_result_is_rebuilt(content: list[Any], status: str) -> None:
    result: Any = {"toolUseId": "x", "status": status, "content": content, "structuredContent": {"a": content}}
    plain = result_data(ToolResultEvent(result))
    if "__bytes__" in repr(content):
        return
    assert plain is not None and "toolUseId" not in plain
    back = result_of(recorded(plain), "y")
    assert back.tool_result == {**result, "toolUseId": "y"}
    assert back.exception is None


@given(content=st.lists(values, max_size=2), strange=strange_but_plain, at=st.integers(0, 2))
def test_values_outside_json_are_rebuilt(content: list[Any], strange: Any, at: int) -> None:
    content = [*content[:at], {"json": strange}, *content[at:]]
    result: Any = {"toolUseId": "x", "status": "success", "content": content}
    plain = result_data(ToolResultEvent(result))
    assert plain is not None
    assert repr(result_of(recorded(plain), "x").tool_result["content"]) == repr(content)


@pytest.mark.parametrize("strange", [object(), {1, 2}, {3: "a number as a name"}, 1j])
def test_unserializable_result_is_none(strange: Any) -> None:
    result: Any = {"toolUseId": "x", "status": "success", "content": [{"json": strange}]}
    assert result_data(ToolResultEvent(result)) is None


def test_result_in_the_form_of_wrapped_bytes_is_none() -> None:
    result: Any = {"toolUseId": "x", "status": "success", "content": [{"json": {"__bytes__": "YQ=="}}]}
    assert result_data(ToolResultEvent(result)) is None


def test_error_keeps_its_message() -> None:
    result: Any = {"toolUseId": "x", "status": "error", "content": [{"text": "Error: nothing"}]}
    plain = result_data(ToolResultEvent(result, exception=KeyError("nothing")))
    back = result_of(recorded(plain, "KeyError: 'nothing'"), "x")
    assert isinstance(back.exception, RecordedToolError) and str(back.exception) == "KeyError: 'nothing'"


@given(one=values, other=values)
def test_equal_digests_mean_equal_arguments(one: Any, other: Any) -> None:
    assert arguments_digest(one) == arguments_digest(one)
    if isinstance(one, dict):
        assert arguments_digest(one) == arguments_digest(dict(reversed(one.items())))
    if arguments_digest(one) == arguments_digest(other):
        assert repr(one) == repr(other) or one == other


@given(strange=odd)
def test_unserializable_arguments_have_a_digest(strange: Any) -> None:
    assert len(arguments_digest({"a": strange})) == 16
