"""Small tokenizers in the style of SentencePiece: a space before words, ASCII characters, bytes for the rest."""

from __future__ import annotations

import string
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def sentencepiece(first_only: bool, special: tuple[str, ...], markers: tuple[str, ...] = ()) -> Any:
    """Return a tokenizer that adds a space before every piece of text, or before the first only."""
    vocabulary = {"<unk>": 0}
    for token in (*(f"<0x{byte:02X}>" for byte in range(256)), "▁", *string.printable.strip()):
        vocabulary.setdefault(token, len(vocabulary))
    made = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    parts: Any = made
    if first_only:
        parts.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    else:
        parts.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<unk>", *special)])
    made.add_tokens([AddedToken(token, special=False, normalized=False) for token in markers])
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=made, unk_token="<unk>", eos_token=special[-1])
