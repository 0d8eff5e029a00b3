"""Control tokens, and escaping their text in data: chat templates may write control tokens, data may not.

A control token is any added token of the tokenizer that is not white space. Two ranges of private-use characters keep
template and data apart:

- Before rendering, `Escapes` replaces control-token text in user messages, tool results and tool descriptions by a
  *placeholder* (plane 15), one for each distinct text. It is restored as plain text when the rendered text is encoded.
- A *mark* (plane 16) stands for a control token that the template itself writes, one for each control token of the
  tokenizer. `_guarded_template` uses marks to tell the template's control tokens from data.

Invariant: a mark in a text stands for one control token. After `Escapes.escape`, data contains no placeholder or mark
other than ours, and no control-token text unless that is its `DataForm`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from strands_sglang.errors import ConfigurationError, UnsupportedContentError

# Private-use plane 15: placeholders for text that was removed from data.
_FIRST_PLACEHOLDER, _LAST_PLACEHOLDER = 0xF0000, 0xFFFFD
_PLACEHOLDERS = re.compile(f"[{chr(_FIRST_PLACEHOLDER)}-{chr(_LAST_PLACEHOLDER)}]")
# Private-use plane 16: one mark for each control token of a tokenizer.
_FIRST_MARK, _LAST_MARK = 0x100000, 0x10FFFD
_MARKS = re.compile(f"[{chr(_FIRST_MARK)}-{chr(_LAST_MARK)}]")
# Characters that data must not contain: both of these ranges, and lone surrogates, which have no encoding.
_RESERVED = re.compile(
    f"[{chr(_FIRST_PLACEHOLDER)}-{chr(_LAST_PLACEHOLDER)}{chr(_FIRST_MARK)}-{chr(_LAST_MARK)}\ud800-\udfff]"
)
_SURROGATES = re.compile("[\ud800-\udfff]")
# White space as tokenizers define it. Python's own definition includes U+001C to U+001F, too.
_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
# Keys and type names of messages and schemas: templates look values up by them, so they are not escaped in part.
_SCHEMA_WORDS = frozenset(
    "type function name description parameters properties required items enum default return title format const "
    "anyOf oneOf allOf additionalProperties object array string number integer boolean null "
    "role content tool_calls tool_call_id id arguments reasoning_content reasoning thinking".split()
)


class Occurrence(NamedTuple):
    """An occurrence of a control token's literal in a text."""

    id: int
    start: int
    end: int


class ControlTokens:
    """The control tokens of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        added = {token_id: token for token_id, token in added_tokens(tokenizer).items() if not is_blank(token.content)}
        self.ids: dict[str, int] = {token.content: token_id for token_id, token in added.items()}
        self.texts: dict[int, str] = {token_id: token.content for token_id, token in added.items()}
        self.normalized = any(token.normalized for token in added.values())
        """Whether some are matched in normalised text, so that other spellings can become a control token."""
        self.lstrip = frozenset(token_id for token_id, token in added.items() if token.lstrip)
        self.rstrip = frozenset(token_id for token_id, token in added.items() if token.rstrip)
        self.cuttable = frozenset(
            token_id for token_id, token in added.items() if not token.lstrip and not token.single_word
        )
        """Ids of tokens that take nothing of the text before them into account."""
        self.special = frozenset(token_id for token_id, token in added.items() if token.special)
        """Such a token at the end of a turn is not part of its text."""
        self._plain_in_json = all(literal.encode() in orjson.dumps(literal) for literal in self.ids)
        """Whether the literals are the same in JSON: none has a quotation mark, a backslash or a line break."""
        self._any = re.compile(_longest_first(self.ids)) if self.ids else None
        self.all_guarded = _guard(self.ids)
        self._table: npt.NDArray[np.bool_] = np.zeros(max(self.texts, default=-1) + 1, dtype=np.bool_)
        self._table[list(self.texts)] = True
        self._by_mark = dict(zip(map(chr, range(_FIRST_MARK, _LAST_MARK + 1)), self.ids, strict=False))
        self._marks = {literal: mark for mark, literal in self._by_mark.items()}

    def find(self, text: str, start: int = 0) -> Iterator[Occurrence]:
        """Yield every control-token literal in a text, leftmost and longest first."""
        if self._any is not None:
            for match in self._any.finditer(text, start):
                yield Occurrence(self.ids[match[0]], match.start(), match.end())

    def needs_escape(self, text: str) -> bool:
        """Return whether a text contains anything that is escaped in data. Fast, since most texts do not."""
        # Two searches: one combined pattern would try every alternative at every character.
        if not text.isascii() and _may_be_reserved(text) and _RESERVED.search(text):
            return True
        return self._any is not None and self._any.search(text) is not None

    def are_clean(self, value: Any) -> bool:
        """Return whether no string in a value needs an escape; False if that is not certain."""
        if not self._plain_in_json:
            return False
        try:
            return not self.needs_escape(orjson.dumps(value).decode())  # one search is much faster than a walk
        except TypeError:  # a value or a key that JSON does not have, or a lone surrogate
            return False

    def marked(self, text: str) -> str:
        """Return the text with each control-token literal replaced by its mark."""
        return self._any.sub(lambda match: self._marks.get(match[0], match[0]), text) if self._any else text

    def unmarked(self, text: str) -> tuple[str, list[Occurrence]]:
        """Return the text with each mark replaced by its literal, and where these literals are."""
        pieces: list[str] = []
        spans: list[Occurrence] = []
        at = size = 0
        for match in _MARKS.finditer(text):
            if (literal := self._by_mark.get(match[0])) is None:
                continue
            start = size + match.start() - at
            size = start + len(literal)
            pieces += (text[at : match.start()], literal)
            spans.append(Occurrence(self.ids[literal], start, size))
            at = match.end()
        pieces.append(text[at:])
        return "".join(pieces), spans

    def stripped(self, text: str, before: int | None = None, after: int | None = None) -> str:
        """Return the text between two control tokens without the white space that they absorb."""
        text = text.lstrip(_SPACES) if before in self.rstrip else text
        return text.rstrip(_SPACES) if after in self.lstrip else text

    def mark_of(self, token_id: int) -> str:
        """Return the mark of a control token."""
        return self._marks[self.texts[token_id]]

    def among(self, ids: Any) -> list[int]:
        """Return the ids that are control tokens, in order."""
        known = np.asarray(ids, dtype=np.int64)
        known = known[known < len(self._table)]
        return [int(token_id) for token_id in known[self._table[known]]]

    def places(self, ids: Sequence[int]) -> list[int]:
        """Return at which indexes of the ids there are control tokens, in order."""
        texts = self.texts
        return [place for place, token_id in enumerate(ids) if token_id in texts]

    def count(self, ids: Any) -> int:
        """Return how many of the ids are control tokens."""
        return len(self.among(ids))

    def ended_by(self, ids: Sequence[int]) -> int | None:
        """Return the last id if it is a control token: what the bridge must know of a turn that it continues."""
        return ids[-1] if len(ids) and ids[-1] in self else None

    def __contains__(self, token_id: object) -> bool:
        return token_id in self.texts


def added_tokens(tokenizer: Any) -> Mapping[int, Any]:
    """Return the added tokens of a tokenizer by id."""
    added: Mapping[int, Any] | None = getattr(tokenizer, "added_tokens_decoder", None)
    if added is None:
        raise ConfigurationError(
            f"tokenizer must be a transformers tokenizer, got {type(tokenizer).__name__} ({tokenizer!r:.100}); "
            "load it with AutoTokenizer.from_pretrained(...)"
        )
    return added


def _may_be_reserved(text: str) -> bool:
    """A quick test, much faster than searching reserved characters."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return True  # a lone surrogate
    return b"\xf3" in encoded or b"\xf4" in encoded  # the first bytes of planes 12 to 16


def is_blank(literal: str) -> bool:
    """Return whether an added token is white space (`▁` is a space in some vocabularies), not a control token."""
    return not literal.replace("▁", "").strip()


def _guard(literals: Any) -> re.Pattern[str]:
    return re.compile(f"{_longest_first(literals)}|{_RESERVED.pattern}" if literals else _RESERVED.pattern)


def _longest_first(literals: Any) -> str:
    """A trie: its cost does not grow with the number of literals."""
    root: dict[str, Any] = {}
    for literal in literals:
        node = root
        for character in literal:
            node = node.setdefault(character, {})
        node[""] = {}
    return _pattern(root)


def _pattern(node: dict[str, Any]) -> str:
    # A chain of single children becomes one prefix, so that the recursion is only as deep as the trie has forks.
    prefix = ""
    while len(node) == 1 and "" not in node:
        ((character, node),) = node.items()
        prefix += re.escape(character)
    branches = [re.escape(character) + _pattern(child) for character, child in node.items() if character]
    if not branches:
        return prefix
    inner = "|".join(branches)
    return f"{prefix}(?:{inner}){'?' if '' in node else ''}"


def without_surrogates(text: str) -> str:
    """Return a text in which lone surrogates, from an undecodable file name for example, are replaced by U+FFFD."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


class DataForm(Enum):
    """How control-token text in data is passed to a template."""

    PLACEHOLDERS = "placeholders"
    SEARCHED = "searched"
    """As placeholders, which the template then also has where it searches for control-token text."""
    VERBATIM = "verbatim"
    """Unchanged, for a template that escapes, cuts or counts its characters. Markers in a system prompt are marks."""
    ALL_VERBATIM = "all verbatim"
    """The same, including markers in a system prompt."""


class Escapes:
    """The text that was removed from the data of one rendering, by placeholder."""

    __slots__ = ("_control", "_form", "_placeholders", "_texts", "replaced")

    def __init__(self, control: ControlTokens, form: DataForm = DataForm.PLACEHOLDERS) -> None:
        self._control, self._form = control, form
        self.replaced = False
        """Whether any text in the data was replaced, or left although it is control-token text."""
        self._texts: dict[str, str] = {}
        self._placeholders: dict[str, str] = {}

    def escape(
        self, value: Any, *, trusted: bool = False, composed: frozenset[str] = frozenset(), blind: bool = False
    ) -> Any:
        """Return a value (text, list, dict) with control-token text in its strings replaced by placeholders.

        Args:
            trusted: Whether the developer wrote it (a system prompt). Markers such as `<tool_call>` become marks then;
                special tokens such as `<|im_start|>` do not.
            composed: Literals that the template concatenates from parts. Data must not supply such a part either, so
                parts of them are replaced, too. The role of a message is kept: templates build literals from it.
            blind: Whether every character of those literals is replaced, so that data cannot contribute to them
                whatever the template does.
        """
        if not composed and self._control.are_clean(value):
            return value
        return self._walk(value, trusted, _LiteralParts(composed, blind) if composed else None)

    def placeholder(self, text: str) -> str:
        """Return the placeholder of a text that is removed from data."""
        self.replaced = True
        text = without_surrogates(text)
        if text not in self._placeholders:
            if len(self._texts) > _LAST_PLACEHOLDER - _FIRST_PLACEHOLDER:
                raise UnsupportedContentError(
                    "the conversation has too many distinct private-use characters (planes 15 and 16) and "
                    "control-token texts to escape them; remove the private-use characters",
                    kind="text",
                )
            placeholder = chr(_FIRST_PLACEHOLDER + len(self._texts))
            self._texts[placeholder], self._placeholders[text] = text, placeholder
        return self._placeholders[text]

    def _written(self, text: str, trusted: bool) -> str:
        self.replaced = True
        token_id, verbatim = self._control.ids.get(text), self._form in (DataForm.VERBATIM, DataForm.ALL_VERBATIM)
        if token_id is None:
            return text if verbatim and _SURROGATES.match(text) else self.placeholder(text)
        if trusted and token_id not in self._control.special and self._form is not DataForm.ALL_VERBATIM:
            return self._control.marked(text)
        return text if verbatim else self.placeholder(text)

    def _walk(self, value: Any, trusted: bool, parts: _LiteralParts | None) -> Any:
        if isinstance(value, str):
            if self._control.needs_escape(value):
                value = self._control.all_guarded.sub(lambda match: self._written(match[0], trusted), value)
            return value if parts is None else parts.sub(value, self.placeholder)
        if isinstance(value, dict):
            walked = {}
            for key, item in value.items():
                is_role = parts is not None and key == "role" and "content" in value
                walked[self._walk(key, trusted, parts)] = item if is_role else self._walk(item, trusted, parts)
            return walked
        if isinstance(value, (list, tuple)):
            return [self._walk(item, trusted, parts) for item in value]
        return value

    def restore(self, text: str) -> str:
        """Return the text with every placeholder replaced by what it stands for."""
        return _PLACEHOLDERS.sub(lambda match: self._texts.get(match[0], match[0]), text) if self._texts else text

    def present(self, text: str) -> bool:
        """Return whether a rendered text contains a placeholder."""
        return bool(self._texts) and _PLACEHOLDERS.search(text) is not None


class _LiteralParts:
    def __init__(self, literals: frozenset[str], blind: bool) -> None:
        self._literals = literals
        signs = {sign for literal in literals for sign in (literal.replace(" ", "") if blind else _signs(literal))}
        self._signs = re.compile("|".join(map(re.escape, sorted(signs))))

    def sub(self, text: str, placeholder: Callable[[str], str]) -> str:
        if text in _SCHEMA_WORDS:
            return text
        if text and any(text in literal for literal in self._literals):
            return placeholder(text)
        return self._signs.sub(lambda match: placeholder(match[0]), text)


def _signs(literal: str) -> set[str]:
    signs = {character for character in literal if not (character.isalnum() or character in "_ \t\n\r")}
    return signs or set(literal)
