"""A branch held against one rendering of its whole conversation.

What the template wrote between the sampled turns must stand in the rendering word for word. A sampled turn may be
spelled otherwise there (the spaces of its JSON, the order of keys, white space at its ends): that is the model's own
spelling, and the reason why a branch is never rendered again. What it says must be the same.

Invariant: no difference means that the rendering is the branch, but for the spelling of sampled turns.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strands_sglang.chat.canonical import shown_name, shown_text
from strands_sglang.chat.control import ControlTokens
from strands_sglang.chat.encoder import Encoder
from strands_sglang.chat.witness import witness
from strands_sglang.tool_parsers import ParsedTurn, ToolParser
from strands_sglang.tool_parsers.sampled import SampledText

_TRIES = 16
_SHOWN = 400


@dataclass(frozen=True, slots=True)
class Said:
    """A sampled turn of a branch, and what the template wrote in front of it."""

    written: str
    """Closing and context of its prompt, as the template wrote them."""
    text: SampledText
    """What was sampled, but for the token that ended it."""
    end: str = ""
    """That token's literal; empty when the turn did not end, or its ending is one of its words."""
    markers: tuple[int, ...] = ()
    """The control tokens among what was sampled."""
    whole: bool = True
    """Whether it ended by itself and all its calls are good. Of another one, only its place is looked at."""
    ended: bool = True
    """Whether its last token ended it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a rendering is not the branch."""

    turn: int
    """Index of the turn: its prompt or what it says is other; as many as there are turns: what stands behind them."""
    witness: str
    """What stands in the branch there, and what the template writes now."""


def words(control: ControlTokens, ids: array[int], parser: ToolParser) -> tuple[bool, array[int]]:
    """Return whether a turn ended with an end-of-turn token, and its words: all but that token.

    Only a special token ends a turn, and none that a call is made of: one cut, or stopped, behind a call ends with the
    call's closing marker. Some end a turn and a call at once, and are one of its words, too.
    """
    last = control.texts.get(ids[-1]) if len(ids) and ids[-1] in control.special else None
    if last in parser.endings:
        return True, ids
    ended = last is not None and last not in parser.markers
    return ended, ids[:-1] if ended else ids


def said_of(encoder: Encoder, parser: ToolParser, written: str, ids: array[int]) -> Said:
    """Return a sampled turn as text; whether it is whole is for the caller to say.

    Args:
        encoder: Of the tokenizer that sampled it.
        parser: Knows how turns end.
        written: What the template wrote in front of it.
        ids: What was sampled.
    """
    ended, spoken = words(encoder.control, ids, parser)
    end = encoder.control.texts[ids[-1]] if len(spoken) < len(ids) else ""
    markers = tuple(token for token in ids if token in encoder.control)
    return Said(written, encoder.sampled(spoken), end, markers, ended=ended)


class Comparison:
    """Compares branches with renderings, for one tokenizer and one parser."""

    def __init__(self, encoder: Encoder, parser: ToolParser, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self._encoder = encoder
        self._parser = parser
        self._schemas = schemas

    def difference(self, turns: Sequence[Said], behind: str, whole: str) -> Difference | None:
        """Return where a rendering differs from a branch; None when it does not.

        Args:
            turns: The branch.
            behind: What the template wrote behind its last turn.
            whole: One rendering of the conversation, up to there.
        """
        at = 0
        for number, said in enumerate(turns):
            if not whole.startswith(said.written, at):
                return Difference(number, witness(said.written, whole[at : at + len(said.written) + _SHOWN]))
            at += len(said.written)
            following = turns[number + 1].written if number + 1 < len(turns) else behind
            last = number + 1 == len(turns)
            end = self._end(said, following, whole, at, last)
            if end is None:
                return Difference(number + 1, witness(said.text + said.end + following, whole[at:]))
            at = end
        if whole[at:] != behind:
            return Difference(len(turns), witness(behind, whole[at:]))
        return None

    def _end(self, said: Said, following: str, whole: str, at: int, last: bool) -> int | None:
        """Return where a turn ends in a rendering; None when it is not there."""
        end = at + len(said.text) + len(said.end)
        if whole.startswith(said.text + said.end, at) and whole.startswith(following, end):
            return end
        found = len(whole) - len(following) if last else whole.find(following, at)
        for _ in range(_TRIES):
            if found < at or not whole.startswith(following, found):
                return None
            if self._same(said, whole[at:found]):
                return found
            if last:
                return None
            found = whole.find(following, found + 1)
        return None

    def _same(self, said: Said, text: str) -> bool:
        """Return whether a turn, as the template writes it, says what was sampled."""
        if not said.whole or text.strip() == (said.text + said.end).strip():
            return True
        control = self._encoder.control
        spelled = self._encoder.encode(text)
        if Counter(token for token in spelled if token in control) - Counter(said.markers):
            return False  # markers that were never sampled
        opened = said.written.rstrip().endswith(self._parser.reasoning_markers[0])
        one, other = (
            self._parser.parse(turn, reasoning_open=opened, schemas=self._schemas)
            for turn in (self._encoder.sampled(words(control, spelled, self._parser)[1]), said.text)
        )
        if other.failures:
            return True
        return _says(one) == _says(other) if not one.failures else _text(one) == _text(other)


def _text(turn: ParsedTurn) -> tuple[str, str]:
    return "".join((turn.reasoning or "").split()), "".join(shown_text(turn.text).split())


def _says(turn: ParsedTurn) -> tuple[Any, ...]:
    return *_text(turn), [(shown_name(call.name), call.arguments) for call in turn.calls]
