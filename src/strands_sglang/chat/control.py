"""Control tokens: what a chat template may write and data may not.

A control token is any added token of the tokenizer that is more than white space: role headers, end-of-turn tokens,
tool and reasoning markers, fill-in-the-middle markers. Their literal text inside user messages, tool results or tool
descriptions is replaced before the template is rendered by private-use characters, one for each kind of occurrence,
and comes back as plain text when the rendered text is encoded. Other private-use characters, the marks, stand for the
control tokens that a template writes; `written` tells by them which literals of a rendered text are its own.

Invariant: a mark in a text stands for one control token, and no data has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from strands_sglang.errors import ConfigurationError

# Private use plane 15: no text has a meaning there, so one of its characters can stand for an occurrence.
FIRST, LAST = 0xF0000, 0xFFFFD
STAND_INS = re.compile(f"[{chr(FIRST)}-{chr(LAST)}]")
# And plane 16: one character for each control token of a tokenizer.
_FIRST_MARK, _LAST_MARK = 0x100000, 0x10FFFD
_MARKS = re.compile(f"[{chr(_FIRST_MARK)}-{chr(_LAST_MARK)}]")
# What data may not hold of either, and half surrogate pairs, which have no encoding.
_TAKEN = re.compile(f"[{chr(FIRST)}-{chr(LAST)}{chr(_FIRST_MARK)}-{chr(_LAST_MARK)}\ud800-\udfff]")
# What tokenizers take for white space; Python would take U+001C to U+001F, too.
_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


class Occurrence(NamedTuple):
    """A control token's literal in a text."""

    id: int
    """Its token id."""
    start: int
    """Offset of its first character."""
    end: int
    """Offset after its last character."""


class ControlTokens:
    """The control tokens of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        added = {token_id: token for token_id, token in added_tokens(tokenizer).items() if not is_blank(token.content)}
        self.ids: dict[str, int] = {token.content: token_id for token_id, token in added.items()}
        """Token id of each literal."""
        self.texts: dict[int, str] = {token_id: token.content for token_id, token in added.items()}
        """Literal of each token id."""
        self.normalized = any(token.normalized for token in added.values())
        """Whether some are matched in the normalised text, so that other spellings might become one."""
        self.lstrip = frozenset(token_id for token_id, token in added.items() if token.lstrip)
        """Those that swallow white space before them."""
        self.rstrip = frozenset(token_id for token_id, token in added.items() if token.rstrip)
        """Those that swallow white space after them."""
        self.special = frozenset(token_id for token_id, token in added.items() if token.special)
        """Those that the tokenizer calls special: one that a turn ends with is none of its words."""
        self._any = re.compile(_longest_first(self.ids)) if self.ids else None
        self.all_guarded = _guard(self.ids)
        """Finds what is taken out of data."""
        self.special_guarded = _guard([self.texts[token_id] for token_id in self.special])
        """Finds what is taken out of what a developer wrote."""
        self._table: npt.NDArray[np.bool_] = np.zeros(max(self.texts, default=-1) + 1, dtype=np.bool_)
        self._table[list(self.texts)] = True
        self._by_mark = dict(zip(map(chr, range(_FIRST_MARK, _LAST_MARK + 1)), self.ids, strict=False))
        self._marks = {literal: mark for mark, literal in self._by_mark.items()}

    def find(self, text: str, start: int = 0) -> Iterator[Occurrence]:
        """Yield every literal in a text, leftmost and longest first."""
        if self._any is not None:
            for match in self._any.finditer(text, start):
                yield Occurrence(self.ids[match[0]], match.start(), match.end())

    def is_odd(self, text: str) -> bool:
        """Return whether a text holds anything that is taken out of data. Fast: most texts do not."""
        # Two searches, because one for both would try every alternative at every character.
        if not text.isascii() and _TAKEN.search(text):
            return True
        return self._any is not None and self._any.search(text) is not None

    def marked(self, text: str) -> str:
        """Return a text with a mark for each literal in it."""
        return self._any.sub(lambda match: self._marks.get(match[0], match[0]), text) if self._any else text

    def unmarked(self, text: str) -> tuple[str, list[Occurrence]]:
        """Return a text with the literal of each mark in it, and where those stand now."""
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

    def stripped(self, text: str, before: int | None = None, behind: int | None = None) -> str:
        """Return a text without the white space that the control tokens next to it swallow.

        Args:
            text: What stands between two control tokens.
            before: The control token before it; None when there is none.
            behind: The control token behind it; None when there is none.
        """
        text = text.lstrip(_SPACES) if before in self.rstrip else text
        return text.rstrip(_SPACES) if behind in self.lstrip else text

    def mark_of(self, token_id: int) -> str:
        """Return the mark of a control token."""
        return self._marks[self.texts[token_id]]

    def among(self, ids: Any) -> list[int]:
        """Return those of the ids that are control tokens, in order."""
        known = np.asarray(ids, dtype=np.int64)
        known = known[known < len(self._table)]
        return [int(token_id) for token_id in known[self._table[known]]]

    def count(self, ids: Any) -> int:
        """Return how many of the ids are control tokens."""
        known = np.asarray(ids, dtype=np.int64)
        known = known[known < len(self._table)]
        return int(self._table[known].sum())

    def __contains__(self, token_id: object) -> bool:
        return token_id in self.texts


def added_tokens(tokenizer: Any) -> Mapping[int, Any]:
    """Return a tokenizer's added tokens by id.

    Raises:
        ConfigurationError: It is no tokenizer of transformers.
    """
    added: Mapping[int, Any] | None = getattr(tokenizer, "added_tokens_decoder", None)
    if added is None:
        raise ConfigurationError(
            f"tokenizer must be a transformers tokenizer, not {type(tokenizer).__name__} ({tokenizer!r:.100}): "
            "AutoTokenizer.from_pretrained(...)"
        )
    return added


def is_blank(literal: str) -> bool:
    """Return whether an added token is white space (some vocabularies write a space as `▁`), not a control token."""
    return not literal.replace("▁", "").strip()


def _guard(literals: Any) -> re.Pattern[str]:
    """Return the pattern of what is taken out of data: literals, characters that we use, half surrogate pairs."""
    return re.compile(f"{_longest_first(literals)}|{_TAKEN.pattern}" if literals else _TAKEN.pattern)


def _longest_first(literals: Any) -> str:
    """Return a regular expression for any of the literals, as a trie: thousands of them cost no more than a few."""
    root: dict[str, Any] = {}
    for literal in literals:
        node = root
        for character in literal:
            node = node.setdefault(character, {})
        node[""] = {}
    return _pattern(root)


def _pattern(node: dict[str, Any]) -> str:
    # A chain of single children is written in one piece, so the recursion is as deep as the trie has forks.
    prefix = ""
    while len(node) == 1 and "" not in node:
        ((character, node),) = node.items()
        prefix += re.escape(character)
    branches = [re.escape(character) + _pattern(child) for character, child in node.items() if character]
    if not branches:
        return prefix
    inner = "|".join(branches)
    return f"{prefix}(?:{inner}){'?' if '' in node else ''}"
