"""Control tokens: what a chat template may write and data may not.

A control token is any added token of the tokenizer that is more than white space: role headers, end-of-turn tokens,
tool and reasoning markers, fill-in-the-middle markers. Their literal text inside user messages, tool results or tool
descriptions is replaced before the template is rendered by private-use characters, one for each kind of occurrence,
and comes back as plain text when the rendered text is encoded.

Invariant: after `escape`, every literal of a control token in a rendered text was written by the template.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from strands_sglang.errors import ConfigurationError, UnsupportedContentError

# Private use plane 15: no text has a meaning there, so one of its characters can stand for an occurrence.
_FIRST, _LAST = 0xF0000, 0xFFFFD
_STAND_INS = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")
_SURROGATES = "[\ud800-\udfff]"
# What tokenizers take for white space; Python would take U+001C to U+001F, too.
_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
# The words a schema is made of are no data: templates look tools up by them, and write them where they mean to.
_SCHEMA_WORDS = frozenset(
    "type function name description parameters properties required items enum default return title format const "
    "anyOf oneOf allOf additionalProperties object array string number integer boolean null".split()
)


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
        self.cores = frozenset(core for literal in self.ids for core in _cores(literal)) - _SCHEMA_WORDS
        """Literals without some of their brackets: a template that puts brackets around such a text writes a token."""
        self._any = re.compile(_longest_first(self.ids)) if self.ids else None
        self._all_guarded = _guard(self.ids)
        self._special_guarded = _guard([self.texts[token_id] for token_id in self.special])
        self._table: npt.NDArray[np.bool_] = np.zeros(max(self.texts, default=-1) + 1, dtype=np.bool_)
        self._table[list(self.texts)] = True

    def find(self, text: str, start: int = 0) -> Iterator[Occurrence]:
        """Yield every literal in a text, leftmost and longest first."""
        if self._any is not None:
            for match in self._any.finditer(text, start):
                yield Occurrence(self.ids[match[0]], match.start(), match.end())

    def stripped(self, text: str, before: int | None = None, behind: int | None = None) -> str:
        """Return a text without the white space that the control tokens next to it swallow.

        Args:
            text: What stands between two control tokens.
            before: The control token before it; None when there is none.
            behind: The control token behind it; None when there is none.
        """
        text = text.lstrip(_SPACES) if before in self.rstrip else text
        return text.rstrip(_SPACES) if behind in self.lstrip else text

    def count(self, ids: Any) -> int:
        """Return how many of the ids are control tokens."""
        known = np.asarray(ids, dtype=np.int64)
        known = known[known < len(self._table)]
        return int(self._table[known].sum())

    def __contains__(self, token_id: object) -> bool:
        return token_id in self.texts


class Escapes:
    """What was taken out of the data of one rendering, and comes back as plain text."""

    __slots__ = ("_control", "_stand_ins", "_texts")

    def __init__(self, control: ControlTokens) -> None:
        self._control = control
        self._texts: dict[str, str] = {}
        self._stand_ins: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._texts)

    def escape(self, value: Any, *, trusted: bool = False, bracketed: bool = False) -> Any:
        """Return a value (text, list, dict) whose texts hold no control token; itself when none had any.

        Args:
            value: Plain JSON data.
            trusted: Whether the developer wrote it (a system prompt): markers such as `<tool_call>` may stand there,
                special tokens such as `<|im_start|>` may not.
            bracketed: Whether templates may put brackets around its texts, as some do with the keys of a schema.
        """
        pattern = self._control._special_guarded if trusted else self._control._all_guarded
        return self._walk(value, pattern, self._control.cores if bracketed else frozenset())

    def _walk(self, value: Any, pattern: re.Pattern[str], cores: frozenset[str]) -> Any:
        if isinstance(value, str):
            if value in cores:
                return self._stand_in(value)
            return pattern.sub(lambda match: self._stand_in(match[0]), value) if pattern.search(value) else value
        if isinstance(value, dict):
            return {self._walk(key, pattern, cores): self._walk(item, pattern, cores) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._walk(item, pattern, cores) for item in value]
        return value

    def _stand_in(self, found: str) -> str:
        # Half a surrogate pair (an undecodable file name, say) has no encoding at all.
        text = "\ufffd" if len(found) == 1 and "\ud800" <= found <= "\udfff" else found
        if text not in self._stand_ins:
            if len(self._texts) > _LAST - _FIRST:
                raise UnsupportedContentError(
                    "the conversation holds more kinds of private-use characters (plane 15) and control-token text "
                    "than can be kept apart from what the chat template writes; take the private-use characters out",
                    kind="text",
                )
            stand_in = chr(_FIRST + len(self._texts))
            self._texts[stand_in], self._stand_ins[text] = text, stand_in
        return self._stand_ins[text]

    def restore(self, text: str) -> str:
        """Return a text with everything put back."""
        return _STAND_INS.sub(lambda match: self._texts.get(match[0], match[0]), text) if self._texts else text

    def present(self, text: str) -> bool:
        """Return whether a rendered text holds anything that was taken out."""
        return bool(self._texts) and _STAND_INS.search(text) is not None


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


def _cores(literal: str) -> Iterator[str]:
    """Yield a literal without some of the brackets and other signs at its ends."""
    ends = len(literal) - len(literal.rstrip("".join(c for c in literal if not c.isalnum())))
    starts = len(literal) - len(literal.lstrip("".join(c for c in literal if not c.isalnum())))
    for start in range(starts + 1):
        for end in range(ends + 1):
            core = literal[start : len(literal) - end]
            if core != literal and any(character.isalnum() for character in core):
                yield core


def _guard(literals: Any) -> re.Pattern[str]:
    """Return the pattern of what is taken out of data: literals, stand-ins' own characters, half surrogate pairs."""
    stand_ins = f"{_STAND_INS.pattern}|{_SURROGATES}"
    return re.compile(f"{_longest_first(literals)}|{stand_ins}" if literals else stand_ins)


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
