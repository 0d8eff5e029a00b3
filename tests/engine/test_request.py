"""What goes over the wire: exactly the ids given, whatever they came in, and exactly what is new when going on."""

from __future__ import annotations

import base64
from array import array
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.engine import PromptImage
from strands_sglang.engine.request import KNOWN, GenerateRequest, can_continue, check_sampling_names
from strands_sglang.engine.response import parse
from strands_sglang.errors import ConfigurationError, CountMismatchError
from support.families import tokenizer
from support.scripted import answer as scripted_answer
from support.scripted import encoded, scripted
from support.scripted_engine import ScriptedEngine

ids = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=50)
PAD = 9


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


@pytest.mark.parametrize(
    ("ids", "given", "words"),
    [
        ([], {}, "at least one token"),
        ([1], {"sampling_params": {"n": 4}}, "one call per sample"),
        ([1], {"sampling_params": {"x": object()}}, "must be"),
        ([1], {"extra": {"rid": "x"}}, "rid"),
        ([PAD], {"images": [PromptImage(0, 1, b"x")], "extra": {"image_data": ["x"]}}, "image_data"),
    ],
)
def test_invalid_requests_are_refused(ids: list[int], given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        GenerateRequest(ids, **given)


def test_extra_fields_are_sent() -> None:
    assert sent(GenerateRequest([1], extra={"lora_path": "a"}))["lora_path"] == "a"


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


@pytest.mark.parametrize(
    ("name", "meant"),
    [("temprature", "temperature"), ("max_tokens", "max_new_tokens"), ("seed", "sampling_seed"), ("topp", "top_p")],
)
def test_error_suggests_nearest_name(name: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=f"no sampling parameter {name!r}; did you mean {meant!r}"):
        check_sampling_names([name])


def test_error_for_name_without_suggestion() -> None:
    with pytest.raises(ConfigurationError, match=r"'zzzz'\. Known: .*temperature.*sampling_names=\['zzzz'\]"):
        check_sampling_names(["temperature", "zzzz"])
    check_sampling_names([*KNOWN, "zzzz"], ["zzzz"])


async def test_client_sends_nothing_with_unknown_name() -> None:
    with scripted(encoded) as server:
        async with SGLangClient(server.url) as client:
            with pytest.raises(ConfigurationError, match="temperature"):
                await client.generate([1], {"temprature": 1.0})
            with pytest.raises(ConfigurationError, match="temperature"):
                _ = [chunk async for chunk in client.stream([1], {"temprature": 1.0})]
            assert not server.received
            await client.generate([1], {"custom_params": {"anything": 1}, "max_new_tokens": 3})
        async with SGLangClient(server.url, sampling_names=["new_one"]) as client:
            await client.generate([1], {"new_one": 1})
            assert server.generates()[-1].json()["sampling_params"] == {"new_one": 1}
    with pytest.raises(ConfigurationError, match="list of names"):
        SGLangClient(sampling_names="new_one")


def test_model_refuses_unknown_name_when_created_or_updated() -> None:
    common: dict[str, Any] = {"tokenizer": tokenizer("smollm2"), "tool_parser": None}
    with pytest.raises(ConfigurationError, match="did you mean 'temperature'"):
        SGLangModel(base_url="http://127.0.0.1:1", sampling_params={"temprature": 1.0}, **common)
    model = SGLangModel(base_url="http://127.0.0.1:1", sampling_params={"temperature": 1.0}, **common)
    with pytest.raises(ConfigurationError, match="did you mean 'top_p'"):
        model.update_config(params={"topp": 1.0})
    assert model.get_config()["sampling_params"] == {"temperature": 1.0}
    another = ScriptedEngine(common["tokenizer"], ["hello"])  # another engine has words of its own
    SGLangModel(client=another, sampling_params={"logprobs": 1}, **common)


PARTS = st.lists(
    st.one_of(st.integers(0, 5), st.integers(1, 4).map(lambda positions: ("image", positions))), min_size=1
)


def answer(ids: list[int] | None, prompt_tokens: int) -> dict[str, Any]:
    whole = scripted_answer(prompt_tokens)
    return whole if ids is None else {**whole, "prompt_token_ids": ids}


@given(PARTS)
def test_one_placeholder_each_is_sent(parts: list[Any]) -> None:
    ids, wire = array("i"), list[int]()
    images: list[PromptImage] = []
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
            wire.append(part)
        else:
            images.append(PromptImage(len(ids), part[1], bytes([len(images)])))
            ids += array("i", [PAD] * part[1])
            wire.append(PAD)
    request = GenerateRequest(ids, {"max_new_tokens": 10}, images=images)
    for expected in (wire, [*wire, 7, 8]):
        body = orjson.loads(request.body(0))
        assert body["input_ids"] == expected
        assert body.get("image_data", []) == [
            f"data:image/png;base64,{base64.b64encode(image.png).decode()}" for image in images
        ]
        assert body.get("return_prompt_token_ids", False) is bool(images)
        request.extend(array("i", [7, 8]) if expected is wire else array("i"), None)
    assert request.prompt_tokens == len(ids) + 2
    assert (request.computed_ids or array("i", [*ids, 7, 8])).tolist() == [*ids, 7, 8]


@pytest.mark.parametrize("images", [[(0, 2)], [(1, 4)], [(3, 5)], [(1, 0)], [(1, 3), (1, 3)]])
def test_images_must_be_at_placeholders(images: list[tuple[int, int]]) -> None:
    with pytest.raises(ConfigurationError, match="an image must be at"):
        GenerateRequest([1, PAD, PAD, PAD, 2], images=[PromptImage(*place, b"x") for place in images])


def test_computed_ids_are_compared() -> None:
    ids = array("i", [1, PAD, PAD, 2])
    assert parse(answer([1, PAD, PAD, 2], 4), 4, computed_ids=ids).prompt_tokens == 4
    for wrong, problem in (
        ([1, PAD, 2], "from position 2 on"),
        ([1, PAD, PAD, 2, 3], "5 ids instead of 4"),
        ([1, 5, PAD, 2], "from position 1 on"),
        ("text", "0 ids instead of 4"),
        (None, "does not say which ids"),
    ):
        with pytest.raises(CountMismatchError, match=problem):
            parse(answer(wrong, 4), 4, computed_ids=ids)  # type: ignore[arg-type]


def test_a_request_of_ones_own_keeps_the_engines_count() -> None:
    """`client.generate(ids, image_data=[...])`, as the published package takes it: nothing is compared."""
    assert parse(answer(None, 70), 4, counts_images=False).prompt_tokens == 70
