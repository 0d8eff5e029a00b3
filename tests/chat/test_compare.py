"""A branch and a rendering: what counts as the model's own spelling, and what does not."""

from __future__ import annotations

import pytest

from families import tokenizer
from strands_sglang.chat.compare import Comparison, Said
from strands_sglang.chat.encoder import Encoder
from strands_sglang.tool_parsers import HermesToolParser

ENCODER = Encoder(tokenizer("qwen3"))
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
BEHIND = "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
CALL = '<tool_call>\n{"name": "t", "arguments": {"a": 1, "b": [2]}}\n</tool_call>'
SPELLED = '<tool_call>\n{"arguments":{"b":[2],"a":1},"name":"t"}\n</tool_call>'


def said(text: str, *, whole: bool = True) -> Said:
    ids = ENCODER.encode(text)
    markers = tuple(token for token in [*ids, *ENCODER.encode("<|im_end|>")] if token in ENCODER.control)
    return Said(PROMPT, ENCODER.sampled(ids), "<|im_end|>", markers, whole)


def differs(turn: Said, written: str, behind: str = BEHIND) -> bool:
    comparison = Comparison(ENCODER, HermesToolParser(), {"t": {}})
    return comparison.difference([turn], BEHIND, f"{PROMPT}{written}<|im_end|>{behind}") is not None


@pytest.mark.parametrize(
    ("sampled", "written"),
    [
        ("Hello.", "Hello."),
        (" Hello.\n", "Hello."),
        (SPELLED, CALL),
        (f"Well.\n\n{SPELLED}", f"Well.\n{CALL}"),
        (f"<think>\nhm\n</think>\n\n{SPELLED}", f"<think>\nhm\n</think>\n\n{CALL}"),
        ("<think>\n\n</think>\n\nHello.", "Hello."),
        ("\n\n", "[blank text]"),
        (
            '<tool_call>\n{"name": "no tool", "arguments": {}}\n</tool_call>',
            CALL.replace('"t"', '"INVALID_TOOL_NAME"').replace('"a": 1, "b": [2]', ""),
        ),
    ],
)
def test_the_models_own_spelling(sampled: str, written: str) -> None:
    assert not differs(said(sampled), written)


@pytest.mark.parametrize(
    ("sampled", "written"),
    [
        ("Hello.", "Hello!"),
        ("Hello.", "<think>\n\n</think>\n\nHello."),
        ("<think>\nhm\n</think>\n\nHello.", "Hello."),
        (SPELLED, CALL.replace("[2]", "[3]")),
        (SPELLED, CALL.replace('"t"', '"u"')),
        (SPELLED, CALL + "\n" + CALL),
        (SPELLED, "Well.\n" + CALL),
    ],
)
def test_another_turn(sampled: str, written: str) -> None:
    assert differs(said(sampled), written)


def test_what_stands_around_a_turn_counts_word_for_word() -> None:
    turn = said("Hello.")
    assert differs(turn, "Hello.", BEHIND + "x") and differs(turn, "Hello.", BEHIND[:-1])
    assert differs(turn, "Hello.", BEHIND.replace("more", "less"))
    comparison = Comparison(ENCODER, HermesToolParser(), {})
    found = comparison.difference([turn], BEHIND, f"x{PROMPT}Hello.<|im_end|>{BEHIND}")
    assert found is not None and found.turn == 0 and "⟦" in found.witness


def test_of_a_turn_that_was_cut_only_the_place_is_looked_at() -> None:
    assert not differs(said("<tool_call>\n{", whole=False), '<tool_call>\n{"call": "{"}\n</tool_call>')


def test_the_turn_that_differs_is_named() -> None:
    turns = [said("One."), Said(BEHIND, ENCODER.sampled(ENCODER.encode("Two.")), "<|im_end|>")]
    comparison = Comparison(ENCODER, HermesToolParser(), {})
    whole = f"{PROMPT}One.<|im_end|>{BEHIND}Three.<|im_end|>{BEHIND}"
    found = comparison.difference(turns, BEHIND, whole)
    assert found is not None and found.turn == 2
    assert comparison.difference(turns, BEHIND, whole.replace("Three", "Two")) is None
