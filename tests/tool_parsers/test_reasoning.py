"""Reasoning stands at the beginning of a turn; what is drafted in a later block is no call either."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.tool_parsers import HermesToolParser, ParseFailure
from strands_sglang.tool_parsers.parsed import split_reasoning

OPEN, NOT_OPEN = True, False


@pytest.mark.parametrize(
    ("text", "reasoning_open", "reasoning", "rest", "closed"),
    [
        ("", NOT_OPEN, None, "", True),
        ("answer", NOT_OPEN, None, "answer", True),
        ("\n\nanswer", NOT_OPEN, None, "\n\nanswer", True),
        ("<think>\nhm\n</think>\n\nanswer", NOT_OPEN, "hm", "answer", True),
        (" \n<think>hm</think>answer", NOT_OPEN, "hm", "answer", True),
        ("<think>\n\n</think>\n\nanswer", NOT_OPEN, "", "answer", True),
        ("<think></think>", NOT_OPEN, "", "", True),
        ("<think>\n  hm \n\n</think>\n  answer", NOT_OPEN, "  hm ", "  answer", True),
        ("<think>hm", NOT_OPEN, "hm", "", False),
        ("<think>", NOT_OPEN, "", "", False),
        ("<think>a</think>b</think>c", NOT_OPEN, "a", "b</think>c", True),
        ("<think>a<think>b</think>c", NOT_OPEN, "a<think>b", "c", True),
        ("answer <think>hm</think>", NOT_OPEN, None, "answer <think>hm</think>", True),
        ("hm</think>answer", NOT_OPEN, None, "hm</think>answer", True),
        ("<thin", NOT_OPEN, None, "<thin", True),
        ("", OPEN, "", "", False),
        ("\nhm\n</think>\n\nanswer", OPEN, "hm", "answer", True),
        ("</think>answer", OPEN, "", "answer", True),
        ("hm", OPEN, "hm", "", False),
        ("<think>\nhm</think>answer", OPEN, "hm", "answer", True),
        ("\n<think>hm", OPEN, "hm", "", False),
        ("<think><think>hm</think>answer", OPEN, "<think>hm", "answer", True),
    ],
)
def test_reasoning_is_split(text: str, reasoning_open: bool, reasoning: str | None, rest: str, closed: bool) -> None:
    split = split_reasoning(text, reasoning_open)
    assert split == (reasoning, rest, len(text) - len(rest), closed)


def test_other_markers() -> None:
    text = "[THINK]hm <think>[/THINK]answer"
    assert split_reasoning(text, False, "[THINK]", "[/THINK]")[:2] == ("hm <think>", "answer")


@given(st.lists(st.sampled_from(["<think>", "</think>", "a", "\n", " "]), max_size=12).map("".join), st.booleans())
def test_split_parts_are_from_the_text(text: str, reasoning_open: bool) -> None:
    reasoning, rest, start, closed = split_reasoning(text, reasoning_open)
    assert text[start:] == rest
    assert (reasoning is not None) == (reasoning_open or text.lstrip().startswith("<think>"))
    assert closed or (rest == "" and "</think>" not in (reasoning or ""))
    if reasoning is not None:
        assert reasoning in text and "</think>" not in reasoning


DRAFT = '<tool_call>{"name": "delete", "arguments": {"path": "/"}}</tool_call>'
CALL = '<tool_call>{"name": "look", "arguments": {"at": "<think>x"}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "calls", "failures"),
    [
        (f"Hm.<think>draft: {DRAFT} no</think>I will not.", [], 0),
        (f"<think>a</think>Hm.<think>{DRAFT}</think>So: {CALL}", ["look"], 0),
        (f"{CALL}<think>{DRAFT}</think>{CALL}", ["look", "look"], 0),
        (f"Hm.<think>one</think>{CALL}<think>two</think>{CALL}", ["look", "look"], 0),
        (f"Hm.<think><tool_call></think>{CALL}", ["look"], 0),
        (f"Hm.<think>never closed {DRAFT}", [], 1),
        (f"{CALL} and <think>never closed {DRAFT}{DRAFT}", ["look"], 2),
        (f"Hm.{f'<think>{DRAFT}</think>' * 40}{CALL}", [], None),
    ],
)
def test_draft_in_later_reasoning_is_not_a_call(text: str, calls: list[str], failures: int | None) -> None:
    parsed = HermesToolParser().parse(text)
    assert [call.name for call in parsed.calls] == calls
    assert failures is None or len(parsed.failures) == failures
    assert all(failure.failure is ParseFailure.MISPLACED for failure in parsed.failures)
    for start, raw in [(call.start, call.raw) for call in parsed.calls] + [(x.start, x.raw) for x in parsed.failures]:
        assert text[start : start + len(raw)] == raw


def test_later_reasoning_stays_in_text() -> None:
    text = f"Hm.<think>draft: {DRAFT} no</think>I will not."
    assert HermesToolParser().parse(text).text == text
