"""Compares a branch with one rendering of its whole conversation.

The text that the template wrote between sampled turns must be in the rendering verbatim. A sampled turn may be spelled
differently there (spaces in JSON, order of keys, white space at its ends): this is the model's own spelling, and the
reason why a branch is never rendered again. Its content must be the same.

Invariant: if no difference is reported, the rendering equals the branch except for the spelling of sampled turns.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strands_sglang.chat.canonical import sdk_tool_name, without_blank_marker
from strands_sglang.chat.control_tokens import ControlTokens
from strands_sglang.chat.tokenization import Encoder
from strands_sglang.tool_parsers import ParsedTurn, ToolParser
from strands_sglang.tool_parsers.parsed import SampledText

_MAX_CANDIDATES = 16
_SHOWN = 400
_BEFORE, _AFTER = 24, 40


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """A sampled turn of a branch, and the prompt text before it."""

    prompt: str
    """Closing and context of its prompt, as the template wrote them."""
    text: SampledText
    end: str = ""
    """Literal of the end-of-turn token; empty if the turn did not end, or if the token is part of its text."""
    markers: tuple[int, ...] = ()
    whole: bool = True
    """Whether it ended by itself and all its calls are well-formed. If False, its content is not compared."""
    ended: bool = True


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where a rendering differs from the branch."""

    turn: int
    """Index of the turn whose prompt or content differs; the number of turns if the text after the last one does."""
    excerpt: str


def split_end_of_turn(control: ControlTokens, ids: array[int], parser: ToolParser) -> tuple[bool, array[int]]:
    """Return whether a turn ended with an end-of-turn token, and its ids without this token.

    Only a special token ends a turn, and not one that calls are made of: a turn that was truncated or stopped after a
    call ends with the call's closing marker. Some tokens end a turn and a call at once; these are kept.
    """
    last = control.texts.get(ids[-1]) if len(ids) and ids[-1] in control.special else None
    if last in parser.endings:
        return True, ids
    ended = last is not None and last not in parser.markers
    return ended, ids[:-1] if ended else ids


def sampled_turn(encoder: Encoder, parser: ToolParser, prompt: str, ids: array[int]) -> SampledTurn:
    """Return a sampled turn as text. The caller sets `whole`."""
    ended, content = split_end_of_turn(encoder.control, ids, parser)
    end = encoder.control.texts[ids[-1]] if len(content) < len(ids) else ""
    places = encoder.control.places(ids)
    markers = tuple([ids[place] for place in places])
    if len(content) < len(ids):
        places.pop()  # the end-of-turn token, which is not part of the content
    return SampledTurn(prompt, encoder.sampled(content, places), end, markers, ended=ended)


class Comparison:
    """Compares branches with renderings, for one tokenizer and one parser."""

    def __init__(self, encoder: Encoder, parser: ToolParser, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self._encoder = encoder
        self._parser = parser
        self._schemas = schemas

    def difference(self, turns: Sequence[SampledTurn], following: str, whole: str) -> Difference | None:
        """Return the first difference between a rendering and a branch; None if there is none."""
        at = 0
        for number, turn in enumerate(turns):
            if not whole.startswith(turn.prompt, at):
                return Difference(number, first_difference(turn.prompt, whole[at : at + len(turn.prompt) + _SHOWN]))
            at += len(turn.prompt)
            after = turns[number + 1].prompt if number + 1 < len(turns) else following
            last = number + 1 == len(turns)
            end = self._end(turn, after, whole, at, last)
            if end is None:
                return Difference(number + 1, first_difference(turn.text + turn.end + after, whole[at:]))
            at = end
        if whole[at:] != following:
            return Difference(len(turns), first_difference(following, whole[at:]))
        return None

    def _end(self, turn: SampledTurn, after: str, whole: str, at: int, last: bool) -> int | None:
        end = at + len(turn.text) + len(turn.end)
        if whole.startswith(turn.text + turn.end, at) and whole.startswith(after, end):
            return end
        found = len(whole) - len(after) if last else whole.find(after, at)
        for _ in range(_MAX_CANDIDATES):
            if found < at or not whole.startswith(after, found):
                return None
            if self._same_content(turn, whole[at:found]):
                return found
            if last:
                return None
            found = whole.find(after, found + 1)
        return None

    def _same_content(self, turn: SampledTurn, text: str) -> bool:
        if not turn.whole or text.strip() == (turn.text + turn.end).strip():
            return True
        control = self._encoder.control
        rendered = self._encoder.encode(text)
        if Counter(token for token in rendered if token in control) - Counter(turn.markers):
            return False  # control tokens that were not sampled
        opened = turn.prompt.rstrip().endswith(self._parser.reasoning_markers[0])
        one, other = (
            self._parser.parse(words, reasoning_open=opened, schemas=self._schemas)
            for words in (self._encoder.sampled(split_end_of_turn(control, rendered, self._parser)[1]), turn.text)
        )
        if other.failures:
            return True
        return _content(one) == _content(other) if not one.failures else _text(one) == _text(other)


def _text(turn: ParsedTurn) -> tuple[str, str]:
    return "".join((turn.reasoning or "").split()), "".join(without_blank_marker(turn.text).split())


def _content(turn: ParsedTurn) -> tuple[Any, ...]:
    return *_text(turn), [(sdk_tool_name(call.name), call.arguments) for call in turn.calls]


def first_difference(expected: str, found: str, *, tokens: bool = False) -> str:
    """Return a short excerpt of where two texts first differ: `common ⟦expected⟧→⟦found⟧`."""
    at = next(
        (number for number, (left, right) in enumerate(zip(expected, found, strict=False)) if left != right),
        min(len(expected), len(found)),
    )
    if tokens and expected == found:
        return "equal text, different tokens: characters on both sides of the boundary form one token"
    common = expected[max(0, at - _BEFORE) : at]
    return f"{common}⟦{expected[at : at + _AFTER]}⟧→⟦{found[at : at + _AFTER]}⟧".replace("\n", "⏎")
