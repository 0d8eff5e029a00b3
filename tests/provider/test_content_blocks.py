"""Blocks: the message that the framework builds from our events equals the predicted one, block for block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strands.event_loop.streaming import process_stream

from strands_sglang.chat.canonical import canonical
from strands_sglang.provider.stream_events import Block, Event, block_events, blocks_of, calls_as_blocks, closing_events
from strands_sglang.tool_parsers import HermesToolParser, ParsedTurn

CALL = '<tool_call>\n{"name": "t", "arguments": {"x": 1}}\n</tool_call>'


def parsed(text: str) -> ParsedTurn:
    return HermesToolParser().parse(text)


def blocks(text: str, *, truncated: bool = False, raw: str = "") -> list[Block]:
    turn = parsed(text)
    calls = calls_as_blocks(turn)
    return blocks_of(turn, calls, [f"id{number}" for number in range(len(calls))], truncated=truncated, raw=raw or text)


def use(number: int) -> Block:
    return {"toolUse": {"toolUseId": f"id{number}", "name": "t", "input": {"x": 1}}}


def reasoning(text: str) -> Block:
    return {"reasoningContent": {"reasoningText": {"text": text}}}


@pytest.mark.parametrize(
    ("text", "made"),
    [
        *(("", []), (" \n ", []), ("words ", [{"text": "words "}]), ("\n\nwords", [{"text": "words"}])),
        ("<think>\nhm\n</think>\n\nwords", [reasoning("hm"), {"text": "words"}]),
        ("<think>\n\n</think>\n\nwords", [{"text": "words"}]),
        ("<think>\nhm", [reasoning("hm")]),
        (CALL, [use(0)]),
        (f"See:\n{CALL}\n{CALL}", [{"text": "See:"}, use(0), use(1)]),
        (f"{CALL} and more", [{"text": " and more"}, use(0)]),
    ],
)
def test_reasoning_text_and_calls_in_this_order(text: str, made: list[Block]) -> None:
    assert blocks(text) == made


def test_a_failed_call_is_between_valid_calls_with_its_error() -> None:
    made = blocks(f"See:\n{CALL}\n<tool_call>broken</tool_call>\n{CALL}")
    assert [made[0], made[1], made[3]] == [{"text": "See:"}, use(0), use(2)]
    failed = made[2]["toolUse"]
    assert (failed["toolUseId"], failed["name"]) == ("id1", "malformed_tool_call")
    assert failed["input"]["call"] == "<tool_call>broken</tool_call>" and failed["input"]["kind"] == "invalid_json"
    assert failed["input"]["error"].startswith("This tool call was not executed, because it is malformed. The JSON is")


def test_only_the_first_failed_calls_get_a_block() -> None:
    made = blocks("<tool_call>broken</tool_call>" * 5000 + CALL)
    assert len(made) == 17 and made[-1] == use(16)
    assert made[15]["toolUse"]["input"]["error"].endswith("4984 more tool calls of this turn are malformed, too.")
    assert "more tool calls" not in made[14]["toolUse"]["input"]["error"]


def test_every_call_needs_an_id() -> None:
    with pytest.raises(ValueError):
        blocks_of(parsed(CALL), calls_as_blocks(parsed(CALL)), [], truncated=False, raw="")


async def built(events: Iterable[Event]) -> tuple[str, Any, Any, Any]:
    """Return the result of the framework's event processing."""

    async def chunks() -> AsyncIterator[Any]:
        for event in events:
            yield event

    stop: Any = None
    async for event in process_stream(chunks()):
        if "stop" in event:
            stop = event["stop"]
    return stop  # type: ignore[no-any-return]


def events_of(made: list[Block]) -> Iterable[Event]:
    yield {"messageStart": {"role": "assistant"}}
    for block in made:
        yield from block_events(block)
    yield from closing_events("end_turn", {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}, {"latencyMs": 4})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
WORDS = st.text(min_size=1).filter(str.strip)
BLOCKS = st.lists(
    WORDS.map(lambda text: {"text": text})
    | WORDS.map(reasoning)
    | st.dictionaries(st.text(), JSON, max_size=3).map(
        lambda arguments: {"toolUse": {"toolUseId": "a", "name": "t", "input": arguments}}
    ),
    max_size=4,
)


@given(BLOCKS)
async def test_the_framework_builds_the_same_message(made: list[Block]) -> None:
    _, message, _, _ = await built(events_of(made))
    assert canonical(message) == canonical({"role": "assistant", "content": made})


async def test_usage_and_metrics_reach_the_framework() -> None:
    metrics = {"latencyMs": 5, "sglang": {"turn": 3}}
    usage = {"inputTokens": 7, "outputTokens": 2, "totalTokens": 9, "cacheReadInputTokens": 4}
    reason, _, received_usage, received = await built(closing_events("tool_use", usage, metrics))
    assert (reason, received_usage) == ("tool_use", usage)
    assert received["sglang"] == {"turn": 3} and received["latencyMs"] == 5


def test_only_a_call_has_a_start_event() -> None:
    shown: list[Block] = [reasoning("hm"), {"text": "words"}, use(0)]
    kinds = [list(event) for block in shown for event in block_events(block)]
    text = [["contentBlockDelta"], ["contentBlockStop"]]
    assert kinds == [*text, *text, ["contentBlockStart"], *text]
