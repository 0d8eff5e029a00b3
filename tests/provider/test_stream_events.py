"""Live text is emitted while sampled, never withdrawn, and gives the same message as without streaming."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.chat.tokenization import Encoder
from strands_sglang.errors import EngineError
from strands_sglang.provider.stream_events import Block, LiveEvents, LiveText, blocks_of, calls_as_blocks
from strands_sglang.tool_parsers import HermesToolParser
from support.families import tokenizer
from support.provider.agents import acting, said
from support.scripted_engine import Reply, tool_call

pytestmark = pytest.mark.usefixtures("exact")

CALL = tool_call("calculator", expression="1+1")
PIECES = ["<think>", "</think>", "<tool_call>", "</tool_call>", CALL, "<thi", "nk>", "<tool", "\n", "\n\n", " ", "\t"]
PIECES += ["Hello", "é", "日本", "🙂", "𓀀", "x", "<|im_start|>", "�"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
SPLITS = st.lists(st.integers(1, 4), max_size=40)


def encode(text: str) -> list[int]:
    return list(tokenizer("qwen3").encode(text, add_special_tokens=False))


def decode(ids: Any) -> str:
    return str(tokenizer("qwen3").decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


@cache
def encoder() -> Encoder:
    return Encoder(tokenizer("qwen3"))


def ends() -> set[int]:
    return {id for id, token in tokenizer("qwen3").added_tokens_decoder.items() if token.special}


def follow(ids: list[int], splits: list[int], reasoning_open: bool) -> tuple[LiveEvents, list[tuple[str, str]]]:
    """Return the live text and every emitted piece, in order."""
    text = LiveText(encoder(), HermesToolParser(), reasoning_open=reasoning_open)
    live, shown, at = LiveEvents(text), [], 0
    for size in [*splits, len(ids)]:
        for event in live.feed(ids[at : at + size]):
            delta = event.get("contentBlockDelta", {}).get("delta", {})
            if "text" in delta:
                shown.append(("text", delta["text"]))
            elif "reasoningContent" in delta:
                shown.append(("reasoning", delta["reasoningContent"]["text"]))
        at += size
    return live, shown


def plain(text: str, reasoning_open: bool) -> list[Block]:
    """Return the blocks of a turn that is not streamed."""
    parsed = HermesToolParser().parse(text, reasoning_open=reasoning_open)
    calls = calls_as_blocks(parsed)
    return blocks_of(parsed, calls, [str(number) for number in range(len(calls))], truncated=False, raw=text)


@settings(max_examples=300, deadline=None)
@given(TEXTS, SPLITS, st.booleans(), st.booleans())
def test_blocks_do_not_depend_on_how_the_stream_is_split(
    text: str, splits: list[int], reasoning_open: bool, ended: bool
) -> None:
    ids = encode(text)
    live, shown = follow(ids + ([encode("<|im_end|>")[0]] if ended else []), splits, reasoning_open)
    whole = decode(ids[:-1] if ids and ids[-1] in ends() and not ended else ids)
    blocks = plain(whole, reasoning_open)
    assert live.reconcile(blocks) == blocks
    for kind in ("reasoning", "text"):
        told = "".join(piece for name, piece in shown if name == kind)
        final = [block for block in blocks if "toolUse" not in block and ("text" in block) == (kind == "text")]
        value: Any = final[0] if final else {"text": ""}
        said = value["text"] if kind == "text" or not final else value["reasoningContent"]["reasoningText"]["text"]
        assert said.startswith(told)


def test_text_is_emitted_while_sampled_and_calls_are_not() -> None:
    _, shown = follow(encode(f"<think>\nhm hm\n</think>\n\nHello there.\n{CALL}"), [1] * 100, False)
    assert [kind for kind, _ in shown] == sorted(kind for kind, _ in shown)
    assert len(shown) > 3
    assert "".join(piece for kind, piece in shown if kind == "text") == "Hello there."


def test_an_incomplete_character_is_held_back() -> None:
    ids = encode("𓀀")
    assert len(ids) > 1
    _, shown = follow(ids, [1] * len(ids), False)
    assert shown == [("text", "𓀀")]


def test_the_end_of_turn_token_is_not_emitted() -> None:
    _, shown = follow([*encode("Hello"), *encode("<|im_end|>")], [1, 1], False)
    assert shown == [("text", "Hello")]


@pytest.mark.parametrize("streaming", [False, True])
async def test_streaming_gives_the_agent_the_same_message(streaming: bool) -> None:
    replies = [f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}", "<think>\nso\n</think>\n\nIt is two."]
    told: list[str] = []
    agent, _, _ = acting(replies, "qwen3", streaming=streaming)
    agent.callback_handler = lambda **event: told.append(event["data"]) if "data" in event else None
    await agent.invoke_async("1+1?")

    assert said(agent)[1:4] == ["thought", "assistant: Let me see.", "call calculator"]
    assert said(agent)[-1] == "assistant: It is two."
    assert "".join(told) == "Let me see.It is two."
    assert (len(told) > 2) == streaming


async def test_a_failed_stream_records_nothing() -> None:
    async def fail() -> None:
        raise EngineError("the stream broke")

    agent, _, tree = acting([Reply("some words", before=fail), "other words"], streaming=True)
    with pytest.raises(EngineError, match="broke"):
        await agent.invoke_async("go")
    assert len(tree) == 0
    await agent.invoke_async(None)
    assert said(agent) == ["user: go", "assistant: other words"]


async def test_a_cancelled_stream_ends_without_a_turn() -> None:
    agent, engine, tree = acting([Reply("many words " * 20), "more"], streaming=True)
    agent.callback_handler = lambda **event: agent.cancel() if "data" in event and len(engine.calls) == 1 else None
    result = await agent.invoke_async("go")
    assert result.stop_reason == "cancelled"
    assert len(tree) == 0
    await agent.invoke_async("again")
