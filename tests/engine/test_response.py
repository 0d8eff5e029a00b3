"""Decoding: the fast way and the plain way agree on everything, and what does not add up is refused."""

from __future__ import annotations

import base64
import pickle
from array import array
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.engine import Generation, RoutedExperts, SpecInfo, response
from strands_sglang.engine import response as faults
from strands_sglang.engine.protocol import FinishReason, VersionSpan
from strands_sglang.engine.response import TransientFault
from strands_sglang.errors import ContextOverflowError, CountMismatchError, MalformedResponseError, RequestRejectedError
from support.examples import examples
from support.scripted import answer, encoded

tokens = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.floats(max_value=0, allow_nan=False, allow_infinity=False)), max_size=40
)
texts = st.one_of(st.none(), st.text(), st.sampled_from(["]]", "null]]", '"output_token_logprobs":[[1,2,null]]', '"']))


@settings(max_examples=examples(100))
@given(tokens, texts, texts, st.booleans(), st.booleans())
def test_fast_and_plain_decoding_agree(
    pairs: list[tuple[int, float]], text: str | None, extra: str | None, spaces: bool, with_texts: bool
) -> None:
    body = answer(5, [i for i, _ in pairs], [lp for _, lp in pairs], extra=extra)
    body["text"] = text
    if with_texts:
        for entry in body["meta_info"]["output_token_logprobs"]:
            entry[2] = extra
    wire = orjson.dumps(body, option=orjson.OPT_INDENT_2 if spaces else 0)
    turn = response.parse(response.loads(wire), 5)
    assert list(turn.token_ids) == [i for i, _ in pairs]
    assert list(turn.logprobs) == [lp for _, lp in pairs]
    assert turn.meta["extra"] == extra


def test_later_list_with_same_ending() -> None:
    body = answer(5, later=[[1.0, 2, None], [3.0, 4, None]])
    assert list(response.parse(response.loads(orjson.dumps(body)), 5).token_ids) == [11, 12, 13]


def test_logprobs_are_exact() -> None:
    values = [-0.004433801863342524, -3.933898824470816e-6, -0.0, -1e-300, -123456.789]
    turn = response.parse(response.loads(encoded(1, [1, 2, 3, 4, 5], values)), 1)
    assert [v.hex() for v in turn.logprobs] == [v.hex() for v in values]


@pytest.mark.parametrize(
    ("finish", "reason", "detail"),
    [
        ({"type": "stop", "matched": 7}, FinishReason.STOP, 7),
        ({"type": "stop", "matched": "END"}, FinishReason.STOP, "END"),
        ({"type": "length", "length": 3}, FinishReason.LENGTH, 3),
        ({"type": "abort", "message": "Aborted"}, FinishReason.ABORT, "Aborted"),
        ({"type": "new_kind"}, FinishReason.UNKNOWN, "new_kind"),
        ("stop", FinishReason.STOP, None),
    ],
)
def test_finish_reasons(finish: object, reason: FinishReason, detail: object) -> None:
    turn = response.parse(answer(5, finish_reason=finish), 5)
    assert (turn.finish_reason, turn.finish_detail) == (reason, detail)


def test_spans_of_versions() -> None:
    spans = [{"version": "1", "start": 0, "end": 1}, {"version": 2, "start": 1, "end": 3}]
    turn = response.parse(answer(5, weight_versions=spans), 5)
    assert turn.versions == (VersionSpan("1", 0, 1), VersionSpan("2", 1, 3))


@pytest.mark.parametrize(
    "wrong",
    [
        {"weight_versions": [{"version": "1", "start": 0, "end": 2}]},
        {"weight_versions": [{"version": "1", "start": 1, "end": 3}]},
        {"weight_versions": [{"version": "1", "start": 0, "end": 2}, {"version": "2", "start": 1, "end": 3}]},
        {"output_token_logprobs": [-0.1, 11]},
    ],
)
def test_inconsistent_counts_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CountMismatchError):
        response.parse(response.loads(orjson.dumps(answer(5, **wrong))), 5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"output_token_logprobs": [[None, 11, None], [-0.1, 12, None], [-0.1, 13, None]]},
        {"output_token_logprobs": [["x", 11, None], [-0.1, 12, None], [-0.1, 13, None]]},
        {"output_token_logprobs": [[-0.1], [-0.1], [-0.1]]},
        {"weight_versions": [1, 2]},
        {"weight_versions": [{"version": "1", "start": 0, "end": "3"}]},
        {"weight_versions": [{"version": "1", "start": 0, "end": None}]},
        {"output_token_logprobs": [[-0.1, 11, None], 5, [-0.1, 13, None]]},
        {"weight_versions": [{"start": 0, "end": 3}]},
    ],
)
def test_wrong_types(wrong: dict[str, Any]) -> None:
    with pytest.raises(MalformedResponseError):
        response.parse(response.loads(orjson.dumps(answer(5, **wrong))), 5)


@pytest.mark.parametrize("body", ["text", 1, {}, {"error": "x"}])
def test_answers_without_meta_info(body: object) -> None:
    with pytest.raises(MalformedResponseError):
        response.parse(body, 5)


def test_abort_before_first_token_has_no_logprobs() -> None:
    body = answer(5, [], finish_reason={"type": "abort", "message": "Abort in waiting queue"})
    for key in ("prompt_tokens", "output_token_logprobs", "cached_tokens"):
        del body["meta_info"][key]
    turn = response.parse(body, 5)
    assert (len(turn.token_ids), turn.finish_reason, turn.versions) == (0, FinishReason.ABORT, ())


def test_no_list_of_lists_is_kept() -> None:
    turn = response.parse(response.loads(encoded(5)), 5)
    assert not any(isinstance(value, list) and value and isinstance(value[0], list) for value in turn.meta.values())
    assert "output_token_logprobs" not in turn.meta


def test_spec_info() -> None:
    turn = response.parse(answer(5, spec_verify_ct=4, spec_accept_token_num=6, spec_draft_token_num=12), 5)
    assert turn.spec == SpecInfo(verify_count=4, accepted_tokens=6, drafted_tokens=12)


@pytest.mark.parametrize(
    ("ids", "logprob"),
    [([11], "5.0"), ([11], "9223372036854775808"), ([11], "1e999"), ([-7], "-0.5"), ([2**31], "-0.5"), ([11], "null")],
)
def test_invalid_values_are_refused(ids: list[int], logprob: str) -> None:
    body = encoded(5, ids, [-0.25]).replace(b"-0.25", logprob.encode())
    with pytest.raises((MalformedResponseError, orjson.JSONDecodeError)):
        response.parse(response.loads(body), 5)


def test_invalid_count_is_not_reported() -> None:
    assert response.parse(answer(5, cached_tokens=-1), 5).cached_tokens is None


# The sentences SGLang 0.5.21 really writes.
OVERFLOWS = [
    ("The input (1100 tokens) is longer than the model's context length (1024 tokens).", 1100, 1024),
    (
        "Requested token count exceeds the model's maximum context length of 1024 tokens. You requested a total of "
        "3003 tokens: 3 tokens from the input messages and 3000 tokens for the completion. Please reduce the number of "
        "tokens in the input messages or the completion to fit within the limit.",
        3003,
        1024,
    ),
    (
        "Input length (5000 tokens) exceeds the maximum allowed length (4090 tokens). Use a shorter input or enable "
        "--allow-auto-truncate.",
        5000,
        4090,
    ),
    ("Request prompt exceeds the KV memory budget: input_len=777.", 777, None),
]


@pytest.mark.parametrize(("words", "asked", "limit"), OVERFLOWS)
def test_overflow_is_recognised_by_real_sentences(words: str, asked: int, limit: int | None) -> None:
    error = faults.from_status(400, orjson.dumps({"error": {"message": words}}), "u")
    assert isinstance(error, ContextOverflowError)
    assert (error.requested_tokens, error.limit_tokens, error.server_message) == (asked, limit, words)


@pytest.mark.parametrize(
    "words",
    [
        "top_k exceeds vocab size",
        "max_new_tokens must be at least 0",
        "Image count 9 exceeds limit 4 per request.",
        "The requested return_hidden_states mode exceeds the server maximum",
        "context length",
    ],
)
def test_other_refusals_are_not_overflow(words: str) -> None:
    error = faults.from_status(400, orjson.dumps({"error": {"message": words}}), "u")
    assert type(error) is RequestRejectedError
    assert error.status == 400 and words in str(error)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"m"}}', "m"),
        (b'{"error":"m"}', "m"),
        (b'{"message":"m"}', "m"),
        (b'{"detail":"m"}', "m"),
        (b'{"detail":[{"msg":"m"}]}', '[{"msg":"m"}]'),
        (b"plain m", "plain m"),
        (b"\xff\xfe", "��"),
        (b"", ""),
        (b"null", "null"),
        (b'{"error":{"type":"Internal Server Error","code":"c","message":"m"}}', "m"),
    ],
)
def test_servers_message_is_used(body: bytes, words: str) -> None:
    assert faults.server_message(body) == words


def test_long_message_is_shortened() -> None:
    assert len(faults.server_message(b"x" * 10_000_000)) == 2000


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("2", 2.0), ("0.5", 0.5), ("Wed, 21 Oct 2026", None), ("-1", None), ("1e9", None), ("", None)],
)
def test_retry_after(value: str, seconds: float | None) -> None:
    fault = faults.from_status(503, b"", "u", {"Retry-After": value})
    assert isinstance(fault, TransientFault) and fault.retry_after == seconds


def make(ids: int = 3, logprobs: int = 3, *spans: VersionSpan) -> Generation:
    return Generation(array("i", [0] * ids), array("d", [0.0] * logprobs), FinishReason.STOP, versions=spans)


def test_consistent_parts() -> None:
    generation = make(3, 3, VersionSpan("a", 0, 1), VersionSpan("b", 1, 3))
    assert len(generation) == 3
    assert generation.weight_version == "b"
    assert generation.versions_per_token() == ["a", "b", "b"]


def test_no_tokens() -> None:
    assert make(0, 0).weight_version is None


@pytest.mark.parametrize(
    "parts",
    [
        (3, 2, VersionSpan("a", 0, 3)),
        (3, 3),
        (3, 3, VersionSpan("a", 0, 2)),
        (3, 3, VersionSpan("a", 1, 3)),
        (3, 3, VersionSpan("a", 0, 2), VersionSpan("b", 1, 3)),
        (3, 3, VersionSpan("a", 0, 0), VersionSpan("b", 0, 3)),
        (0, 0, VersionSpan("a", 0, 1)),
    ],
)
def test_inconsistent_parts_are_refused(parts: tuple[int, int, VersionSpan]) -> None:
    with pytest.raises(CountMismatchError):
        make(*parts)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 5.0, 9e18, 0.002])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_invalid_logprobs_are_refused(value: float, place: int) -> None:
    logprobs = [-0.5, 0.0, -3.0]
    logprobs[place] = value
    with pytest.raises(MalformedResponseError, match=f"logprob of sampled token {place} must be finite"):
        Generation(array("i", [1, 2, 3]), array("d", logprobs), FinishReason.STOP, versions=(VersionSpan("a", 0, 3),))


def test_invalid_ids_are_refused() -> None:
    with pytest.raises(MalformedResponseError, match="-7"):
        Generation(array("i", [1, -7]), array("d", [-1.0, -1.0]), FinishReason.STOP, versions=(VersionSpan("a", 0, 2),))


def test_rounding_is_accepted() -> None:
    """32-bit engines give the sure token a logprob that is a little off 0, to either side."""
    logprobs = array("d", [1.1920929e-07, 1e-6, -0.0, -745.0, -1e30])
    spans = (VersionSpan("a", 0, 5),)
    assert Generation(array("i", range(5)), logprobs, FinishReason.STOP, versions=spans).logprobs == logprobs


def test_it_pickles() -> None:
    generation = make(3, 3, VersionSpan("a", 0, 3))
    assert pickle.loads(pickle.dumps(generation)) == generation


def packed(values: list[int]) -> str:
    return base64.b64encode(np.array(values, "<i4").tobytes()).decode()


def test_the_shape_of_routed_experts_with_and_without_layers() -> None:
    experts = RoutedExperts((packed(list(range(12))),), (2,))
    assert experts.decode().shape == (2, 6)
    assert experts.decode(3, 2).tolist() == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]


def test_routed_experts_without_rows() -> None:
    assert RoutedExperts(("",), (0,)).decode(3, 2).shape == (0, 3, 2)


@pytest.mark.parametrize(
    "experts",
    [
        RoutedExperts((packed([1, 2, 3]),), (2,)),
        RoutedExperts((packed([1, 2, 3]),), (0,)),
        RoutedExperts((packed([1, 2]), packed([1, 2, 3])), (1, 1)),
    ],
)
def test_inconsistent_routed_experts_are_refused(experts: RoutedExperts) -> None:
    with pytest.raises(CountMismatchError):
        experts.decode()


def test_the_wrong_number_of_layers() -> None:
    with pytest.raises(CountMismatchError, match="4 layers"):
        RoutedExperts((packed(list(range(12))),), (2,)).decode(4, 2)


@pytest.mark.parametrize("part", ["not base64!", "AAA", base64.b64encode(b"12345").decode()])
def test_invalid_base64_is_refused(part: str) -> None:
    with pytest.raises(MalformedResponseError):
        RoutedExperts((part,), (1,)).decode()
