"""Decoding: the fast way and the plain way agree on everything, and what does not add up is refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.engine import response
from strands_sglang.engine.protocol import FinishReason, VersionSpan
from strands_sglang.errors import CountMismatchError, MalformedResponseError
from support.scripted import answer, encoded

tokens = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.floats(max_value=0, allow_nan=False, allow_infinity=False)), max_size=40
)
texts = st.one_of(st.none(), st.text(), st.sampled_from(["]]", "null]]", '"output_token_logprobs":[[1,2,null]]', '"']))


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


def test_optional_fields_may_be_missing() -> None:
    body = answer(
        5, drop=("cached_tokens", "weight_versions", "weight_version", "completion_tokens", "prompt_tokens", "id")
    )
    del body["text"]
    turn = response.parse(body, 5)
    assert turn.cached_tokens is None
    assert turn.versions == (VersionSpan(None, 0, 3),)


def test_optional_fields_may_be_null() -> None:
    body = answer(5, cached_tokens=None, weight_version=None, weight_versions=None, completion_tokens=None)
    body["output_ids"] = None
    turn = response.parse(body, 5)
    assert list(turn.token_ids) == [11, 12, 13]
    assert turn.versions == (VersionSpan(None, 0, 3),)


def test_spans_of_versions() -> None:
    spans = [{"version": "1", "start": 0, "end": 1}, {"version": 2, "start": 1, "end": 3}]
    turn = response.parse(answer(5, weight_versions=spans), 5)
    assert turn.versions == (VersionSpan("1", 0, 1), VersionSpan("2", 1, 3))


@pytest.mark.parametrize(
    "wrong",
    [
        {"output_token_logprobs": [[-0.1, 11, None]]},
        {"output_token_logprobs": [[-0.1, 11, None], [-0.1, 99, None], [-0.1, 13, None]]},
        {"output_token_logprobs": None},
        {"completion_tokens": 2},
        {"prompt_tokens": 4},
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


@pytest.mark.parametrize("body", [None, [], "text", 1, {}, {"meta_info": None}, {"error": "x"}])
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
    assert turn.spec is not None and (turn.spec.verify_count, turn.spec.accepted_tokens, turn.spec.drafted_tokens) == (
        4,
        6,
        12,
    )


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
