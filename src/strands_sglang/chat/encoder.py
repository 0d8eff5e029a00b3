"""From rendered text to token ids, and from sampled ids to text.

Invariant: a control token comes out only where the template wrote one; text that data brought is encoded as the
tokenizer would encode it if it knew no control tokens. And back: sampled text knows which of its words are tokens.
"""

from __future__ import annotations

import copy
import hashlib
import json
import threading
from array import array
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from strands_sglang.chat.control import ControlTokens, Escapes, is_blank
from strands_sglang.tool_parsers.sampled import SampledText

# Encoding this many characters takes some ten milliseconds: too long for an event loop with a thousand episodes.
_LONG_TEXT = 40_000


class Encoder:
    """Encodes rendered text with one tokenizer. Safe to use from several threads."""

    def __init__(self, tokenizer: Any) -> None:
        self.control = ControlTokens(tokenizer)
        """The tokenizer's control tokens."""
        self._tokenizer = tokenizer
        self._backend = _backend_of(tokenizer)
        self._plain: Callable[[str], list[int]] | None = None
        self._offsets: dict[str, tuple[int, ...]] = {}
        self._lock = threading.Lock()

    @cached_property
    def digest(self) -> str:
        """Hash of the tokenizer."""
        known = (
            self._backend.to_str() if self._backend is not None else repr(sorted(self._tokenizer.get_vocab().items()))
        )
        return hashlib.sha256(known.encode()).hexdigest()

    def encode(self, text: str, escapes: Escapes | None = None) -> array[int]:
        """Encode a rendered text.

        Args:
            text: What the template rendered, or a part of it that begins at a token's border.
            escapes: What was taken out of its data; None when nothing was.

        Returns:
            Its token ids (32-bit).
        """
        if escapes is not None and escapes.present(text):
            return self._encode_guarded(text, escapes)
        ids = self._encode(text)
        if self.control.normalized and self.control.count(ids) != sum(1 for _ in self.control.find(text)):
            # Another spelling was normalised into a control token.
            return self._encode_guarded(text, escapes or Escapes(self.control))
        return array("i", ids)

    def is_slow(self, text: str, escapes: Escapes | None = None) -> bool:
        """Return whether encoding a text takes long enough to keep an event loop from its other work."""
        return len(text) > _LONG_TEXT or (self._plain is None and escapes is not None and escapes.present(text))

    def decode(self, ids: Any) -> str:
        """Return the text of token ids, special tokens written out, nothing tidied up."""
        if self._backend is not None:
            return str(self._backend.decode(list(ids), skip_special_tokens=False))
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def sampled(self, ids: Sequence[int]) -> SampledText:
        """Return the text of a sampled turn; it knows where in it control tokens were sampled."""
        places = [place for place, token_id in enumerate(ids) if token_id in self.control]
        if not places:
            return SampledText(self.decode(ids), (), self._parts)
        if not self._decodes_apart:
            text = self.decode(ids)
            found = list(self.control.find(text))
            known = [token.id for token in found] == [ids[place] for place in places]
            return SampledText(text, {token.start for token in found} if known else None, self._parts)
        pieces: list[str] = []
        starts: set[int] = set()
        size = at = 0
        for place in places:
            literal = self.control.texts[ids[place]]
            piece = self.decode(ids[at:place]) if place > at else ""
            starts.add(size + len(piece))
            pieces += (piece, literal)
            size, at = size + len(piece) + len(literal), place + 1
        pieces.append(self.decode(ids[at:]) if at < len(ids) else "")
        return SampledText("".join(pieces), starts, self._parts)

    def _parts(self, marker: str) -> tuple[int, ...]:
        """Return the offset of each control token in a marker."""
        if marker not in self._offsets:
            self._offsets[marker] = tuple(token.start for token in self.control.find(marker))
        return self._offsets[marker]

    @cached_property
    def _decodes_apart(self) -> bool:
        """Whether the text of ids is that of its pieces between control tokens, one behind the other."""
        plain, control = self._encode(" a b"), next(iter(self.control.texts))
        pieces = (self.decode(plain), self.control.texts[control], self.decode(plain))
        return self.decode([*plain, control, *plain]) == "".join(pieces)

    def _encode(self, text: str) -> list[int]:
        if self._backend is not None:
            return _encoded(self._backend, text)
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _encode_guarded(self, text: str, escapes: Escapes) -> array[int]:
        """Encode piece by piece between the control tokens that the template wrote."""
        plain, ids, at = self._plain_encoder(), array("i"), 0
        before: int | None = None
        for token_id, start, end in self.control.find(text):
            if piece := self.control.stripped(text[at:start], before, token_id):
                ids.extend(plain(escapes.restore(piece)))
            ids.append(token_id)
            before, at = token_id, end
        if piece := self.control.stripped(text[at:], before):
            ids.extend(plain(escapes.restore(piece)))
        return ids

    def _plain_encoder(self) -> Callable[[str], list[int]]:
        """Return an encoder that knows no control tokens. Made when first needed: it is a second tokenizer."""
        with self._lock:
            if self._plain is None:
                self._plain = _without_control(self._backend) if self._backend is not None else self._split_encode
            return self._plain

    def _split_encode(self, text: str) -> list[int]:
        """Encode with a tokenizer that cannot be copied: each literal is cut in two, which makes it plain text."""
        ids: list[int] = []
        at = 0
        # Searched anew behind each cut: the rest of a literal may begin another one.
        while (found := next(self.control.find(text, at), None)) is not None:
            ids += self._encode(text[at : found.start + 1])
            at = found.start + 1
        return ids + self._encode(text[at:])


def _backend_of(tokenizer: Any) -> Any:
    """Return the fast tokenizer inside, one that neither pads nor truncates; None when there is none."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    if backend.truncation is not None or backend.padding is not None:
        backend = copy.deepcopy(backend)
        backend.no_truncation()
        backend.no_padding()
    return backend


def _without_control(backend: Any) -> Callable[[str], list[int]]:
    from tokenizers import Tokenizer

    data = json.loads(backend.to_str())
    for token in data["added_tokens"]:
        if not is_blank(token["content"]):
            token["special"], token["normalized"] = True, False
    plain = Tokenizer.from_str(json.dumps(data))
    plain.no_truncation()
    plain.no_padding()
    plain.encode_special_tokens = True

    return lambda text: _encoded(plain, text)


def _encoded(backend: Any, text: str) -> list[int]:
    if len(text) > _LONG_TEXT:
        # As a batch of one: only batches let other threads run meanwhile.
        batch = getattr(backend, "encode_batch_fast", backend.encode_batch)
        ids: list[int] = batch([text], add_special_tokens=False)[0].ids
    else:
        ids = backend.encode(text, add_special_tokens=False).ids
    return ids
