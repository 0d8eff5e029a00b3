"""An encoder that knows no control tokens, for text in which data wrote their letters.

It is a copy of the tokenizer. The control tokens that do belong into the text are handed over beside it; an anchor
stands for each while the text is encoded, so that whatever the tokenizer does around an added token, and at the
beginning of a text only (a blank before the first word, say), it does here too.

Invariant: the ids are those of the tokenizer itself, if the letters of the text were no control tokens.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from strands_sglang.chat.control import ControlTokens, is_blank

# Encoding this many characters takes some ten milliseconds: too long for an event loop with a thousand episodes.
LONG_TEXT = 40_000


class PlainEncoder:
    """Encodes with a copy of a fast tokenizer. Safe to use from several threads."""

    def __init__(self, backend: Any, control: ControlTokens) -> None:
        """Copy a tokenizer.

        Args:
            backend: The fast tokenizer.
            control: Its control tokens.
        """
        from tokenizers import AddedToken, Tokenizer

        data = json.loads(backend.to_str())
        self._normalized = {token["id"] for token in data["added_tokens"] if token["normalized"]}
        for token in data["added_tokens"]:
            if not is_blank(token["content"]):
                token["special"], token["normalized"] = True, False
        plain = Tokenizer.from_str(json.dumps(data))
        plain.no_truncation()
        plain.no_padding()
        plain.encode_special_tokens = True
        # Nobody can write these into a text: they are drawn anew in every process.
        self._anchors = tuple("".join(chr(0xE000 + secrets.randbelow(0x1900)) for _ in range(12)) for _ in range(2))
        for anchor, normalized in zip(self._anchors, (False, True), strict=True):
            plain.add_tokens([AddedToken(anchor, special=False, normalized=normalized)])
        self._ids = tuple(plain.token_to_id(anchor) for anchor in self._anchors)
        self._plain = plain

    def __call__(self, pieces: list[str], tokens: list[int]) -> list[int]:
        """Encode a text.

        Args:
            pieces: What stands before, between and behind the control tokens.
            tokens: The control tokens: one less than there are pieces.

        Returns:
            The ids of all of it.
        """
        kinds = [token in self._normalized for token in tokens]
        text = pieces[0] + "".join(self._anchors[kind] + piece for kind, piece in zip(kinds, pieces[1:], strict=True))
        ids = encoded(self._plain, text)
        places = [place for place, token_id in enumerate(ids) if token_id in self._ids]
        if [ids[place] for place in places] == [self._ids[kind] for kind in kinds]:
            for place, token in zip(places, tokens, strict=True):
                ids[place] = token
            return ids
        # A normaliser changes the anchors: piece by piece, then.
        ids = encoded(self._plain, pieces[0]) if pieces[0] else []
        for token, piece in zip(tokens, pieces[1:], strict=True):
            ids += [token, *(encoded(self._plain, piece) if piece else ())]
        return ids


def encoded(backend: Any, text: str) -> list[int]:
    """Return the ids of a text, encoded with a fast tokenizer."""
    if len(text) > LONG_TEXT:
        # As a batch of one: only batches let other threads run meanwhile.
        batch = getattr(backend, "encode_batch_fast", backend.encode_batch)
        ids: list[int] = batch([text], add_special_tokens=False)[0].ids
    else:
        ids = backend.encode(text, add_special_tokens=False).ids
    return ids
