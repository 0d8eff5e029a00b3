"""The bytes and the text of single tokens: `TokenTexts`. Used to show tokens, never to make tokens that are trained.

Invariant: the bytes of consecutive tokens, joined, are the bytes of their text, for tokenizers whose decoder works on
bytes (byte-level BPE, SentencePiece with byte fallback). For any other, a token's bytes are those of its decoded text.
Decoders treat added tokens as any other token: Gemma's `▁▁` is two spaces.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from typing import Any

from strands_sglang.chat.tokenization import Encoder, load_tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenTexts:
    """Bytes, text and encoding of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        """Take a tokenizer, or the name or path of one; ConfigurationError if it cannot be loaded."""
        self.tokenizer = load_tokenizer(tokenizer)
        self._encoder = Encoder(self.tokenizer)
        self.control = self._encoder.control
        """The control tokens of the tokenizer."""
        self._backend = getattr(self.tokenizer, "backend_tokenizer", None)
        self._kind = _decoder_kind(self._backend)
        self._cache: dict[int, bytes] = {}

    def is_special(self, id: int) -> bool:
        """Return whether a token is a control token: an added token that is not white space."""
        return id in self.control.texts

    def bytes_of(self, id: int) -> bytes:
        """Return the bytes of one token; b"" if the tokenizer does not have it."""
        known = self._cache.get(id)
        if known is None:
            known = self._cache[id] = self._bytes_of(id)
        return known

    def text_of(self, id: int) -> str | None:
        """Return the text of one token; None if its bytes are not whole characters."""
        try:
            return self.bytes_of(id).decode()
        except UnicodeDecodeError:
            return None

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens as serving code decodes it, control tokens included."""
        return self._encoder.decode(ids)

    def texts_of(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token, so that the texts together are the text of all.

        A character of several tokens is the text of the last of them. An id that the tokenizer does not have is `<id>`.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        found = []
        for at, id in enumerate(ids, 1):
            data = self.bytes_of(id)
            found.append(decoder.decode(data, at == len(ids)) if data else f"{decoder.decode(b'', True)}<{id}>")
        return found

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text as a client that only has the text encodes it."""
        if self._backend is not None:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
            return ids
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _bytes_of(self, id: int) -> bytes:
        try:
            token = self.tokenizer.convert_ids_to_tokens(int(id))
        except (IndexError, KeyError, OverflowError, TypeError, ValueError):
            return b""
        if not isinstance(token, str):
            return token if isinstance(token, bytes) else b""
        if self._kind == "bytes":
            try:
                return bytes(_UNICODE_BYTES[character] for character in token)
            except KeyError:
                return token.encode("utf-8", "replace")
        if self._kind == "sentencepiece":
            if (byte := _BYTE.fullmatch(token)) is not None:
                return bytes([int(byte[1], 16)])
            return token.replace("▁", " ").encode("utf-8", "replace")
        return self.decode([id]).encode("utf-8", "replace")


def _decoder_kind(backend: Any) -> str:
    """Return how the tokenizer spells tokens: "bytes", "sentencepiece" or "other"."""
    decoder = None if backend is None else backend.decoder
    if decoder is None:
        return "other" if backend is None else "sentencepiece"
    try:
        spelled = json.dumps(json.loads(decoder.__getstate__()))
    except (AttributeError, TypeError, ValueError):
        spelled = repr(decoder)
    if "ByteLevel" in spelled:
        return "bytes"
    return "sentencepiece" if "ByteFallback" in spelled or "Metaspace" in spelled or "▁" in spelled else "other"


def _unicode_bytes() -> dict[str, int]:
    """Return the byte of each character that byte-level BPE writes in its vocabulary."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table |= {chr(256 + number): byte for number, byte in enumerate(others)}
    return table


_UNICODE_BYTES = _unicode_bytes()
