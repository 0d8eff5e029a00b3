"""Where two token sequences differ, and why."""

from __future__ import annotations

from functools import cache

import pytest

from strands_sglang.chat.tokenization import Encoder
from strands_sglang.drift.compare import Cause, differences, reasoning_tokens
from support.families import tokenizer

END = "<|im_end|>"


@cache
def encoder() -> Encoder:
    return Encoder(tokenizer("qwen3"))


def ids(*parts: str) -> list[int]:
    """Return the tokens of texts that are encoded one by one, so that no token crosses from one to the next."""
    return [token for part in parts for token in encoder().encode(part)]


CASES = [
    ("unusual split", ids("hel", "lo there", END), ids("hello there", END), {Cause.BPE_SPLIT}),
    ("split digits", ids("The answer is 1", "2", "3."), ids("The answer is 123."), set()),
    (
        "compact JSON",
        ids('{"name":"f","arguments":{"a":"b"}}', END),
        ids('{"name": "f", "arguments": {"a": "b"}}', END),
        {Cause.JSON_SPACING},
    ),
    ("float", ids('{"a": 1.0}', END), ids('{"a": 1}', END), {Cause.NUMBER}),
    ("exponent", ids('{"a": 1e3}', END), ids('{"a": 1000.0}', END), {Cause.NUMBER}),
    ("boolean", ids("<parameter=a>\ntrue\n</parameter>"), ids("<parameter=a>\nTrue\n</parameter>"), {Cause.NUMBER}),
    (
        "reasoning",
        ids("<think>\nA long thought about it.\n</think>\n\nYes.", END),
        ids("Yes.", END),
        {Cause.REASONING_DROPPED},
    ),
    ("blank lines", ids("Yes.\n\n\n", END), ids("Yes.", END), {Cause.WHITE_SPACE}),
    ("other end", ids("Yes.", "<|endoftext|>"), ids("Yes.", END, "\n"), {Cause.END_OF_TURN}),
    ("empty reasoning is added", ids("Yes.", END), ids("<think>\n\n</think>\n\nYes.", END), {Cause.TURN_BOUNDARY}),
    ("escapes", ids('{"a": "é"}', END), ids('{"a": "\\u00e9"}', END), {Cause.JSON_SPELLING}),
    ("order of keys", ids('{"a": 1, "b": 2}', END), ids('{"b": 2, "a": 1}', END), None),
    ("other words", ids("Yes, it is.", END), ids("No, never.", END), {Cause.OTHER}),
    ("what follows is no difference", ids("Yes.", END), ids("Yes.", END, "\n<|im_start|>user\nHello"), set()),
]


@pytest.mark.parametrize(("name", "sampled", "rendered", "causes"), CASES, ids=[case[0] for case in CASES])
def test_causes(name: str, sampled: list[int], rendered: list[int], causes: set[Cause] | None) -> None:
    reasoning = reasoning_tokens(encoder(), sampled, "</think>")
    found = differences(encoder(), sampled, rendered, reasoning=reasoning)
    again = list(sampled)
    for one in reversed(found):
        again[one.start : one.end] = one.new
    assert again == rendered[: len(again)]
    if causes is not None:
        assert {one.cause for one in found} == causes
    else:
        assert found


def test_reasoning_is_found_by_its_marker() -> None:
    assert reasoning_tokens(encoder(), ids("<think>\nx\n</think>\n\nYes."), "</think>") == len(
        ids("<think>\nx\n</think>")
    )
    assert reasoning_tokens(encoder(), ids("Yes."), "</think>") == 0
    assert reasoning_tokens(encoder(), ids("a [/THINK] b"), "[/THINK]") > 0
