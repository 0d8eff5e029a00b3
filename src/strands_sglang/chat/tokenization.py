"""From rendered text to token ids, and from sampled ids to text.

Invariant: encoding produces a control token only where the template wrote one; text that comes from data is encoded as
if the tokenizer had no control tokens. Decoding keeps track of which control tokens were sampled.

`SectionCache`: first prompts have much text in common. A tokenizer splits a text at its control tokens before it does
anything else, so a text can be cut before a control token and the parts encoded one by one; long parts are cached when
they occur for the second time. A text is cut only before control tokens that take nothing of the text before them into
account, and tokenizers whose control tokens are matched in normalised text are not used this way.
"""

from __future__ import annotations

import copy
import hashlib
import os
import secrets
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

from strands_sglang.chat.control_tokens import ControlTokens, Escapes, is_blank
from strands_sglang.errors import ConfigurationError
from strands_sglang.tool_parsers import SampledText

# Encoding this many characters takes about two milliseconds. An event loop that runs hundreds of episodes gets as many
# tool results at once: longer texts would stop it for seconds.
_LONG_TEXT = 8_000


class Encoder:
    """Encodes rendered text and decodes sampled ids with one tokenizer. Thread-safe."""

    def __init__(self, tokenizer: Any) -> None:
        self.control = ControlTokens(tokenizer)
        self._tokenizer = tokenizer
        self._backend = _backend_of(tokenizer)
        self._plain: Callable[[list[str], list[int]], list[int]] | None = None
        self._offsets: dict[str, tuple[int, ...]] = {}
        self._lock = threading.Lock()
        # None: texts are not cut, because parts of them might have other ids.
        cuts = self._backend is not None and not self.control.normalized
        self._sections = SectionCache(self.control, self._encode, _LONG_TEXT) if cuts else None

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the tokenizer's serialised form."""
        known = (
            self._backend.to_str() if self._backend is not None else repr(sorted(self._tokenizer.get_vocab().items()))
        )
        return hashlib.sha256(known.encode()).hexdigest()

    def encode(self, text: str, escapes: Escapes | None = None, *, cache: bool = False) -> array[int]:
        """Encode a rendered text.

        `text` starts at a token boundary. `cache`: other texts will have long parts in common with this one.
        """
        if escapes is not None and escapes.present(text):
            return self._encode_guarded(text, escapes)
        if cache and self._sections is not None:
            return self._sections.encode(text)
        ids = self._encode(text)
        if self.control.normalized and self.control.among(ids) != [token.id for token in self.control.find(text)]:
            # The tokenizer normalised another spelling into a control token.
            return self._encode_guarded(text, Escapes(self.control) if escapes is None else escapes)
        return array("i", ids)

    def is_slow(self, text: str, escapes: Escapes | None = None, *, cache: bool = False) -> bool:
        """Return whether encoding a text takes long enough to block an event loop noticeably (see `encode`)."""
        if len(text) <= _LONG_TEXT:
            return False
        if cache and self._sections is not None and not (escapes is not None and escapes.present(text)):
            return self._sections.is_slow(text)
        return True

    def decode(self, ids: Any) -> str:
        """Return the text of token ids, including special tokens, without cleaning up spaces."""
        if self._backend is not None:
            return str(self._backend.decode(list(ids), skip_special_tokens=False))
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def decode_marked(self, ids: Sequence[int]) -> str | None:
        """Return the text with a mark for each control token; None if it contains characters that are used as marks."""
        places = self.control.places(ids)
        marks = [self.control.mark_of(ids[place]) for place in places]
        if self._decodes_pieces(places):
            text = "".join(piece + mark for piece, mark in zip(self._pieces(ids, places), [*marks, ""], strict=True))
        else:
            # Decoded in one go: this decoder depends on neighbouring tokens, and copies control tokens verbatim.
            tokens = [self._backend.id_to_token(token_id) for token_id in ids]
            for place, mark in zip(places, marks, strict=True):
                tokens[place] = mark
            known = [token for token in tokens if token is not None]
            decoder = self._backend.decoder
            text = str(decoder.decode(known)) if decoder is not None else " ".join(known)
        return text if [token.id for token in self.control.unmarked(text)[1]] == [ids[at] for at in places] else None

    def sampled(self, ids: Sequence[int], places: Sequence[int] | None = None) -> SampledText:
        """Return the text of a sampled turn, with the positions at which control tokens were sampled."""
        places = self.control.places(ids) if places is None else places
        if not self._decodes_pieces(places):
            marked = self.decode_marked(ids)
            if marked is not None:
                text, written = self.control.unmarked(marked)
                return SampledText(text, {token.start for token in written}, self._parts)
            # The turn itself contains characters that are used as marks.
        text, *pieces = self._pieces(ids, places)
        starts: set[int] = set()
        for place, piece in zip(places, pieces, strict=True):
            starts.add(len(text))
            text += self.control.texts[ids[place]] + piece
        return SampledText(text, starts, self._parts)

    def _pieces(self, ids: Sequence[int], places: Sequence[int]) -> list[str]:
        """Return the texts before, between and after the ids at some places."""
        spans = zip((0, *(place + 1 for place in places)), (*places, len(ids)), strict=True)
        return [self.decode(ids[start:end]) if start < end else "" for start, end in spans]

    def _parts(self, marker: str) -> tuple[int, ...]:
        if marker not in self._offsets:
            self._offsets[marker] = tuple(token.start for token in self.control.find(marker))
        return self._offsets[marker]

    def _decodes_pieces(self, places: Sequence[int]) -> bool:
        return not places or self._backend is None or self._decodes_apart

    @cached_property
    def _decodes_apart(self) -> bool:
        plain, control = self._encode(" a b"), next(iter(self.control.texts))
        pieces = (self.decode(plain), self.control.texts[control], self.decode(plain))
        return self.decode([*plain, control, *plain]) == "".join(pieces)

    def _encode(self, text: str) -> list[int]:
        if self._backend is not None:
            return _encoded(self._backend, text)
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _encode_guarded(self, text: str, escapes: Escapes) -> array[int]:
        """Encode the text between the template's control tokens with an encoder that has no control tokens."""
        pieces: list[str] = []
        tokens: list[int] = []
        at = 0
        before: int | None = None
        for token_id, start, end in self.control.find(text):
            pieces.append(escapes.restore(self.control.stripped(text[at:start], before, token_id)))
            tokens.append(token_id)
            before, at = token_id, end
        pieces.append(escapes.restore(self.control.stripped(text[at:], before)))
        return array("i", self._plain_text_encoder()(pieces, tokens))

    def _plain_text_encoder(self) -> Callable[[list[str], list[int]], list[int]]:
        with self._lock:
            if self._plain is None:
                self._plain = _PlainTextEncoder(self._backend) if self._backend is not None else self._encode_pieces
            return self._plain

    def _encode_pieces(self, pieces: list[str], tokens: list[int]) -> list[int]:
        ids = self._split_encode(pieces[0])
        for token, piece in zip(tokens, pieces[1:], strict=True):
            ids += [token, *self._split_encode(piece)]
        return ids

    def _split_encode(self, text: str) -> list[int]:
        """Encode with a slow tokenizer: each control-token literal is split in two, which makes it plain text."""
        ids: list[int] = []
        at = 0
        # Search again after each split: the rest of a literal may start another one.
        while (found := next(self.control.find(text, at), None)) is not None:
            ids += self._encode(text[at : found.start + 1])
            at = found.start + 1
        return ids + self._encode(text[at:])


def load_tokenizer(tokenizer: Any) -> Any:
    """Return `tokenizer`, or load it with `AutoTokenizer` if it is a name or path (once per process).

    Code that comes with a tokenizer is never run, and nobody is asked whether to run it: a recorded run can name any
    tokenizer. ConfigurationError if it needs such code, or cannot be loaded.
    """
    return _load(str(tokenizer)) if isinstance(tokenizer, (str, os.PathLike)) else tokenizer


@cache
def _load(path: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # transformers raises many kinds: no such folder, no network, a broken file
        reason = str(error).strip().partition("\n")[0]
        if path.startswith((".", "/", "~")) and not Path(path).exists():
            raise ConfigurationError(
                f"tokenizer must be a name, or the folder of a model or tokenizer, got {path!r}, which does not exist"
            ) from error
        if "trust_remote_code" in str(error):
            reason += (
                " It is not executed. If you trust it, load the tokenizer with AutoTokenizer.from_pretrained(..., "
                "trust_remote_code=True) and pass the object"
            )
        raise ConfigurationError(
            f"tokenizer must be a transformers tokenizer, or a name or path to load one from; loading {path!r} failed: "
            f"{reason}"
        ) from error


def _backend_of(tokenizer: Any) -> Any:
    """Without padding and truncation; None for a slow tokenizer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    if backend.truncation is not None or backend.padding is not None:
        backend = copy.deepcopy(backend)
        backend.no_truncation()
        backend.no_padding()
    return backend


class _PlainTextEncoder:
    """Encodes text in which control-token literals are plain text. Thread-safe.

    A second fast tokenizer shares the vocabulary of the first without its control tokens. An anchor token stands for
    each real control token, so that the text around it, and the start of the text, is treated exactly as for added
    tokens (some tokenizers add a space before the first word).

    Invariant: the ids equal those of the tokenizer itself, if the literals in the text were not control tokens.
    """

    def __init__(self, backend: Any) -> None:
        from tokenizers import AddedToken, Tokenizer

        # Not a copy by `to_str` and `from_str`: that takes seconds and hundreds of megabytes for large vocabularies.
        plain = Tokenizer(backend.model)
        for part in ("normalizer", "pre_tokenizer"):
            if getattr(backend, part) is not None:
                setattr(plain, part, getattr(backend, part))
        added = sorted(backend.get_added_tokens_decoder().items())
        self._normalized = {token_id for token_id, token in added if token.normalized}
        blank = {token_id: token for token_id, token in added if is_blank(token.content)}
        plain.add_tokens(list(blank.values()))
        self._real_ids = {
            own: token_id for token_id, token in blank.items() if (own := plain.token_to_id(token.content)) != token_id
        }
        # Random in every process, so that no text can contain them.
        self._anchors = tuple("".join(chr(0xE000 + secrets.randbelow(0x1900)) for _ in range(12)) for _ in range(2))
        for anchor, normalized in zip(self._anchors, (False, True), strict=True):
            plain.add_tokens([AddedToken(anchor, special=False, normalized=normalized)])
        self._ids = tuple(plain.token_to_id(anchor) for anchor in self._anchors)
        self._plain = plain

    def __call__(self, pieces: list[str], tokens: list[int]) -> list[int]:
        """Encode the texts before, between and after the control tokens."""
        kinds = [token in self._normalized for token in tokens]
        text = pieces[0] + "".join(self._anchors[kind] + piece for kind, piece in zip(kinds, pieces[1:], strict=True))
        ids = _encoded(self._plain, text)
        places = [place for place, token_id in enumerate(ids) if token_id in self._ids]
        if [ids[place] for place in places] == [self._ids[kind] for kind in kinds]:
            ids = self._with_real_ids(ids)
            for place, token in zip(places, tokens, strict=True):
                ids[place] = token
            return ids
        # A normaliser changed the anchors: encode piece by piece.
        ids = self._piece(pieces[0])
        for token, piece in zip(tokens, pieces[1:], strict=True):
            ids += [token, *self._piece(piece)]
        return ids

    def _piece(self, text: str) -> list[int]:
        return self._with_real_ids(_encoded(self._plain, text)) if text else []

    def _with_real_ids(self, ids: list[int]) -> list[int]:
        return [self._real_ids.get(id, id) for id in ids] if self._real_ids else ids


def _encoded(backend: Any, text: str) -> list[int]:
    # A batch of one: only batch encoding releases the GIL, and leaves out the offsets, which take a fifth of the time.
    batch = getattr(backend, "encode_batch_fast", backend.encode_batch)
    ids: list[int] = batch([text], add_special_tokens=False)[0].ids
    return ids


_SHORTEST: Final = 64
"""In characters."""
_MOST_CHARACTERS: Final = 4_000_000
"""In characters, of all cached parts."""
_MOST_SEEN: Final = 100_000


class SectionCache:
    """The cached parts of one tokenizer's first prompts. Thread-safe."""

    def __init__(self, control: ControlTokens, encode: Callable[[str], list[int]], slow: int) -> None:
        """Above `slow` characters `encode` is called in a thread, not on an event loop."""
        self._control, self._encode, self._slow = control, encode, slow
        self._known: OrderedDict[str, array[int]] = OrderedDict()
        self._seen: set[int] = set()
        self._size = 0
        self._lock = threading.Lock()
        self._slow_locks = tuple(threading.Lock() for _ in range(16))

    def encode(self, text: str) -> array[int]:
        """Return the ids of a text."""
        ids = array("i")
        at = end = 0  # of the parts that are not encoded yet
        for section in self._sections(text):
            end += len(section)
            if not self._is_repeated(section):
                continue
            start = end - len(section)
            if start > at:
                ids.extend(self._encode(text[at:start]))
            ids.extend(self._ids(section))
            at = end
        if end > at:
            ids.extend(self._encode(text[at:end]))
        return ids

    def is_slow(self, text: str) -> bool:
        """Return whether encoding a text takes long enough to block an event loop noticeably."""
        return sum(len(section) for section in self._sections(text) if section not in self._known) > self._slow

    def _sections(self, text: str) -> Iterator[str]:
        """Each part is long enough to be cached, except the last."""
        at, cuttable = 0, self._control.cuttable
        for token, start, _ in self._control.find(text):
            if start - at >= _SHORTEST and token in cuttable:
                yield text[at:start]
                at = start
        yield text[at:]

    def _is_repeated(self, section: str) -> bool:
        if len(section) < _SHORTEST:
            return False
        if section in self._known or len(section) > self._slow:
            return True
        once = hash(section)
        if once in self._seen:
            return True
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen.add(once)
        return False

    def _ids(self, section: str) -> array[int]:
        known = self._known.get(section)
        if known is not None:
            return known
        if len(section) <= self._slow:
            return self._added(section)
        # In a thread. The episodes of a group ask for the same text at the same time: one of them encodes it.
        with self._slow_locks[hash(section) % len(self._slow_locks)]:
            return self._known.get(section) or self._added(section)

    def _added(self, section: str) -> array[int]:
        ids = array("i", self._encode(section))
        with self._lock:
            if section not in self._known and len(section) <= _MOST_CHARACTERS // 4:
                self._known[section] = ids
                self._size += len(section)
                while self._size > _MOST_CHARACTERS:
                    self._size -= len(self._known.popitem(last=False)[0])
        return ids
