"""The texts of single tokens, joined, are the decoded text: in every family."""

from __future__ import annotations

import random

import pytest

from strands_sglang.viewer.drift import ChangedSpan, changed_spans
from strands_sglang.viewer.token_text import TokenTexts
from support.families import FAMILIES, tokenizer

TEXTS = {
    "call": '615 * 17 = 10455.\n<tool_call>\n{"name": "add", "arguments": {"é": "東京 🙂"}}\n</tool_call><|im_end|>',
    "white space": "a  b   c    d" + " " * 31 + "e\n\n\nf\n\n\n\n\t\tg\t\t\th\r\n\n  \n    i\n",
    "markup": "<table><tr><td>x</td></tr></table>\n\n<h1>y</h1><|user|><end_of_turn></s>",
    "start": "  two spaces first, one last ",
    "rare": "\x00\x01 ᚠ 𓀀 \u200b é e\u0301 Ġ Ċ â",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_of_tokens_are_the_decoded_text(family: str) -> None:
    known = TokenTexts(tokenizer(family))
    for name, text in TEXTS.items():
        ids = known.encode(text)
        joined = b"".join(known.bytes_of(id) for id in ids).decode()
        assert joined == known.decode(ids), name
    wrong = {}
    for id in tokenizer(family).backend_tokenizer.get_added_tokens_decoder():
        if (decoded := known.decode([id])) != known.bytes_of(id).decode():
            wrong[id] = decoded
    assert not wrong, "an added token is what it decodes to"


def test_white_space_is_no_control_token() -> None:
    known = TokenTexts(tokenizer("gemma-3"))
    spaces, lines = known.encode("a    b")[1], known.encode("a\n\n\n\nb")[1]
    assert (known.bytes_of(spaces), known.bytes_of(lines)) == (b"    ", b"\n\n\n\n")
    assert not known.is_special(spaces) and not known.is_special(lines)
    assert known.is_special(known.encode("<end_of_turn>")[0])


def test_ids_that_the_tokenizer_does_not_have() -> None:
    known = TokenTexts(tokenizer("gemma-3"))
    assert [known.bytes_of(id) for id in (-5, 10**9, 10**30)] == [b"", b"", b""]


def texts(family: str) -> TokenTexts:
    return TokenTexts(tokenizer(family))


def applied(ids: list[int], spans: list[ChangedSpan]) -> list[int]:
    changed = list(ids)
    for span in reversed(spans):
        changed[span.start : span.end] = span.ids
    return changed


TEXT = 'Wait, 615 * 17 = 10455.\n<tool_call>\n{"name": "add", "arguments": {"é": "東京 🙂"}}\n</tool_call><|im_end|>'


@pytest.mark.parametrize("seed", range(20))
def test_spans_turn_one_list_into_the_other(seed: int) -> None:
    known, rng = texts("qwen3"), random.Random(seed)
    canonical = known.encode(TEXT * 3)
    sampled: list[int] = []
    for id in canonical:
        text = known.decode([id])
        if rng.random() < 0.3 and len(text) > 2 and text.isascii() and not known.is_special(id):
            cut = rng.randrange(1, len(text))
            sampled += [*known.encode(text[:cut]), *known.encode(text[cut:])]
        else:
            sampled.append(id)
    again = known.encode(known.decode(sampled))
    spans = changed_spans(sampled, again, known)
    assert applied(sampled, spans) == again
    assert all(sampled[span.start : span.end] != span.ids for span in spans)


@pytest.mark.parametrize("seed", range(20))
def test_other_texts_are_compared_by_ids(seed: int) -> None:
    known, rng = texts("qwen3"), random.Random(seed)
    before = [rng.randrange(1000) for _ in range(40)]
    after = [id for id in before if rng.random() < 0.8] + [5] * rng.randrange(3)
    assert applied(before, changed_spans(before, after, known)) == after
