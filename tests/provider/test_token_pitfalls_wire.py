"""Pitfalls of token-exact rollouts, rows 8 and 18 to 21 of "Tokens": what the engine sends, through the real client."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import orjson
import pytest
from strands.hooks import AfterModelCallEvent
from strands.types.exceptions import EventLoopException

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.engine import AbortPolicy
from strands_sglang.errors import CountMismatchError, EngineUnavailableError, MalformedResponseError, TurnAbortedError
from strands_sglang.tokens import TurnStatus
from support.families import tokenizer
from support.provider.agents import agent_on, outline, said
from support.scripted import Reply, ScriptedServer, Wire, answer, in_turn, refuses
from support.scripted_engine import tool_call

SUM = tool_call("calculator", expression="1+1")
Change = Callable[[dict[str, Any]], Any]


def ids_of(text: str) -> list[int]:
    return list(tokenizer("qwen2.5").encode(text, add_special_tokens=False))


@contextmanager
def serving(*replies: tuple[str, Change] | str, **config: Any) -> Iterator[tuple[SGLangModel, ScriptedServer]]:
    """Yield a model on a server that returns these replies, each modified by the function paired with it."""

    def says(reply: tuple[str, Change] | str) -> Reply:
        text, change = (reply, lambda told: None) if isinstance(reply, str) else reply

        async def say(wire: Wire) -> None:
            told = answer(wire.received, ids_of(text))
            change(told)
            await wire.reply(orjson.dumps(told))

        return say

    with in_turn(*map(says, replies)) as server:
        client = SGLangClient(server.url, max_retries=1, retry_delay=0.01)
        yield SGLangModel(tokenizer=tokenizer("qwen2.5"), client=client, **config), server


def sent(server: ScriptedServer) -> list[list[int]]:
    return [request.json()["input_ids"] for request in server.generates()]


def assert_recorded(model: SGLangModel, server: ScriptedServer, numbers: list[int]) -> None:
    """Check that exactly these requests became turns, in order."""
    tree = model.current_episode.tree
    prompts = [list(tree.ids(turn))[: turn.sampled_start] for turn in tree]
    assert prompts == [sent(server)[number] for number in numbers]


def aborted(told: dict[str, Any]) -> None:
    told["meta_info"]["finish_reason"] = {"type": "abort", "message": "weights are updated"}


async def test_row_08_an_aborted_turn_is_continued() -> None:
    def second_weights(told: dict[str, Any]) -> None:
        told["meta_info"]["weight_version"] = "v2"
        told["meta_info"]["weight_versions"] = [{"version": "v2", "start": 0, "end": len(told["output_ids"])}]

    with serving(("one two", aborted), (" three<|im_end|>", second_weights)) as (model, server):
        agent = agent_on(model)
        await agent.invoke_async("count")

    (turn,) = model.current_episode.tree
    assert list(turn.sampled) == ids_of("one two") + ids_of(" three<|im_end|>")
    assert [(span.version, span.start, span.end) for span in turn.versions] == [("v1", 0, 2), ("v2", 2, 4)]
    assert sent(server)[1] == sent(server)[0] + ids_of("one two")
    assert (turn.finish_reason, turn.detail["continuations"]) == ("stop", 1)
    assert said(agent)[-1] == "assistant: one two three"
    assert model.token_manager.trajectory().version_names == ("v1", "v2")


async def test_row_08_policy_return_raises_and_the_turn_is_not_trained() -> None:
    with serving(SUM + "<|im_end|>", ("It is", aborted), "two<|im_end|>", on_abort="return") as (model, server):
        agent = agent_on(model)
        with pytest.raises(EventLoopException) as caught:
            await agent.invoke_async("1+1?")
        assert isinstance(caught.value.original_exception, TurnAbortedError)
        await agent.invoke_async(None)

    tree = model.current_episode.tree
    assert model.get_config()["on_abort"] is AbortPolicy.RETURN
    assert [turn.parent for turn in tree] == [None, 0, 0]
    assert [turn.status for turn in tree] == [TurnStatus.KEPT, TurnStatus.REJECTED, TurnStatus.KEPT]
    assert tree[1].finish_reason == "abort"
    assert [one.turn_ids for one in tree.trajectories()] == [(0, 2)]
    assert_recorded(model, server, [0, 1, 2])


async def test_row_08_a_cancelled_agent_aborts_its_request_on_the_engine() -> None:
    arrived, signal = threading.Event(), threading.Event()

    async def hold(wire: Wire) -> None:
        arrived.set()
        signal.set()
        await wire._reader.read()  # until the client hangs up

    with in_turn(hold) as server:
        client = SGLangClient(server.url, max_retries=0)
        model = SGLangModel(tokenizer=tokenizer("qwen2.5"), client=client)
        async with client:
            result = await agent_on(model).invoke_async("go", cancel_signal=signal)
        assert arrived.is_set() and result.stop_reason == "cancelled"
        (request,) = server.generates()
        aborts = [one.json()["rid"] for one in server.received if one.path.endswith("/abort_request")]
        assert aborts == [request.json()["rid"]]
        assert request.headers["x-smg-routing-key"] == model.current_episode.id
    assert len(model.current_episode.tree) == 0


def without_a_logprob(told: dict[str, Any]) -> None:
    told["meta_info"]["output_token_logprobs"].pop()


def with_another_token(told: dict[str, Any]) -> None:
    told["output_ids"] = [*told["output_ids"][:-1], 42]


def with_another_prompt(told: dict[str, Any]) -> None:
    told["meta_info"]["prompt_tokens"] += 1


def without_logprobs(told: dict[str, Any]) -> None:
    del told["meta_info"]["output_token_logprobs"]


def unfinished(told: dict[str, Any]) -> None:
    told["meta_info"]["finish_reason"] = None


@pytest.mark.parametrize(
    "change", [without_a_logprob, with_another_token, with_another_prompt, without_logprobs, unfinished]
)
async def test_row_18_counts_that_do_not_match_record_nothing(change: Change) -> None:
    broken = ("two<|im_end|>", change)
    with serving(SUM + "<|im_end|>", broken, "two<|im_end|>") as (model, server):
        agent = agent_on(model)
        with pytest.raises(EventLoopException) as caught:
            await agent.invoke_async("1+1?")
        assert isinstance(caught.value.original_exception, CountMismatchError | MalformedResponseError)
        tree = model.current_episode.tree
        assert len(tree) == 1 and model.token_manager.token_ids == list(tree.ids(tree[0]))
        await agent.invoke_async(None)

    assert outline(tree) == [(None, "root"), (0, "proved")]
    assert_recorded(model, server, [0, 2])


HARMLESS = ["cached_tokens", "weight_version", "weight_versions", "e2e_latency", "completion_tokens", "id"]
HARMLESS += ["prompt_tokens"]


@pytest.mark.parametrize("null", [False, True])
async def test_row_19_optional_keys_may_be_missing_or_null(null: bool) -> None:
    def bare(told: dict[str, Any]) -> None:
        for key in HARMLESS:
            told["meta_info"].pop(key)
        del told["text"]
        if null:
            told["meta_info"].update(dict.fromkeys({*HARMLESS} - {"prompt_tokens"}))
            told["output_ids"] = None

    with serving((SUM + "<|im_end|>", bare), ("two<|im_end|>", bare)) as (model, server):
        agent = agent_on(model)
        await agent.invoke_async("1+1?")

    tree = model.current_episode.tree
    assert outline(tree) == [(None, "root"), (0, "proved")]
    assert all(turn.versions[0].version is None for turn in tree)
    metadata: Any = agent.messages[-1]["metadata"]
    assert "cacheReadInputTokens" not in metadata["usage"]
    assert_recorded(model, server, [0, 1])


async def test_row_08_the_sdk_does_not_multiply_the_attempts() -> None:
    """It asks six times again itself when an error says that the engine is busy."""
    with in_turn(refuses(429, "slow down")) as server:
        client = SGLangClient(server.url, max_retries=3, retry_delay=0.001)
        with pytest.raises(EngineUnavailableError):
            await agent_on(SGLangModel(tokenizer=tokenizer("qwen2.5"), client=client)).invoke_async("hello")
    assert len(server.generates()) == 4


async def test_row_20_a_retried_turn_sends_its_question_once() -> None:
    def again(event: AfterModelCallEvent) -> None:
        event.retry = len(server.generates()) == 1

    with serving("one<|im_end|>", "two<|im_end|>") as (model, server):
        agent = agent_on(model, hooks=[again])
        blocks: list[Any] = [{"text": "look at"}, {"text": "this picture"}]
        await agent.invoke_async(blocks)

    assert sent(server)[0] == sent(server)[1]
    assert tokenizer("qwen2.5").decode(sent(server)[1]).count("this picture") == 1
    assert "image_data" not in server.generates()[1].json()


def with_experts(first: int, rows: Callable[[int], int] = lambda count: count) -> Change:
    """Return a modification that adds the experts of every requested position; row i contains i."""

    def change(told: dict[str, Any]) -> None:
        fed = told["meta_info"]["prompt_tokens"] + len(told["output_ids"]) - 1
        numbers = np.arange(first, first + rows(fed - first), dtype="<i4").repeat(2)
        told["meta_info"]["routed_experts"] = base64.b64encode(numbers.tobytes()).decode()

    return change


async def test_row_21_routed_experts_are_joined_over_turns_and_counted() -> None:
    starts: list[int] = []

    def first(told: dict[str, Any]) -> None:
        starts.append(server.generates()[-1].json()["routed_experts_start_len"])
        with_experts(starts[-1])(told)

    replies = (SUM + "<|im_end|>", first), ("two<|im_end|>", first), ("three<|im_end|>", first)
    with serving(*replies, routed_experts=True) as (model, server):
        agent = agent_on(model)
        await agent.invoke_async("1+1?")
        await agent.invoke_async("and 1?")

    episode = model.current_episode
    tree = episode.tree
    assert starts == [0, tree[0].end - 1, tree[1].end - 1]
    for turn in tree:
        experts = episode.routed_experts(turn)
        assert experts is not None
        rows = experts.decode(layers=1, top_k=2)
        assert rows.shape == (turn.end - 1, 1, 2)
        assert rows[:, 0, 0].tolist() == list(range(turn.end - 1))


async def test_row_21_missing_rows_raise_instead_of_shifting() -> None:
    broken = ("two<|im_end|>", with_experts(0, lambda count: count - 1))
    with serving(broken, routed_experts=True) as (model, _):
        await agent_on(model).invoke_async("1+1?")
    episode = model.current_episode
    experts = episode.routed_experts(episode.tree[0])
    assert experts is not None
    with pytest.raises(CountMismatchError):
        experts.decode(layers=1, top_k=2)


async def test_row_21_without_rows_for_every_turn_there_are_none() -> None:
    with serving((SUM + "<|im_end|>", with_experts(0)), "two<|im_end|>") as (model, _):
        model.update_config(routed_experts=True)
        agent = agent_on(model)
        await agent.invoke_async("1+1?", limits={"turns": 1})
        model.update_config(routed_experts=False)
        await agent.invoke_async(None)
    episode = model.current_episode
    assert episode.routed_experts(episode.tree[0]) is not None
    assert episode.routed_experts(episode.tree[1]) is None
