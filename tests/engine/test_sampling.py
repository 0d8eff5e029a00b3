"""Sampling parameters by name: what SGLang does not know is refused before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.engine.request import KNOWN, check_sampling_names
from strands_sglang.errors import ConfigurationError
from support.families import tokenizer
from support.scripted import encoded, scripted
from support.scripted_engine import ScriptedEngine


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
    with scripted(lambda received: encoded(received)) as server:
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
