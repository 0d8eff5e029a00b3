"""What goes over the wire: exactly the ids given, whatever they came in, and exactly what is new when going on."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.engine.request import GenerateRequest, can_continue
from strands_sglang.errors import ConfigurationError

ids = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=50)


def sent(request: GenerateRequest, attempt: int = 0) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(request.body(attempt))
    return body


@given(ids)
def test_ids_of_any_container_are_sent_unchanged(values: list[int]) -> None:
    for form in (
        values,
        tuple(values),
        array("i", values),
        array("q", values),
        np.array(values),
        np.repeat(np.array(values), 2)[::2],
        iter_sequence(values),
    ):
        assert sent(GenerateRequest(form))["input_ids"] == values


def iter_sequence(values: list[int]) -> Any:
    class Lazy:
        def __len__(self) -> int:
            return len(values)

        def __getitem__(self, i: int) -> int:
            return values[i]

    return Lazy()


@given(ids, st.lists(ids, max_size=5))
def test_continuation_extends_prompt_and_reduces_budget(prompt: list[int], parts: list[list[int]]) -> None:
    used = sum(map(len, parts))
    params = {"max_new_tokens": used + 7, "min_new_tokens": 3, "temperature": 1.0}
    request = GenerateRequest(prompt, params)
    for part in parts:
        request.extend(array("i", part), None)
    body = sent(request)
    assert body["input_ids"] == prompt + [i for part in parts for i in part]
    assert body["sampling_params"]["max_new_tokens"] == 7
    assert body["sampling_params"]["min_new_tokens"] == max(0, 3 - used)
    assert request.prompt_tokens == len(prompt) + used
    assert params == {"max_new_tokens": used + 7, "min_new_tokens": 3, "temperature": 1.0}  # the caller's, untouched


def test_only_sampled_tokens_get_logprobs_so_prefixes_stay_cached() -> None:
    body = sent(GenerateRequest([1]))
    assert body["return_logprob"] is True
    assert "logprob_start_len" not in body


def test_request_ids_have_one_length_and_differ_by_attempt() -> None:
    request = GenerateRequest([1])
    rids = {sent(request, attempt)["rid"] for attempt in (0, 1, 9, 10, 999)}
    assert len(rids) == 5
    assert {len(rid) for rid in rids} == {36}


@pytest.mark.parametrize(
    "bad",
    [[-1], [1, -5], [1.5], ["a"], [None], [[1, 2]], [1e300], np.array([[1]]), np.array([1.0]), array("d", [1.0, 2.0])],
)
def test_ids_that_could_crash_the_engine_are_refused(bad: Any) -> None:
    with pytest.raises(ConfigurationError):
        GenerateRequest(bad)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one token"):
        GenerateRequest([])


def test_several_samples_in_one_call_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="one call per sample"):
        GenerateRequest([1], {"n": 4})


def test_extra_fields_are_sent_but_cannot_replace_ours() -> None:
    assert sent(GenerateRequest([1], extra={"lora_path": "a"}))["lora_path"] == "a"
    with pytest.raises(ConfigurationError, match="rid"):
        GenerateRequest([1], extra={"rid": "x"})


def test_params_that_are_not_json_are_refused() -> None:
    with pytest.raises(ConfigurationError):
        GenerateRequest([1], {"x": object()})


@pytest.mark.parametrize(
    ("params", "extra", "continuable"),
    [
        ({"max_new_tokens": 9}, None, True),
        ({"max_new_tokens": 9, "stop": None, "frequency_penalty": 0.0, "repetition_penalty": 1.0}, None, True),
        ({"max_new_tokens": 9, "stop_token_ids": [1], "top_p": 0.9, "min_new_tokens": 2}, None, True),
        ({}, None, False),
        ({"max_new_tokens": 9, "stop": ["x"]}, None, False),
        ({"max_new_tokens": 9, "stop_regex": "x"}, None, False),
        ({"max_new_tokens": 9, "json_schema": "{}"}, None, False),
        ({"max_new_tokens": 9, "regex": "a"}, None, False),
        ({"max_new_tokens": 9, "ebnf": "a"}, None, False),
        ({"max_new_tokens": 9, "presence_penalty": 0.1}, None, False),
        ({"max_new_tokens": 9, "frequency_penalty": 0.1}, None, False),
        ({"max_new_tokens": 9, "repetition_penalty": 1.1}, None, False),
        ({"max_new_tokens": 9, "watermark": {"key": 1}}, None, False),
        ({"max_new_tokens": 9, "watermark": None}, None, True),
        ({"max_new_tokens": 9}, {"custom_logit_processor": "x"}, False),
    ],
)
def test_requests_that_can_be_continued(
    params: dict[str, Any], extra: dict[str, Any] | None, continuable: bool
) -> None:
    assert can_continue(params, extra) is continuable


def test_routed_experts_are_requested_from_first_missing_token() -> None:
    request = GenerateRequest([1, 2], {"max_new_tokens": 5}, routed_experts_start=1)
    assert sent(request)["routed_experts_start_len"] == 1
    request.extend(array("i", [3]), 2)
    assert sent(request)["routed_experts_start_len"] == 2
