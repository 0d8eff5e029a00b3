"""First prompts encoded in parts: the ids of the whole text, with repeated parts encoded once."""

from __future__ import annotations

import random
import threading
import time
from array import array
from itertools import pairwise
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from strands_sglang.chat import tokenization
from strands_sglang.chat.control_tokens import ControlTokens, Escapes
from strands_sglang.chat.tokenization import Encoder, SectionCache
from support.chat.sentencepiece_tokenizers import sentencepiece
from support.families import FAMILIES, tokenizer

WORDS = ("Grüße", " 🙂", "\n", "\n\n", "  ", "\t", "中文", "'s", " don't", "12345", "▁x", " {", "}", "e\u0301", "_", "")


def ids_of(tok: Any, text: str) -> array[int]:
    return array("i", tok(text, add_special_tokens=False)["input_ids"])


def texts(tok: Any, count: int) -> list[str]:
    """Return texts of words and control tokens in any order, of very different lengths."""
    chance = random.Random(7)
    literals = list(ControlTokens(tok).ids)
    literals = literals[:4] + chance.sample(literals, min(8, len(literals)))
    made = []
    for _ in range(count):
        parts: list[str] = []
        for _ in range(chance.randrange(1, 9)):
            parts += chance.choices(WORDS, k=chance.choice((0, 1, 2, 30, 400)))
            parts.append(chance.choice(literals))
        made.append("".join(parts))
    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_those_of_the_whole_text(family: str) -> None:
    tok = tokenizer(family)
    encoder = Encoder(tok)
    made = texts(tok, 60)
    for text in [*made, *made[:20], *(first + second for first, second in pairwise(made))]:
        assert encoder.encode(text, cache=True) == ids_of(tok, text)


@pytest.mark.parametrize("first_only", [True, False])
def test_tokenizers_that_add_a_space_before_words(first_only: bool) -> None:
    tok = sentencepiece(first_only, ("<s>", "</s>"), ("<call>",))
    encoder = Encoder(tok)
    for text in texts(tok, 200):
        assert encoder.encode(text, cache=True) == encoder.encode(text) == ids_of(tok, text)


@pytest.mark.parametrize("flag", ["lstrip", "single_word", "normalized"])
def test_text_is_not_cut_before_tokens_that_look_back(flag: str) -> None:
    own = Tokenizer.from_str(tokenizer("qwen3").backend_tokenizer.to_str())
    tok: Any = PreTrainedTokenizerFast(tokenizer_object=own)  # type: ignore[no-untyped-call]
    tok.add_tokens([AddedToken("mark", special=False, **{"normalized": False, flag: True})])
    encoder = Encoder(tok)
    for between in (" ", "\n \t", "x", ""):
        text = f"{'many words ' * 60}{between}mark{between}{'other words ' * 60}mark end"
        for _ in range(2):
            assert encoder.encode(text, cache=True) == ids_of(tok, text)


def counted(tok: Any) -> tuple[SectionCache, list[str]]:
    """Return a cache, and the list of the texts that it encodes."""
    encoder, encoded = Encoder(tok), list[str]()

    def encode(text: str) -> list[int]:
        encoded.append(text)
        time.sleep(0.01)
        return encoder.encode(text).tolist()

    return SectionCache(encoder.control, encode, 2_000), encoded


def prompt(system: str, question: str) -> str:
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def test_parts_that_prompts_have_in_common_are_encoded_once() -> None:
    cache, encoded = counted(tokenizer("qwen3"))
    long = "You are helpful. " * 40
    for number in range(20):
        cache.encode(prompt(long, f"question {number}"))
    assert sum(long in text for text in encoded) == 2  # as a part of the first text, and alone
    assert all(len(text) < 300 for text in encoded if long not in text) and len(encoded) == 21


def test_parts_that_occur_once_are_encoded_together() -> None:
    cache, encoded = counted(tokenizer("qwen3"))
    for number in range(5):
        cache.encode(prompt(f"{number} is the number. " * 40, f"{number}? " * 40))
    assert len(encoded) == 5


def test_a_group_that_starts_at_the_same_time_encodes_its_task_once() -> None:
    tok = tokenizer("qwen3")
    cache, encoded = counted(tok)
    text = prompt("short", "a long task " * 400)
    assert cache.is_slow(text)
    found: list[array[int]] = []
    threads = [threading.Thread(target=lambda: found.append(cache.encode(text))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum("a long task" in one for one in encoded) == 1
    assert all(ids == ids_of(tok, text) for ids in found) and len(found) == 8
    assert not cache.is_slow(text)


def test_many_new_parts_are_slow_together() -> None:
    cache, _ = counted(tokenizer("qwen3"))
    text = "".join(f"<|im_start|>user\n{number} words " * 30 for number in range(20))
    assert cache.is_slow(text)
    for _ in range(2):
        cache.encode(text)
    assert not cache.is_slow(text)


def test_cached_text_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenization, "_MOST_CHARACTERS", 10_000)
    cache, _ = counted(tokenizer("qwen3"))
    for number in range(30):
        for _ in range(2):
            cache.encode(prompt(f"{number} " * 300, "?"))
            cache.encode(prompt(f"{number} " * 3_000, "?"))
    kept = list(cache._known)
    assert sum(map(len, kept)) <= 10_000 and kept[-1].startswith("<|im_start|>system\n29 ")


def test_escaped_data_is_encoded_as_before() -> None:
    encoder = Encoder(tokenizer("qwen3"))
    escapes = Escapes(encoder.control)
    data = escapes.escape("words <|im_end|> " * 2_000)
    text = prompt("short", data)
    assert encoder.is_slow(text, escapes, cache=True)
    assert encoder.encode(text, escapes, cache=True) == encoder.encode(text, escapes)
    assert encoder.is_slow(text, escapes, cache=True)
