"""From rendered text to token ids, and from sampled ids to text.

Invariant: a control token comes out only where the template wrote one; text that data brought is encoded as the
tokenizer would encode it if it knew no control tokens. And back: sampled text knows which of its words are tokens.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from array import array
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from strands_sglang.chat.control import ControlTokens
from strands_sglang.chat.escapes import Escapes
from strands_sglang.chat.plain import LONG_TEXT, PlainEncoder, encoded
from strands_sglang.tool_parsers.sampled import SampledText


class Encoder:
    """Encodes rendered text with one tokenizer. Safe to use from several threads."""

    def __init__(self, tokenizer: Any) -> None:
        self.control = ControlTokens(tokenizer)
        """The tokenizer's control tokens."""
        self._tokenizer = tokenizer
        self._backend = _backend_of(tokenizer)
        self._plain: Callable[[list[str], list[int]], list[int]] | None = None
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
        if self.control.normalized and self.control.among(ids) != [token.id for token in self.control.find(text)]:
            # Another spelling was normalised into a control token.
            return self._encode_guarded(text, escapes or Escapes(self.control))
        return array("i", ids)

    def is_slow(self, text: str, escapes: Escapes | None = None) -> bool:
        """Return whether encoding a text takes long enough to keep an event loop from its other work."""
        return len(text) > LONG_TEXT or (self._plain is None and escapes is not None and escapes.present(text))

    def decode(self, ids: Any) -> str:
        """Return the text of token ids, special tokens written out, nothing tidied up."""
        if self._backend is not None:
            return str(self._backend.decode(list(ids), skip_special_tokens=False))
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def decode_marked(self, ids: Sequence[int]) -> str | None:
        """Return the text of token ids with a mark for each control token (see `ControlTokens.marked`).

        None where that cannot be told apart from a text that holds such private-use characters itself.
        """
        places = [place for place, token_id in enumerate(ids) if token_id in self.control]
        marks = [self.control.mark_of(ids[place]) for place in places]
        if not places or self._decodes_apart or self._backend is None:
            pieces: list[str] = []
            at = 0
            for place, mark in zip(places, marks, strict=True):
                pieces += (self.decode(ids[at:place]) if place > at else "", mark)
                at = place + 1
            pieces.append(self.decode(ids[at:]) if at < len(ids) else "")
            text = "".join(pieces)
        else:
            # As one text: such a decoder looks at a token's neighbours, and writes each control token as it stands.
            tokens = [self._backend.id_to_token(token_id) for token_id in ids]
            for place, mark in zip(places, marks, strict=True):
                tokens[place] = mark
            known = [token for token in tokens if token is not None]
            decoder = self._backend.decoder
            text = str(decoder.decode(known)) if decoder is not None else " ".join(known)
        return text if [token.id for token in self.control.unmarked(text)[1]] == [ids[at] for at in places] else None

    def sampled(self, ids: Sequence[int]) -> SampledText:
        """Return the text of a sampled turn; it knows where in it control tokens were sampled."""
        marked = self.decode_marked(ids)
        if marked is not None:
            text, written = self.control.unmarked(marked)
            return SampledText(text, {token.start for token in written}, self._parts)
        # The turn itself holds characters that we use as marks.
        pieces: list[str] = []
        starts: set[int] = set()
        size = at = 0
        for place in [place for place, token_id in enumerate(ids) if token_id in self.control]:
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
            return encoded(self._backend, text)
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _encode_guarded(self, text: str, escapes: Escapes) -> array[int]:
        """Encode what stands between the control tokens that the template wrote with an encoder that knows none."""
        pieces: list[str] = []
        tokens: list[int] = []
        at = 0
        before: int | None = None
        for token_id, start, end in self.control.find(text):
            pieces.append(escapes.restore(self.control.stripped(text[at:start], before, token_id)))
            tokens.append(token_id)
            before, at = token_id, end
        pieces.append(escapes.restore(self.control.stripped(text[at:], before)))
        return array("i", self._plain_encoder()(pieces, tokens))

    def _plain_encoder(self) -> Callable[[list[str], list[int]], list[int]]:
        """Return an encoder that knows no control tokens. Made when first needed: it is a second tokenizer."""
        with self._lock:
            if self._plain is None:
                self._plain = PlainEncoder(self._backend, self.control) if self._backend is not None else self._apart
            return self._plain

    def _apart(self, pieces: list[str], tokens: list[int]) -> list[int]:
        """Encode texts and the tokens between them with a tokenizer that cannot be copied."""
        ids = self._split_encode(pieces[0])
        for token, piece in zip(tokens, pieces[1:], strict=True):
            ids += [token, *self._split_encode(piece)]
        return ids

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
