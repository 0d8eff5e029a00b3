"""Control-token text taken out of data, and put back as plain text.

Invariant: after `escape`, data holds no literal of a control token, no stand-in and no mark that is not ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from strands_sglang.chat.control import FIRST, LAST, STAND_INS, ControlTokens
from strands_sglang.errors import UnsupportedContentError

# The words that messages and schemas are made of are no data: templates look things up by them.
_WORDS = frozenset(
    "type function name description parameters properties required items enum default return title format const "
    "anyOf oneOf allOf additionalProperties object array string number integer boolean null "
    "role content tool_calls tool_call_id id arguments reasoning_content reasoning thinking".split()
)


class Escapes:
    """What was taken out of the data of one rendering, and comes back as plain text."""

    __slots__ = ("_control", "_stand_ins", "_texts")

    def __init__(self, control: ControlTokens) -> None:
        self._control = control
        self._texts: dict[str, str] = {}
        self._stand_ins: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._texts)

    def escape(
        self, value: Any, *, trusted: bool = False, composed: frozenset[str] = frozenset(), blind: bool = False
    ) -> Any:
        """Return a value (text, list, dict) whose texts hold no control token; itself when none had any.

        Args:
            value: Plain JSON data.
            trusted: Whether the developer wrote it (a system prompt): markers such as `<tool_call>` may stand there,
                special tokens such as `<|im_start|>` may not.
            composed: Literals that the template puts together from pieces: of those, data gets no part either. The
                role of a message stays as it is, since that is what templates make them of.
            blind: Whether data gets not even their letters: then it has no part in them, whatever a template does.
        """
        pattern = self._control.special_guarded if trusted else self._control.all_guarded
        return self._walk(value, pattern, _Parts(composed, blind) if composed else None)

    def single(self, character: str) -> str:
        """Return the character that stands for one of the data."""
        return self._stand_in(character)

    def _walk(self, value: Any, pattern: re.Pattern[str], parts: _Parts | None) -> Any:
        if isinstance(value, str):
            if self._control.is_odd(value):
                value = pattern.sub(lambda match: self._stand_in(match[0]), value)
            return value if parts is None else parts.sub(value, self._stand_in)
        if isinstance(value, dict):
            walked = {}
            for key, item in value.items():
                is_role = parts is not None and key == "role" and "content" in value
                walked[self._walk(key, pattern, parts)] = item if is_role else self._walk(item, pattern, parts)
            return walked
        if isinstance(value, (list, tuple)):
            return [self._walk(item, pattern, parts) for item in value]
        return value

    def _stand_in(self, found: str) -> str:
        # Half a surrogate pair (an undecodable file name, say) has no encoding at all.
        text = "\ufffd" if len(found) == 1 and "\ud800" <= found <= "\udfff" else found
        if text not in self._stand_ins:
            if len(self._texts) > LAST - FIRST:
                raise UnsupportedContentError(
                    "the conversation holds more kinds of private-use characters (planes 15 and 16) and "
                    "control-token text than can be kept apart from what the chat template writes; take the "
                    "private-use characters out",
                    kind="text",
                )
            stand_in = chr(FIRST + len(self._texts))
            self._texts[stand_in], self._stand_ins[text] = text, stand_in
        return self._stand_ins[text]

    def restore(self, text: str) -> str:
        """Return a text with everything put back."""
        return STAND_INS.sub(lambda match: self._texts.get(match[0], match[0]), text) if self._texts else text

    def present(self, text: str) -> bool:
        """Return whether a rendered text holds anything that was taken out."""
        return bool(self._texts) and STAND_INS.search(text) is not None


class _Parts:
    """Whatever of a text may become a part of some literals, if a template puts the right words around it."""

    def __init__(self, literals: frozenset[str], blind: bool) -> None:
        self._literals = literals
        signs = {sign for literal in literals for sign in (literal.replace(" ", "") if blind else _signs(literal))}
        self._signs = re.compile("|".join(map(re.escape, sorted(signs))))

    def sub(self, text: str, stand_in: Callable[[str], str]) -> str:
        """Return a text without those parts."""
        if text in _WORDS:
            return text
        if text and any(text in literal for literal in self._literals):
            return stand_in(text)
        return self._signs.sub(lambda match: stand_in(match[0]), text)


def _signs(literal: str) -> set[str]:
    """Return the characters without which there is no such literal: its brackets and bars, or all if it has none."""
    signs = {character for character in literal if not (character.isalnum() or character in "_ \t\n\r")}
    return signs or set(literal)
