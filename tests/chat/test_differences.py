"""Comparing a branch with a rendering: what is the model's own spelling, and what is a difference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.chat.canonical import copied
from strands_sglang.chat.differences import Comparison, SampledTurn, first_difference
from strands_sglang.chat.tokenization import Encoder
from strands_sglang.tool_parsers import HermesToolParser
from support.families import tokenizer

ENCODER = Encoder(tokenizer("qwen3"))
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
BEHIND = "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
CALL = '<tool_call>\n{"name": "t", "arguments": {"a": 1, "b": [2]}}\n</tool_call>'
SPELLED = '<tool_call>\n{"arguments":{"b":[2],"a":1},"name":"t"}\n</tool_call>'


def said(text: str, *, whole: bool = True) -> SampledTurn:
    ids = ENCODER.encode(text)
    markers = tuple(token for token in [*ids, *ENCODER.encode("<|im_end|>")] if token in ENCODER.control)
    return SampledTurn(PROMPT, ENCODER.sampled(ids), "<|im_end|>", markers, whole)


def differs(turn: SampledTurn, written: str, behind: str = BEHIND) -> bool:
    comparison = Comparison(ENCODER, HermesToolParser(), {"t": {}})
    return comparison.difference([turn], BEHIND, f"{PROMPT}{written}<|im_end|>{behind}") is not None


@pytest.mark.parametrize(
    ("sampled", "written"),
    [
        *(("Hello.", "Hello."), (" Hello.\n", "Hello."), (SPELLED, CALL), (f"Well.\n\n{SPELLED}", f"Well.\n{CALL}")),
        (f"<think>\nhm\n</think>\n\n{SPELLED}", f"<think>\nhm\n</think>\n\n{CALL}"),
        ("<think>\n\n</think>\n\nHello.", "Hello."),
        ("\n\n", "[blank text]"),
        (
            '<tool_call>\n{"name": "no tool", "arguments": {}}\n</tool_call>',
            CALL.replace('"t"', '"INVALID_TOOL_NAME"').replace('"a": 1, "b": [2]', ""),
        ),
    ],
)
def test_models_spelling_is_not_a_difference(sampled: str, written: str) -> None:
    assert not differs(said(sampled), written)


@pytest.mark.parametrize(
    ("sampled", "written"),
    [
        *(("Hello.", "Hello!"), ("Hello.", "<think>\n\n</think>\n\nHello.")),
        *(("<think>\nhm\n</think>\n\nHello.", "Hello."), (SPELLED, CALL.replace("[2]", "[3]"))),
        *((SPELLED, CALL.replace('"t"', '"u"')), (SPELLED, CALL + "\n" + CALL), (SPELLED, "Well.\n" + CALL)),
    ],
)
def test_other_turn_is_a_difference(sampled: str, written: str) -> None:
    assert differs(said(sampled), written)


def test_text_around_turns_is_compared_verbatim() -> None:
    turn = said("Hello.")
    assert differs(turn, "Hello.", BEHIND + "x") and differs(turn, "Hello.", BEHIND[:-1])
    assert differs(turn, "Hello.", BEHIND.replace("more", "less"))
    comparison = Comparison(ENCODER, HermesToolParser(), {})
    found = comparison.difference([turn], BEHIND, f"x{PROMPT}Hello.<|im_end|>{BEHIND}")
    assert found is not None and found.turn == 0 and "⟦" in found.excerpt


def test_truncated_turn_is_compared_by_position() -> None:
    assert not differs(said("<tool_call>\n{", whole=False), '<tool_call>\n{"call": "{"}\n</tool_call>')


def test_difference_names_the_turn() -> None:
    turns = [said("One."), SampledTurn(BEHIND, ENCODER.sampled(ENCODER.encode("Two.")), "<|im_end|>")]
    comparison = Comparison(ENCODER, HermesToolParser(), {})
    whole = f"{PROMPT}One.<|im_end|>{BEHIND}Three.<|im_end|>{BEHIND}"
    found = comparison.difference(turns, BEHIND, whole)
    assert found is not None and found.turn == 2
    assert comparison.difference(turns, BEHIND, whole.replace("Three", "Two")) is None


def test_difference_shows_expected_and_actual_text() -> None:
    assert first_difference("one two three", "one TWO three") == "one ⟦two three⟧→⟦TWO three⟧"


def test_difference_is_short() -> None:
    common = "c" * 1000
    assert first_difference(common + "a" * 1000, common + "b" * 1000) == f"{'c' * 24}⟦{'a' * 40}⟧→⟦{'b' * 40}⟧"


def test_newlines_are_visible() -> None:
    assert first_difference("a\nb", "a\n\nb") == "a⏎⟦b⟧→⟦⏎b⟧"


def test_text_that_ends_early() -> None:
    assert first_difference("abc", "ab") == "ab⟦c⟧→⟦⟧"
    assert first_difference("", "x") == "⟦⟧→⟦x⟧"
    assert first_difference("ab", "ab") == "ab⟦⟧→⟦⟧"


def test_equal_texts_with_different_tokens_are_described() -> None:
    assert "equal text, different tokens" in first_difference("same", "same", tokens=True)
    assert first_difference("a", "b", tokens=True) == "⟦a⟧→⟦b⟧"


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=2)),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text(max_size=2), inner, max_size=3)
            | st.lists(inner, max_size=2).map(tuple)
        ),
    )
)
def test_copy_is_deep(value: Any) -> None:
    made = copied(value)
    assert repr(made) == repr(value)
    assert not isinstance(value, (list, dict)) or made is not value


def test_copy_does_not_follow_later_edits() -> None:
    value: Any = {"content": [{"toolUse": {"input": {"a": [1, "b"]}}}]}
    made = copied(value)
    value["content"][0]["toolUse"]["input"]["a"].append(2)
    assert made == {"content": [{"toolUse": {"input": {"a": [1, "b"]}}}]}
