"""Logprobs of given tokens: decoding, chunks, and answers that are not what was asked for."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import orjson
import pytest

from strands_sglang import SGLangClient
from strands_sglang.engine.prefill import prefill, vocabulary_size
from strands_sglang.errors import ConfigurationError, EngineError, EngineUnavailableError, MalformedResponseError
from support.scripted import always
from support.toy_engine import VOCABULARY, logprobs_after, toy_engine

module = importlib.import_module("strands_sglang.engine.prefill")
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("values", [1 << 21, 8])
async def test_logprobs_and_likeliest_ids(flat: bool, values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_VALUES", values)  # 8: two tokens a request
    with toy_engine(flat=flat) as server:
        async with SGLangClient(server.url) as client:
            found = await prefill(client.control, IDS, 4, top=4)
            plain = (await client.score(IDS, 4)).logprobs
    exact = np.array([logprobs_after(IDS[:at])[IDS[at]] for at in range(4, len(IDS))])
    assert (found.logprobs == exact).all() and (plain == exact).all()
    assert found.top == 4 and len(found) == 6 and found.top_ids.shape == found.top_logprobs.shape == (6, 4)
    for number, at in enumerate(range(4, len(IDS))):
        row = logprobs_after(IDS[:at])
        assert found.top_ids[number].tolist() == np.argsort(-row, kind="stable")[:4].tolist()
        assert (found.top_logprobs[number] == row[found.top_ids[number]]).all()


async def test_large_answers_are_decoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IN_A_THREAD", 1)
    with toy_engine() as server:
        async with SGLangClient(server.url) as client:
            found = await prefill(client.control, IDS, 1, top=2)
    assert len(found) == len(IDS) - 1


async def test_the_vocabulary_is_learnt_from_a_refusal() -> None:
    with toy_engine() as server:
        async with SGLangClient(server.url) as client:
            assert await vocabulary_size(client.control) == VOCABULARY


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_an_unknown_vocabulary_is_none(status: int) -> None:
    with always(status, b"{}") as server:
        async with SGLangClient(server.url) as client:
            assert await vocabulary_size(client.control) is None


@pytest.mark.parametrize(("start", "top"), [(0, 0), (10, 0), (11, 0), (1, -1)])
async def test_arguments_are_checked(start: int, top: int) -> None:
    async with SGLangClient("http://127.0.0.1:9") as client:
        with pytest.raises(ConfigurationError):
            await prefill(client.control, IDS, start, top=top)


async def test_a_busy_engine_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    control = importlib.import_module("strands_sglang.engine.control")
    monkeypatch.setattr(control, "_BACKOFF", control.Backoff(base=0.01, cap=0.02))
    with toy_engine(fail_first=3) as server:
        async with SGLangClient(server.url) as client:
            assert len(await prefill(client.control, IDS, 4)) == 6
    with toy_engine(fail_first=50) as server:
        async with SGLangClient(server.url) as client:
            with pytest.raises(EngineUnavailableError, match="6 times in a row"):
                await prefill(client.control, IDS, 4)


GOOD = [[None, 3, None], [-0.5, 1, None]]
NESTED = [None, [[-0.1, 5, None]]]


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"input_token_logprobs": None},
        {"input_token_logprobs": [[None, 3, None], [-0.5, 2, None]]},
        {"input_token_logprobs": [[None, 3, None], [None, 1, None]]},
        {"input_token_logprobs": [[None, 3, None], [True, 1, None]]},
        {"input_token_logprobs": [[None, 3, None], [0.5, 1, None]]},
        {"input_token_logprobs": GOOD[:1], "input_top_logprobs": NESTED},
        {"input_token_logprobs": GOOD},
        {"input_token_logprobs": GOOD, "input_top_logprobs": [None]},
        {"input_token_logprobs": GOOD, "input_top_logprobs": [None, [[-0.1, -5, None]]]},
        {"input_token_logprobs": GOOD, "input_top_logprobs": [None, [[0.1, 5, None]]]},
        {
            "input_token_logprobs": GOOD,
            "input_top_logprobs_idx_flat_b64": "AAAA",
            "input_top_logprobs_val_flat_b64": "",
        },
        {"input_token_logprobs": GOOD, "input_top_logprobs_idx_flat_b64": 3},
    ],
)
async def test_wrong_answers_are_refused(meta: dict[str, Any]) -> None:
    with always(200, orjson.dumps({"meta_info": meta})) as server:
        async with SGLangClient(server.url) as client:
            with pytest.raises(MalformedResponseError) as caught:
                await prefill(client.control, [3, 1], 1, top=1)
    assert isinstance(caught.value, EngineError)
