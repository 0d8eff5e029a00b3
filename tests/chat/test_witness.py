"""A witness shows where two texts part."""

from __future__ import annotations

from strands_sglang.chat.witness import witness


def test_what_stood_there_and_what_stands_there_now() -> None:
    assert witness("one two three", "one TWO three") == "one ⟦two three⟧→⟦TWO three⟧"


def test_it_is_short_enough_to_read() -> None:
    common = "c" * 1000
    assert witness(common + "a" * 1000, common + "b" * 1000) == f"{'c' * 24}⟦{'a' * 40}⟧→⟦{'b' * 40}⟧"


def test_newlines_are_seen() -> None:
    assert witness("a\nb", "a\n\nb") == "a⏎⟦b⟧→⟦⏎b⟧"


def test_a_text_that_ends_early() -> None:
    assert witness("abc", "ab") == "ab⟦c⟧→⟦⟧"
    assert witness("", "x") == "⟦⟧→⟦x⟧"
    assert witness("ab", "ab") == "ab⟦⟧→⟦⟧"


def test_equal_texts_with_other_tokens_are_told_in_words() -> None:
    assert "equal text, other tokens" in witness("same", "same", tokens=True)
    assert witness("a", "b", tokens=True) == "⟦a⟧→⟦b⟧"
