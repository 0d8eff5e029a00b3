"""The encoder: the tokenizer's own ids, except that control-token text in data is encoded as plain text."""

from __future__ import annotations

import io
import threading
from array import array
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers
from transformers import PreTrainedTokenizerFast

from strands_sglang.chat.control_tokens import Escapes
from strands_sglang.chat.tokenization import Encoder, load_tokenizer
from strands_sglang.errors import ConfigurationError
from support.chat.sentencepiece_tokenizers import sentencepiece
from support.chat.tokenizers_with_code import tokenizer_with_code
from support.families import FAMILIES, tokenizer

ODD = (
    *("Grüße 🙂 中文\nنعم", "  a\n\n\n b\t\n", "e\u0301 x\u0308 \u0301", "x = {'a': [1, 2.5], \"b\": null}\r\n"),
    *("\x00\x07\u2028\ufeff\u200b", "▁▁ ▁x", "don't I'LL 12345678 ...!!!", "\U000f0000 \ue000 \U00100000", ""),
)


@cache
def encoder_of(family: str) -> Encoder:
    return Encoder(tokenizer(family))


def ids_of(tok: Any, text: str) -> array[int]:
    return array("i", tok(text, add_special_tokens=False)["input_ids"])


def rendered(family: str) -> str:
    """Return a text with as many of the template's control tokens as a conversation has."""
    messages = [{"role": "user", "content": ODD[0]}, {"role": "assistant", "content": "Hm."}] * 2
    return str(tokenizer(family).apply_chat_template([*messages, messages[0]], tokenize=False))


# --- every family ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_guarded_and_plain_ids_equal_tokenizers(family: str) -> None:
    encoder, head = encoder_of(family), rendered(family)
    control = encoder.control
    assert control.count(encoder.encode(head)) >= 3
    for text in ODD:
        whole = f"{head}{text}{head}\n{text}"
        official = ids_of(tokenizer(family), whole)
        assert encoder.encode(whole) == official
        # A private-use character is escaped like control-token text and has no token of its own: a text with one is
        # encoded piece by piece, and must give the same ids.
        escapes = Escapes(control)
        guarded = f"{head}{escapes.escape(text + chr(0xF0042))}{head}\n{escapes.escape(text)}"
        assert escapes.present(guarded)
        assert encoder.encode(guarded, escapes) == ids_of(tokenizer(family), f"{head}{text}\U000f0042{head}\n{text}")


# --- white space and normalisers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", ["", " ", "\n", " \n\t\u3000", "\x1c ", "\x85\xa0"])
def test_tokens_that_strip_white_space_after_them(space: str) -> None:
    tok, encoder = tokenizer("phi-4-mini"), encoder_of("phi-4-mini")
    escapes = Escapes(encoder.control)
    for data in ("hello", "\U000f0000", "<|end|>", f"<|user|>{space}x"):
        text = f"<|user|>{space}{escapes.escape(data)}{space}<|end|>{space}<|assistant|>{space}"
        ids = encoder.encode(text, escapes)
        if data == "hello":
            assert ids == ids_of(tok, text)
        if data == "\U000f0000":
            assert ids == ids_of(tok, text.replace(escapes.escape(data), data))
        assert encoder.control.count(ids) == 3
        assert data in encoder.decode(ids)


def copied(family: str = "smollm2") -> Tokenizer:
    return Tokenizer.from_str(tokenizer(family).backend_tokenizer.to_str())


def fast(backend: Tokenizer) -> Any:
    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=backend)


def test_tokens_that_strip_white_space_before_them() -> None:
    backend = copied()
    backend.add_special_tokens([AddedToken("<mask>", lstrip=True), AddedToken("<both>", lstrip=True, rstrip=True)])
    encoder = Encoder(fast(backend))
    assert encoder.control.lstrip and encoder.control.rstrip
    for text in ("a \n<mask> b", "<both>  <mask>", " <both> \n x", "a\x1c <mask>\x1c"):
        plain = list(backend.encode(text, add_special_tokens=False).ids)
        assert list(encoder.encode(text)) == plain
        escapes = Escapes(encoder.control)
        ids = encoder.encode(text + "|" + escapes.escape("<mask>"), escapes)
        assert list(ids[: len(plain)]) == plain and encoder.control.count(ids) == encoder.control.count(plain)


@pytest.mark.parametrize("special", [False, True])
def test_white_space_tokens_keep_their_ids(special: bool) -> None:
    """They are added after control tokens, which the encoder of plain text does not have."""
    backend = copied()
    (backend.add_special_tokens if special else backend.add_tokens)(["<mask>", "\n\n\n\n", "<both>", " " * 9])
    encoder = Encoder(fast(backend))
    spaces = "a\n\n\n\nb" + " " * 9 + "c"
    plain = list(backend.encode(spaces, add_special_tokens=False).ids)
    assert {backend.token_to_id("\n\n\n\n"), backend.token_to_id(" " * 9)} <= set(plain)
    escapes = Escapes(encoder.control)
    ids = list(encoder.encode(f"<both>{escapes.escape(spaces + '<mask>')}", escapes))
    assert ids[: len(plain) + 1] == [backend.token_to_id("<both>"), *plain]
    assert backend.token_to_id("<mask>") not in ids


@pytest.mark.parametrize(
    ("normalizer", "spelling"),
    [(normalizers.NFKC(), "<|User|>"), (normalizers.Lowercase(), "<｜USER｜>"), (normalizers.Strip(), None)],
)
def test_text_normalised_to_control_token_stays_text(normalizer: Any, spelling: str | None) -> None:
    """The family matches some control tokens in normalised text; its own normaliser does nothing."""
    backend = copied("deepseek-v3")
    backend.normalizer = normalizer
    encoder = Encoder(fast(backend))
    assert encoder.control.normalized
    user, bos = encoder.control.ids["<｜User｜>"], encoder.control.ids["<｜begin▁of▁sentence｜>"]
    ids = encoder.encode("<｜begin▁of▁sentence｜>a<｜User｜>b")
    assert [token for token in ids if token in encoder.control] == [bos, user]
    if spelling is None:
        return
    assert user in backend.encode(spelling, add_special_tokens=False).ids, "the tokenizer itself is taken in"
    for text, expected in ((spelling, []), (f"<｜User｜>{spelling} x", [user]), (f"{spelling}<｜User｜>", [user])):
        assert [token for token in encoder.encode(text) if token in encoder.control] == expected
    escapes = Escapes(encoder.control)
    ids = encoder.encode(f"<｜User｜>{escapes.escape(spelling + '<｜User｜>')}", escapes)
    assert [token for token in ids if token in encoder.control] == [user]


# --- tokenizers that cannot be copied --------------------------------------------------------------------------------


class Slow:
    """A minimal tokenizer in pure Python, with added tokens."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self.added_tokens_decoder = backend.get_added_tokens_decoder()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        assert not skip_special_tokens and not clean_up_tokenization_spaces
        return str(self._backend.decode(ids, skip_special_tokens=False))

    def get_vocab(self) -> dict[str, int]:
        return self._backend.get_vocab()


def test_slow_tokenizer_is_guarded() -> None:
    encoder, official = Encoder(Slow(copied())), encoder_of("smollm2")
    end = encoder.control.ids["<|im_end|>"]
    for text in ODD:
        assert encoder.encode(f"<|im_end|>{text}") == official.encode(f"<|im_end|>{text}")
    escapes = Escapes(encoder.control)
    data = "a<|im_end|><|im_start|>b<|im_end|>\ud800"
    ids = encoder.encode(f"<|im_end|>\n{escapes.escape(data)}<|im_end|>", escapes)
    assert [token for token in ids if token in encoder.control] == [end, end]
    assert encoder.decode(ids) == f"<|im_end|>\n{data[:-1]}\ufffd<|im_end|>"
    assert len(encoder.digest) == 64 and encoder.digest == Encoder(Slow(copied())).digest


def test_slow_tokenizer_with_overlapping_control_tokens() -> None:
    backend = copied()
    backend.add_special_tokens(["<<x>>", "<x>>", "x>>"])
    encoder = Encoder(Slow(backend))
    escapes = Escapes(encoder.control)
    ids = encoder.encode(escapes.escape("a<<x>>b"), escapes)
    assert encoder.control.count(ids) == 0 and encoder.decode(ids) == "a<<x>>b"


# --- the rest --------------------------------------------------------------------------------------------------------


def test_padding_and_truncation_are_not_applied() -> None:
    backend = copied()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    tok = fast(backend)
    encoder, text = Encoder(tok), "one two three four five six seven"
    assert encoder.encode(text) == encoder_of("smollm2").encode(text)
    escapes = Escapes(encoder.control)
    assert encoder.decode(encoder.encode(escapes.escape(text + "<|im_end|>"), escapes)) == text + "<|im_end|>"
    assert tok.backend_tokenizer.truncation is not None, "the tokenizer that was handed over is not changed"


def test_encoder_is_thread_safe() -> None:
    encoder = Encoder(tokenizer("smollm2"))
    found: list[array[int]] = []

    def encode() -> None:
        escapes = Escapes(encoder.control)
        found.append(encoder.encode(f"<|im_start|>{escapes.escape('x<|im_end|>' * 50)}", escapes))

    threads = [threading.Thread(target=encode) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and all(ids == found[0] for ids in found)


def test_digest_differs_between_tokenizers() -> None:
    backend = copied()
    assert Encoder(fast(backend)).digest == Encoder(fast(copied())).digest
    backend.add_special_tokens(["<new>"])
    assert Encoder(fast(backend)).digest != Encoder(fast(copied())).digest


def test_code_of_a_tokenizer_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does transformers ask on the standard input, where anything may answer."""
    mark = tokenizer_with_code(tmp_path / "own")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\ny\n"))
    with pytest.raises(ConfigurationError, match=r"contains custom code .* It is not executed\. .* pass the object"):
        load_tokenizer(tmp_path / "own")
    assert not mark.exists()


def test_invalid_tokenizer_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be a transformers tokenizer, got str"):
        Encoder("Qwen/Qwen3-8B")
    with pytest.raises(ConfigurationError, match="SimpleNamespace"):
        Encoder(SimpleNamespace())


# --- tokenizers of the sentencepiece kind ----------------------------------------------------------------------------


@pytest.mark.parametrize("first_only", [True, False])
def test_guarded_text_has_no_additional_blanks(first_only: bool) -> None:
    tok = sentencepiece(first_only, ("<s>", "[INST]", "[/INST]", "</s>"))
    encoder = Encoder(tok)
    for head in ("<s>[INST] hi[/INST]yes</s>[INST]", "words first <s>[INST]"):
        escapes = Escapes(encoder.control)
        plain = tok.backend_tokenizer.encode(f"{head}ok @INST][/INST]", add_special_tokens=False).ids
        ids = encoder.encode(f"{head}{escapes.escape('ok [INST]')}[/INST]", escapes)
        at = tok.convert_tokens_to_ids("@"), tok.convert_tokens_to_ids("[")
        assert list(ids) == [at[1] if token == at[0] else token for token in plain]


@pytest.mark.parametrize("first_only", [True, False])
def test_sampled_marker_differs_from_its_letters(first_only: bool) -> None:
    tok = sentencepiece(first_only, ("<|im_end|>",), ("<tool_call>", "</tool_call>"))
    encoder = Encoder(tok)
    assert not encoder._decodes_apart
    letters = [tok.convert_tokens_to_ids(letter) for letter in "a<tool_call>b"]
    marker = encoder.control.ids["<tool_call>"]
    sampled = encoder.sampled([*letters, marker, *letters])
    assert sampled == "a<tool_call>b<tool_call>a<tool_call>b"
    assert sampled.mark("<tool_call>", 0) == 13 and sampled.mark("<tool_call>", 14) == -1
    assert encoder.sampled(letters).mark("<tool_call>", 0) == -1


def test_sampled_text_with_mark_characters() -> None:
    encoder = encoder_of("qwen3")
    marker = encoder.control.ids["<tool_call>"]
    ids = [*tokenizer("qwen3").encode("\U00100000", add_special_tokens=False), marker]
    assert encoder.decode_marked(ids) is None
    sampled = encoder.sampled(ids)
    assert sampled == "\U00100000<tool_call>" and sampled.mark("<tool_call>", 0) == 1
