"""Control tokens: found in text, escaped in data, restored as text."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from strands_sglang.chat.control_tokens import ControlTokens, Escapes, is_blank
from strands_sglang.errors import UnsupportedContentError
from support.families import FAMILIES, tokenizer


def control_of(*tokens: AddedToken | str) -> ControlTokens:
    """Return control tokens with the ids 0, 1, 2, ..."""
    made = [AddedToken(token, special=True) if isinstance(token, str) else token for token in tokens]
    return ControlTokens(SimpleNamespace(added_tokens_decoder=dict(enumerate(made))))


def test_leftmost_longest_literal_is_found() -> None:
    control = control_of("<a", "<a>", "<a>b", "a>", "[x]")
    assert [tuple(token) for token in control.find("<a>b<a> a><a[x]")] == [
        *((2, 0, 4), (1, 4, 7), (3, 8, 10), (0, 10, 12), (4, 12, 15)),
    ]
    assert [token.id for token in control.find("<a>b<a>", 1)] == [3, 1]


@given(st.lists(st.text("ab<|", min_size=1, max_size=5), min_size=1, max_size=8, unique=True), st.text("ab<|c"))
def test_find_equals_regular_expression(literals: list[str], text: str) -> None:
    control = control_of(*literals)
    plain = re.compile("|".join(re.escape(literal) for literal in sorted(literals, key=len, reverse=True)))
    expected = [(literals.index(match[0]), match.start(), match.end()) for match in plain.finditer(text)]
    assert [tuple(token) for token in control.find(text)] == expected


def test_a_tokenizer_without_control_tokens() -> None:
    control = control_of()
    assert list(control.find("<a>")) == [] and control.count([0, 1]) == 0 and 0 not in control
    assert Escapes(control).escape("<a>") == "<a>"


def test_blank_tokens_are_not_control_tokens() -> None:
    assert [is_blank(literal) for literal in ("", " ", "\n\n", "▁▁", "\t", "▁a", "<a>")] == [True] * 5 + [False] * 2
    assert control_of("\n", "▁▁", "<a>").ids == {"<a>": 2}


def test_counting_ids() -> None:
    control = control_of("<a>", " ", "<b>")
    assert control.count([0, 1, 2, 2, 5, 10**6]) == 3
    assert control.count([]) == 0
    assert 2 in control and 1 not in control and None not in control


@pytest.mark.parametrize("family", FAMILIES)
def test_every_literal_is_found_escaped_and_restored(family: str) -> None:
    control = ControlTokens(tokenizer(family))
    assert len(control.ids) >= 12
    for literal, token_id in control.ids.items():
        assert [tuple(token) for token in control.find(f"\n{literal} ")] == [(token_id, 1, 1 + len(literal))]
    text = " ".join(control.ids)
    escapes = Escapes(control)
    safe = escapes.escape(text)
    assert list(control.find(safe)) == [] and not set(safe) & set("<|[") and escapes.restore(safe) == text


_CONTROL = control_of("<|end|>", AddedToken("<call>", special=False))


def test_value_without_literals_is_returned_unchanged() -> None:
    escapes, text = Escapes(_CONTROL), "plain < text | 🙂"
    assert escapes.escape(text) is text and escapes.restore(text) is text
    assert not escapes._texts and not escapes.present(text)


def test_nested_values_are_escaped() -> None:
    escapes = Escapes(_CONTROL)
    value: dict[str, Any] = {"a<|end|>": ["<call>", ("x", "<|end|>"), 1, None, True], "b": {"c": "plain"}}
    safe = escapes.escape(value)
    assert not list(_CONTROL.find(repr(safe)))
    assert safe["b"] == {"c": "plain"} and next(iter(safe.values()))[2:] == [1, None, True]
    ((key, items),) = [(key, items) for key, items in safe.items() if key != "b"]
    assert escapes.restore(key) == "a<|end|>"
    assert escapes.restore(items[0]) == "<call>" and items[1] == ["x", key[1:]]
    assert value["a<|end|>"][0] == "<call>", "the value itself is not changed"


def test_one_placeholder_for_each_kind_of_occurrence() -> None:
    escapes = Escapes(_CONTROL)
    safe = escapes.escape("<|end|>a<call>b<|end|>")
    assert len(safe) == 5 and safe[0] == safe[4] != safe[2]
    assert escapes.escape("<call>") == safe[2], "the same in every message of a rendering"
    assert escapes and escapes.present(safe) and escapes.restore(safe) == "<|end|>a<call>b<|end|>"


def test_a_developer_may_write_markers_but_no_special_tokens() -> None:
    escapes = Escapes(_CONTROL)
    safe = escapes.escape("Write <call>, then <|end|>.", trusted=True)
    text, own = _CONTROL.unmarked(safe)
    assert len(own) == 1 and "<call>" in text and "<|end|>" not in text
    assert escapes.restore(text) == "Write <call>, then <|end|>."


def test_private_use_characters_of_the_data_survive() -> None:
    escapes, text = Escapes(_CONTROL), "\U000f0000<|end|>\U000f0001\U000f0000\U000ffffd\ue000\U00100000"
    safe = escapes.escape(text)
    assert escapes.restore(safe) == text
    assert "\ue000" in safe, "only two planes are used"
    assert "\U00100000" not in safe, "it would be taken for a mark"


def test_lone_surrogate_becomes_replacement_character() -> None:
    escapes = Escapes(_CONTROL)
    safe = escapes.escape("a\ud800b\udfff")
    safe.encode()
    assert escapes.restore(safe) == "a\ufffdb\ufffd"
    safe = escapes.escape({"path": "\udc80"}, trusted=True)
    assert escapes.restore(safe["path"]) == "\ufffd"


def test_nested_literals_do_not_recombine() -> None:
    escapes = Escapes(_CONTROL)
    text = "<|en<call>d|><|en<|end|>d|>"
    safe = escapes.escape(text)
    assert not list(_CONTROL.find(safe)) and escapes.restore(safe) == text


@pytest.mark.soak
def test_many_private_use_characters_are_fast_and_too_many_are_refused() -> None:
    """A table of icons can have seven thousand of them."""
    escapes, started = Escapes(_CONTROL), time.perf_counter()
    text = "".join(map(chr, range(0xF0000, 0xFFFFE)))
    assert escapes.restore(escapes.escape(text)) == text
    assert time.perf_counter() - started < 6
    with pytest.raises(UnsupportedContentError, match="private-use"):
        escapes.escape("<|end|>")


_DATA = st.text(st.one_of(st.characters(), st.sampled_from("<|endcal>\U000f0000\U000f0001\ud800")))


@settings(max_examples=200)
@given(st.lists(_DATA, max_size=4))
def test_escaped_data_has_no_control_tokens_and_is_restored(texts: list[str]) -> None:
    escapes = Escapes(_CONTROL)
    safe = escapes.escape(texts)
    for before, after in zip(texts, safe, strict=True):
        assert not list(_CONTROL.find(after))
        assert escapes.restore(after) == re.sub("[\ud800-\udfff]", "\ufffd", before)


def test_data_cannot_contribute_to_composed_literals() -> None:
    control = control_of("<|end|>", "<|tool|>", "[INST]")
    escapes = Escapes(control)
    schema = {"end": "tool", "x|>": ["<", "INST", "the end", "name", "a|b"]}
    assert escapes.escape(schema) == schema
    safe = escapes.escape(schema, composed=frozenset(["<|end|>", "<|tool|>"]))
    ((key, value), (other, items)) = safe.items()
    assert not {key, value, other} & {"end", "tool", "x|>"} and not set("<|>") & set("".join([other, *items]))
    assert items[1:4] == ["INST", "the end", "name"], "no part of a composed literal, nor the words schemas are made of"
    assert [escapes.restore(text) for text in (key, value, other, *items)] == ["end", "tool", "x|>", *schema["x|>"]]
    message = {"role": "tool", "content": "tool"}
    safe = escapes.escape(message, composed=frozenset(["<|tool|>"]))
    assert safe["role"] == "tool" and safe["content"] != "tool", "a role is none of the data"


def test_marks_are_restored_with_offsets() -> None:
    text = "a<|end|><call>b <|end|>"
    marked = _CONTROL.marked(text)
    assert len(marked) == 6 and marked[1] == marked[5] != marked[2]
    assert _CONTROL.unmarked(marked) == (text, list(_CONTROL.find(text)))
    assert _CONTROL.unmarked("no \U0010fff0 mark") == ("no \U0010fff0 mark", [])
    assert [_CONTROL.mark_of(token_id) for token_id in (0, 1)] == [marked[1], marked[2]]
    assert _CONTROL.among([5, 1, 10**6, 0, 1]) == [1, 0, 1]


def test_tokens_that_strip_white_space() -> None:
    control = control_of(AddedToken("<r>", rstrip=True), AddedToken("<l>", lstrip=True), "<n>")
    assert control.rstrip == {0} and control.lstrip == {1}
    text = " \n\u3000x \t"
    assert control.stripped(text) == control.stripped(text, 2, 2) == control.stripped(text, 1, 0) == text
    assert control.stripped(text, 0) == "x \t" and control.stripped(text, 2, 1) == " \n\u3000x"
    assert control.stripped(" ", 0, 1) == ""
    assert control.stripped("\x1cx", 0) == "\x1cx", "white space to Python, not to a tokenizer"


@pytest.mark.parametrize(
    "text", ["<p class='x'>word</q> " * 50_000, "<" * 1_000_000, "plain words, no marks " * 50_000]
)
@pytest.mark.soak
def test_six_thousand_control_tokens_in_a_megabyte_take_one_pass(text: str) -> None:
    control = ControlTokens(tokenizer("gemma-3"))
    assert len(control.ids) > 6_000
    started = time.perf_counter()
    assert not list(control.find(text))
    assert Escapes(control).escape(text) is text
    assert time.perf_counter() - started < 4


@given(
    st.lists(st.sampled_from(["<a>", "<ab>", "b>", "x", "é", "\U000f0001", "\U00100001", "\ud801", "🙂"]), max_size=9)
)
def test_escaping_equals_the_slow_way(pieces: list[str]) -> None:
    control = control_of("<a>", "<ab>", "b>")
    text = "".join(pieces)
    assert control.needs_escape(text) == (control.all_guarded.search(text) is not None)


_PIECES = st.lists(st.sampled_from(["<a>", '"b\n', "x", '"', "\\", "é", "\U000f0001", "\ud801"]), max_size=4).map(
    "".join
)
_VALUES = st.recursive(
    _PIECES | st.integers() | st.none() | st.just({1: "<a>"}),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_PIECES, inner, max_size=3),
)


@pytest.mark.parametrize("literals", [("<a>",), ("<a>", '"b\n')])
@given(value=_VALUES)
def test_a_clean_value_is_told_from_its_json(literals: tuple[str, ...], value: Any) -> None:
    escapes = Escapes(control_of(*literals))
    assert escapes.escape(value) == escapes._walk(value, False, None)


def test_places_of_control_tokens() -> None:
    control = control_of("<a>", "<b>")
    ids = [control.ids["<a>"], 99_999, control.ids["<b>"]]
    assert control.places(ids) == [0, 2]
    assert control.places([]) == []
