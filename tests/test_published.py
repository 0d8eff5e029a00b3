"""Every name of the published package, in all three generations, called as its users call it."""

from __future__ import annotations

import base64
import importlib
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from pydantic import BaseModel
from strands.types.exceptions import ContextWindowOverflowException

import strands_sglang
from strands_sglang import (
    Rollout,
    SGLangClient,
    SGLangClientError,
    SGLangConnectionError,
    SGLangContextLengthError,
    SGLangDecodingError,
    SGLangHTTPError,
    SGLangModel,
    SGLangThrottledError,
    ToolLimiter,
    get_client,
    get_client_from_slime_args,
    get_tokenizer,
    get_tool_parser,
)
from strands_sglang.chat.soundness import soundness
from strands_sglang.engine import RoutedExperts
from strands_sglang.rollout import Rollout as FromRollout
from strands_sglang.tool_parsers import (
    GLMToolParser,
    GlmToolParser,
    HermesToolParser,
    KimiK2ToolParser,
    Qwen3CoderToolParser,
    QwenXMLToolParser,
)
from support.families import tokenizer
from support.provider.agents import agent_on, calculator, scripted_model
from support.scripted import ScriptedServer, Wire, encoded, serve_rest
from support.scripted_engine import Reply, tool_call

NAMES = """
SGLangModel SGLangClient ToolLimiter ToolIterationLimiter TokenManager get_client get_client_from_slime_args
get_tokenizer get_tool_parser Rollout LoopLimiter LoopLimitReachedError MaxToolIterationsReachedError
MaxToolCallsReachedError MaxMessagesReachedError SGLangClientError SGLangHTTPError SGLangContextLengthError
SGLangThrottledError SGLangConnectionError SGLangDecodingError
""".split()


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there_and_described(name: str) -> None:
    value = getattr(strands_sglang, name)
    assert "Example" in value.__doc__ and name in dir(strands_sglang)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("client", "SGLangClient"), ("exceptions", "SGLangHTTPError"), ("limiter", "LoopLimiter"),
        ("rollout", "Rollout"), ("sglang", "SGLangModel"), ("utils", "get_client"),
        ("tool_parsers.hermes", "HermesToolParser"), ("tool_parsers.glm", "GLMToolParser"),
        ("tool_parsers.kimi_k2", "KimiK2ToolParser"), ("tool_parsers.qwen_xml", "QwenXMLToolParser"),
    ],
)  # fmt: skip
def test_modules_can_be_imported_by_their_published_names(module: str, name: str) -> None:
    home = strands_sglang.tool_parsers if module.startswith("tool_parsers") else strands_sglang
    assert getattr(importlib.import_module(f"strands_sglang.{module}"), name) is getattr(home, name)
    code = f"""
from strands_sglang.{module} import {name} as by_from
import strands_sglang.{module}
import strands_sglang.{module} as module
assert by_from is module.{name} is strands_sglang.{module}.{name}
"""
    subprocess.run([sys.executable, "-c", code], check=True)  # in a process where nothing is imported yet


def test_clients_are_cached_by_their_settings() -> None:
    first = get_client("http://127.0.0.1:1")
    assert first is get_client("http://127.0.0.1:1", timeout=900.0, connect_timeout=5.0, max_retries=60)
    assert first is not get_client("http://127.0.0.1:1", max_retries=3)
    assert first is not get_client("http://127.0.0.1:2")
    args = Namespace(
        sglang_router_ip="127.0.0.1",
        sglang_router_port=1,
        rollout_num_gpus=2,
        rollout_num_gpus_per_engine=1,
        sglang_server_concurrency=500,
    )
    assert get_client_from_slime_args(args) is first  # 500 requests at once on each of two engines
    assert get_client_from_slime_args(args, timeout=300.0) is not first
    assert SGLangClient.from_slime_args(args, timeout=300.0).base_url == first.base_url


def test_tokenizers_are_loaded_once() -> None:
    path = tokenizer("qwen2.5").name_or_path
    assert get_tokenizer(path) is get_tokenizer(path)
    assert get_tokenizer(path).chat_template == tokenizer("qwen2.5").chat_template


def test_parsers_by_their_published_names() -> None:
    names = {
        "hermes": HermesToolParser,
        "qwen_xml": QwenXMLToolParser,
        "glm": GLMToolParser,
        "kimi_k2": KimiK2ToolParser,
    }
    for name, kind in names.items():
        assert type(get_tool_parser(name)) is kind
    assert QwenXMLToolParser is Qwen3CoderToolParser and GLMToolParser is GlmToolParser
    model = SGLangModel(tokenizer=tokenizer("qwen3-coder"), base_url="http://127.0.0.1:1", tool_parser="qwen_xml")
    assert isinstance(model.tool_parser, QwenXMLToolParser)


async def test_the_calls_of_the_second_generation() -> None:
    with answering('<tool_call>\n{"name": "calculator", "arguments": {"expression": "1"}}\n</tool_call>') as server:
        client = SGLangClient(base_url=server.url, max_connections=9, timeout=None, max_retries=6, retry_delay=1.0)
        limiter = ToolLimiter(max_tool_iters=2, max_tool_calls=None)
        model = SGLangModel(
            tokenizer=tokenizer("qwen2.5"),
            client=client,
            tool_parser=HermesToolParser(),
            sampling_params={"max_new_tokens": 64},
        )
        await agent_on(model, tools=[calculator], hooks=[limiter]).invoke_async("go")
        assert (limiter.tool_iter_count, limiter.tool_call_count) == (2, 2)
        await client.close()


async def test_the_calls_of_the_third_generation() -> None:
    with answering("hi<|im_end|>") as server:
        client = get_client(server.url, max_connections=10)
        model = SGLangModel(
            client=client, tokenizer=tokenizer("qwen3"), tool_parser=None, sampling_params={"max_new_tokens": 64},
            return_logprob=True, return_routed_experts=False, enable_thinking=False, context_window_limit=4096,
        )  # fmt: skip
        await agent_on(model, tools=[]).invoke_async("go")
        assert model.rollout.initial_prompt_length > 0
        assert await client.health() and not await client.is_multimodal()
        info = await client.model_info()
        assert info is not None and info["model_path"] == "m" and info["has_image_understanding"] is False
        assert await client.max_model_len() == 1024
        raw = await client.generate(input_ids=[1, 2], sampling_params={}, return_logprob=True, lora_path="x")
        assert raw["text"] == "hi<|im_end|>" and raw["output_ids"] == raw.token_ids.tolist()
        meta = raw["meta_info"]
        assert meta["finish_reason"] == {"type": "stop", "matched": raw.finish_detail}
        assert meta["completion_tokens"] == len(raw) and meta["prompt_tokens"] == 2
        assert [entry[:2] for entry in meta["output_token_logprobs"]] == [
            list(pair) for pair in zip(raw.logprobs, raw.token_ids, strict=True)
        ]
        with pytest.raises(KeyError, match=r"tokenizer\.decode"):
            raw["nothing"]
        sent = server.generates()[-1].json()
        assert sent["lora_path"] == "x" and "return_routed_experts" not in sent
        with pytest.raises(ValueError, match=r"SGLangClient\.stream"):
            await client.generate([1], stream=True)
        await client.close()


async def test_a_health_check_of_a_missing_server_does_not_raise() -> None:
    client = SGLangClient("http://127.0.0.1:9", max_retries=0, connect_timeout=0.5)
    assert await client.health() is False and await client.model_info() is None
    assert await client.is_multimodal() is False and await client.max_model_len() is None
    await client.close()


OVERFLOW = "The input (10 tokens) is longer than the model's context length (5 tokens)."


@pytest.mark.parametrize(
    ("status", "words", "kind"),
    [
        (400, "no such thing", SGLangHTTPError), (400, OVERFLOW, SGLangContextLengthError),
        (404, "what?", SGLangHTTPError), (429, "slower", SGLangThrottledError), (503, "busy", SGLangThrottledError),
        (500, "oh", SGLangHTTPError),
    ],
)  # fmt: skip
async def test_statuses_are_caught_by_their_published_names(status: int, words: str, kind: Any) -> None:
    with failing(status, orjson.dumps({"error": {"message": words}})) as server:
        client = SGLangClient(server.url, max_retries=1, retry_delay=0.001)
        with pytest.raises(kind) as raised:
            await client.generate([1, 2])
        error = raised.value
        assert isinstance(error, SGLangClientError) and isinstance(error, SGLangHTTPError)
        assert (error.status, error.body) == (status, words)
        assert isinstance(error, SGLangThrottledError) == (status in (429, 503))
        assert isinstance(error, SGLangContextLengthError) == (words == OVERFLOW)
        await client.close()


async def test_connection_and_decoding_errors_are_caught_by_their_published_names() -> None:
    client = SGLangClient("http://127.0.0.1:9", max_retries=1, retry_delay=0.001, connect_timeout=0.5)
    with pytest.raises(SGLangConnectionError):
        await client.generate([1])
    await client.close()
    with failing(200, b"<html>") as server:
        client = SGLangClient(server.url, max_retries=1, retry_delay=0.001)
        with pytest.raises(SGLangDecodingError):
            await client.generate([1])
        await client.close()


def test_old_errors_can_be_constructed_as_before() -> None:
    error = SGLangThrottledError("words", status=429, body="slower")
    assert (str(error), error.status, error.body) == ("words", 429, "slower")


async def test_an_overflow_is_raised_as_the_frameworks_exception() -> None:
    with failing(400, orjson.dumps({"error": {"message": OVERFLOW}})) as server:
        model = SGLangModel(tokenizer=tokenizer("qwen2.5"), base_url=server.url)
        with pytest.raises(ContextWindowOverflowException):
            await agent_on(model).invoke_async("go")


def answering(text: str) -> ScriptedServer:
    made = tokenizer("qwen2.5")

    async def handle(wire: Wire) -> None:
        path = wire.received.path
        if path == "/model_info":
            told = {"model_path": "m", "weight_version": "v", "has_image_understanding": False}
            await wire.reply(orjson.dumps(told))
        elif path == "/health":
            await wire.reply(b"")
        elif path == "/v1/models":
            await wire.reply(orjson.dumps({"data": [{"id": "m", "max_model_len": 1024}]}))
        elif not await serve_rest(wire):
            await wire.read_body()
            ids = made.encode(text, add_special_tokens=False)
            matched = {"type": "stop", "matched": ids[-1]}
            await wire.reply(with_text(encoded(wire.received, ids, finish_reason=matched), text))

    return ScriptedServer(handle)


def with_text(body: bytes, text: str) -> bytes:
    return orjson.dumps({**orjson.loads(body), "text": text})


def failing(status: int, body: bytes) -> ScriptedServer:

    async def handle(wire: Wire) -> None:
        if not await serve_rest(wire):
            await wire.read_body()
            await wire.reply(body, status)

    return ScriptedServer(handle)


@pytest.mark.parametrize("kind", [str, Path])
def test_path_is_accepted_wherever_a_tokenizer_is(kind: Callable[[str], Any]) -> None:
    path = kind(tokenizer("qwen3").name_or_path)
    model = SGLangModel(tokenizer=path, base_url="http://127.0.0.1:1")
    assert model.tokenizer is get_tokenizer(str(path)) and model.tokenizer is not path
    assert soundness(path).digest == model.soundness.digest


SUM = tool_call("calculator", expression="1+1")


async def test_it_equals_the_latest_branch() -> None:
    model, engine = scripted_model([SUM, "two"], "qwen2.5")
    assert FromRollout is Rollout and len(model.rollout) == 0 and model.rollout.initial_prompt_length == 0
    await agent_on(model).invoke_async("1+1?")
    rollout, tm = model.rollout, model.token_manager
    assert rollout.token_ids == tm.token_ids and rollout.loss_mask == tm.loss_mask
    assert rollout.segment_info == tm.segment_info
    assert rollout.initial_prompt_length == len(tm.segments[0]) == len(engine.calls[0].ids)
    sampled = [real for real, length in rollout.segment_info for _ in range(length)]
    assert [logprob is not None for logprob in rollout.logprobs] == sampled
    assert [logprob or 0.0 for logprob in rollout.logprobs] == tm.logprobs
    assert model.tokenizer is engine.tokenizer
    assert model.tokenizer.decode(rollout.token_ids[: rollout.initial_prompt_length]) == engine.prompts[0]
    assert repr(rollout) == f"Rollout(tokens={len(tm)}, trained={sum(tm.loss_mask)}, segments=4)"


async def test_it_is_updated_until_the_episode_is_reset() -> None:
    model, _ = scripted_model(["one", "two", "three"], "qwen2.5")
    agent, held = agent_on(model), model.rollout
    await agent.invoke_async("first")
    first = len(held)
    assert first > 0 and model.rollout is held
    await agent.invoke_async("second")
    assert len(held) > first and held.token_ids == model.token_manager.token_ids
    kept = held.model_dump()
    model.reset()
    assert held.model_dump() == kept and model.rollout is not held and len(model.rollout) == 0
    agent.messages.clear()
    await agent.invoke_async("third")
    assert held.model_dump() == kept and len(model.rollout) > 0


async def test_every_episode_has_its_own_rollout() -> None:
    model, _ = scripted_model(["one", "two"], "qwen2.5")
    with model.episode():
        await agent_on(model).invoke_async("first")
        inside = model.rollout
    assert len(inside) > 0 and len(model.rollout) == 0


async def test_it_can_be_serialised_inside_another_record() -> None:
    class Result(BaseModel):
        rollout: Rollout | None = None
        reward: float = 0.0

    model, _ = scripted_model([SUM, "two"], "qwen2.5")
    await agent_on(model).invoke_async("1+1?")
    result = Result(rollout=model.rollout, reward=1.0)
    back = Result.model_validate_json(result.model_dump_json())
    assert back == result and back.rollout is not None
    assert back.rollout.segment_info == model.rollout.segment_info


async def test_routed_experts_of_every_turn() -> None:
    def experts(start: int, rows: int) -> RoutedExperts:
        numbers = np.arange(start * 4, (start + rows) * 4, dtype=np.int32)
        return RoutedExperts((base64.b64encode(numbers.tobytes()).decode(),), (rows,), start)

    fed = 0

    def script(prompt: str) -> Reply:
        nonlocal fed
        text = SUM if not fed else "two"
        end = len(engine.encode(prompt)) + len(engine.encode(text + engine.end)) - 1
        fed, start = end, fed
        return Reply(text, experts=experts(start, end - start))

    model, engine = scripted_model(script, "qwen2.5", return_routed_experts=True, return_logprob=True)
    assert model.get_config()["routed_experts"] is True
    await agent_on(model).invoke_async("1+1?")
    assert [call.asked["routed_experts_start"] is not None for call in engine.calls] == [True, True]
    decoded = model.rollout.decode_routed_experts(2, 2)
    assert decoded.shape == (len(model.rollout) - 1, 2, 2) and decoded.dtype == np.int32
    assert decoded.ravel().tolist() == list(range(decoded.size))


def test_it_can_be_built_by_hand() -> None:
    rollout = Rollout()
    rollout.add_prompt([1, 2, 3])
    rollout.add_response([4, 5], [-0.1, -0.2])
    rollout.add_prompt([6])
    rollout.add_response([])
    rollout.add_routed_experts(base64.b64encode(np.arange(8, dtype=np.int32).tobytes()).decode())
    assert rollout.model_dump() == {
        "token_ids": [1, 2, 3, 4, 5, 6], "loss_mask": [0, 0, 0, 1, 1, 0],
        "logprobs": [None, None, None, -0.1, -0.2, None], "routed_experts": rollout.routed_experts, "image_data": [],
        "segment_info": [(False, 3), (True, 2), (False, 1)],
    }  # fmt: skip
    assert (len(rollout), rollout.initial_prompt_length) == (6, 3)
    assert rollout.decode_routed_experts(2, 2).shape == (2, 2, 2)
    assert Rollout().decode_routed_experts(2, 2).shape == (0, 2, 2)


@pytest.mark.parametrize("logprobs", [[-0.1], [-0.1, -0.2, -0.3], []])
def test_logprobs_must_be_as_many_as_tokens(logprobs: list[Any]) -> None:
    with pytest.raises(ValueError, match="one item per token"):
        Rollout().add_response([1, 2], logprobs)
