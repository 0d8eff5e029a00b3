"""Answers, errors and tool results as event payloads, and back."""

from __future__ import annotations

import base64
import inspect
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strands.middleware import ToolResultEvent

from strands_sglang import errors
from strands_sglang.engine import FinishReason, Generation, RoutedExperts
from strands_sglang.errors import EngineError, StrandsSGLangError
from strands_sglang.ledger.encoding import HashChain, decoded, ids_digest
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.runs.recording.event_data import (
    PendingAnswer,
    RecordedToolError,
    arguments_digest,
    call_error_event,
    call_event,
    error_of,
    generation_of,
    result_data,
    result_of,
    same_position,
)
from strands_sglang.tokens import Join, TokenTree, VersionSpan

ids = st.lists(st.integers(0, 2**31 - 1), max_size=20)
experts = st.lists(st.integers(0, 5), min_size=1, max_size=3)


def read_back(kind: EventKind, data: Any, arrays: Any = None) -> Event:
    written: list[bytes] = []
    HashChain(written.append, "t/0").append(kind, data, arrays)
    return decoded(written[0])[0]


@given(
    prompt=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    sampled=ids,
    finish=st.sampled_from(FinishReason),
    detail=st.none() | st.integers(0, 9) | st.text(max_size=5) | st.lists(st.integers(0, 9), max_size=2),
    cached=st.none() | st.integers(0, 9),
    counts=st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(0, 9)),
    rows=st.none() | experts,
    version=st.none() | st.text(max_size=5),
    within=st.lists(st.text(min_size=1, max_size=4), max_size=3),
)
def test_answer_is_rebuilt(
    prompt: list[int],
    sampled: list[int],
    finish: FinishReason,
    detail: Any,
    cached: int | None,
    counts: tuple[int, int, int],
    rows: list[int] | None,
    version: str | None,
    within: list[str],
) -> None:
    requests, continuations, discarded = counts
    routed = None
    if rows is not None:
        parts = [np.arange(4 * row, dtype="<i4").tobytes() for row in rows]
        routed = RoutedExperts(tuple(base64.b64encode(part).decode() for part in parts), tuple(rows), 2)
    generation = Generation(
        token_ids=array("i", sampled),
        logprobs=array("d", [-0.5 - at for at in range(len(sampled))]),
        finish_reason=finish,
        finish_detail=detail,
        versions=(VersionSpan(version, 0, len(sampled)),) if sampled else (),
        prompt_tokens=len(prompt),
        cached_tokens=cached,
        rid="rid-1",
        requests=requests,
        continuations=continuations,
        discarded_tokens=discarded,
        routed_experts=routed,
    )
    tree = TokenTree("t/0")
    about = {"rid": "rid-1", "prompt_tokens": len(prompt), "cached_tokens": cached, "latency_ms": 3}
    about |= {"continuations": continuations} if continuations else {}
    about |= {"discarded_tokens": discarded} if discarded else {}
    turn = tree.commit(
        tree.prepare(None, context=prompt, join=Join.ROOT),
        generation.token_ids,
        generation.logprobs,
        generation.versions,
        finish_reason=finish.value,
        detail=about,
    )
    data, arrays = call_event(turn, PendingAnswer(generation, ids_digest(prompt), len(prompt), None, tuple(within)))
    event = read_back(EventKind.CALL, data, arrays)
    assert same_position(event, data, arrays)
    assert generation_of(event) == generation
    assert event.data["within"] == within
    for name in ("parent", "caller", "prompt_digest", "turn"):
        other: Any = {**data, name: "another"}
        assert not same_position(event, other, arrays)
    assert not same_position(event, data, {**arrays, "context": array("i", [*prompt, 1])})


KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, StrandsSGLangError)]


@pytest.mark.parametrize("kind", KINDS)
def test_error_is_rebuilt(kind: type[StrandsSGLangError]) -> None:
    error = kind("it \N{SNOWMAN} broke")
    for place, name in enumerate(vars(error)):
        setattr(error, name, place)
    error.__cause__ = ValueError("the cause")
    event = read_back(EventKind.CALL_ERROR, call_error_event(error, "ab", 3, ("x",)))
    back = error_of(event)
    assert type(back) is kind and str(back) == str(error) and vars(back) == vars(error)
    assert (event.data["prompt_digest"], event.data["prompt_tokens"], event.data["within"]) == ("ab", 3, ["x"])


def test_foreign_error_is_rebuilt_as_engine_error() -> None:
    class AwayError(StrandsSGLangError):
        """Not defined in this package."""

    error = AwayError("away")
    error.things = [object()]  # type: ignore[attr-defined]
    back = error_of(read_back(EventKind.CALL_ERROR, call_error_event(error, "ab", 3, ())))
    assert type(back) is EngineError and str(back) == "away" and not vars(back)


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
