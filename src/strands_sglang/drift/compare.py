"""Finds where a turn differs from other tokens for it, and why: `differences`, `Cause`.

Causes are inferred from the text of both sides and from where the difference is in its turn. They explain; whether
tokens differ does not depend on them.

Invariant: replacing the old tokens of every difference by its new ones gives the new sequence.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from strands_sglang.chat.tokenization import Encoder
from strands_sglang.tokens.alignment import align

_MOST_EXPLAINED = 200  # differences of one turn that are explained; the others get the cause of the last one
_AROUND = 3  # tokens on each side that are looked at to explain a difference
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\b(?:true|false|null|none)\b", re.IGNORECASE)
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")


class Cause(str, Enum):
    """Why tokens differ."""

    BPE_SPLIT = "bpe_split"
    """The same text, split into other tokens."""
    JSON_SPACING = "json_spacing"
    """White space between the parts of JSON: `{"a":1}` and `{"a": 1}`."""
    JSON_SPELLING = "json_spelling"
    """Other spelling of JSON: escapes, or the order of keys."""
    NUMBER = "number"
    """Spelling of a number, a boolean or null: `1.0` and `1`, `True` and `true`."""
    REASONING_DROPPED = "reasoning_dropped"
    """Reasoning that is not written again."""
    WHITE_SPACE = "white_space"
    """White space outside of JSON, such as blank lines at the ends of a turn."""
    TURN_BOUNDARY = "turn_boundary"
    """Tokens at the start of a turn: text that was in the prompt is written differently, or merges with the turn."""
    END_OF_TURN = "end_of_turn"
    """Tokens that end a turn: missing, added or another one."""
    OTHER = "other"
    """Anything else: text that a message does not hold, or that a template writes in another way."""

    @property
    def label(self) -> str:
        """Name for people."""
        return _LABELS[self]


_LABELS = {
    Cause.BPE_SPLIT: "BPE split",
    Cause.JSON_SPACING: "JSON spacing",
    Cause.JSON_SPELLING: "JSON escapes, key order",
    Cause.NUMBER: "number, boolean spelling",
    Cause.REASONING_DROPPED: "reasoning dropped",
    Cause.WHITE_SPACE: "white space",
    Cause.TURN_BOUNDARY: "turn boundary",
    Cause.END_OF_TURN: "end of turn",
    Cause.OTHER: "other",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """A run of tokens that would be replaced."""

    start: int
    end: int
    """Index after the last old token; equal to `start` if tokens would only be added."""
    new: tuple[int, ...]
    """The tokens that would stand there."""
    cause: Cause


def turn_regions(
    branch: array[int], spans: Sequence[tuple[int, int]], rendered: Sequence[int]
) -> list[list[int]] | None:
    """Return the tokens that a rendering of a whole conversation has in place of each turn.

    The text between two turns is written by the template in both, so it marks where turns are; None if it is not in the
    rendering. `spans`: start and end of each turn in the branch, in order.
    """
    whole, starts, at, last = array("i", rendered), [], 0, 0
    data = whole.tobytes()
    ends: list[int] = []
    for start, end in spans:
        place = _find(branch[last:start], whole, data, at)
        if place is None:
            return None
        ends.append(place[0])
        starts.append(place[1])
        at, last = place[1], end
    return [list(whole[start:end]) for start, end in zip(starts, [*ends[1:], len(whole)], strict=True)]


_MOST_CUT = 16  # tokens at the end of a context that a rendering may write differently, such as an opened reasoning
_MOST_CUT_BEFORE = 4  # the same for its start


def _find(context: array[int], whole: array[int], data: bytes, start: int) -> tuple[int, int] | None:
    """Return where a context starts in a rendering (`data`: its bytes), and where the turn after it does; or None."""
    if not context:
        return start, start
    for head in range(min(_MOST_CUT_BEFORE, len(context) - 1) + 1):
        for tail in range(min(_MOST_CUT, len(context) - head - 1) + 1):
            wanted = context[head : len(context) - tail].tobytes()
            at = data.find(wanted, start * whole.itemsize)
            while at >= 0 and at % whole.itemsize:
                at = data.find(wanted, at + 1)
            if at >= 0:
                begin = at // whole.itemsize
                end = begin + len(context) - tail - head
                for token in context[len(context) - tail :]:  # what the rendering has of the rest
                    if end < len(whole) and whole[end] == token:
                        end += 1
                return begin, end
    return None


def differences(
    encoder: Encoder, sampled: Sequence[int], rendered: Sequence[int], *, reasoning: int = 0
) -> list[Difference]:
    """Return how a sampled turn differs from the tokens that another method gives for it.

    Tokens after the last sampled one are ignored: the template writes the end of a turn and the next header there.
    `reasoning`: number of sampled tokens that are reasoning, closing marker included (see `reasoning_tokens`).
    """
    sampled, rendered = list(sampled), list(rendered)
    spans = align(sampled, rendered)
    if spans and spans[-1][0] == len(sampled):
        rendered = rendered[: spans[-1][2]]
        spans = spans[:-1]
    same_text = bool(spans) and encoder.decode(sampled) == encoder.decode(rendered)
    return explain(encoder, sampled, rendered, spans, same_text=same_text, reasoning=reasoning)


def explain(
    encoder: Encoder,
    sampled: Sequence[int],
    rendered: Sequence[int],
    spans: Iterable[tuple[int, ...]],
    *,
    same_text: bool = False,
    reasoning: int = 0,
) -> list[Difference]:
    """Return the differences at some spans with their causes; see `differences`."""
    found: list[Difference] = []
    cause = Cause.OTHER
    for number, (start, end, new_start, new_end) in enumerate(spans):
        new = tuple(rendered[new_start:new_end])
        if same_text:
            cause = Cause.BPE_SPLIT
        elif number < _MOST_EXPLAINED:
            cause = _cause(encoder, sampled, start, end, new, reasoning)
        found.append(Difference(start, end, new, cause))
    return found


def _cause(
    encoder: Encoder, sampled: Sequence[int], start: int, end: int, new: tuple[int, ...], reasoning: int
) -> Cause:
    old = tuple(sampled[start:end])
    before, after = sampled[max(0, start - _AROUND) : start], sampled[end : end + _AROUND]
    one, other = encoder.decode(old) if old else "", encoder.decode(new) if new else ""
    wide = encoder.decode([*before, *old, *after])
    wide_new = encoder.decode([*before, *new, *after])
    if wide == wide_new:
        return Cause.BPE_SPLIT
    if start < reasoning and len(new) < len(old) and 2 * (min(end, reasoning) - start) >= len(old):
        return Cause.REASONING_DROPPED
    special = encoder.control.special
    if end >= len(sampled) - 1 and (special.intersection(old) or special.intersection(new)):
        return Cause.END_OF_TURN
    in_json = _in_json(encoder, sampled, start, one + other)
    if _without_space(one) == _without_space(other):
        if in_json:
            return Cause.JSON_SPACING
        return Cause.TURN_BOUNDARY if start == 0 and not one.strip() and new and len(old) == 0 else Cause.WHITE_SPACE
    if start == 0 and (not old or encoder.control.count(old) or encoder.control.count(new)):
        return Cause.TURN_BOUNDARY
    if _numbers(wide) == _numbers(wide_new):
        return Cause.NUMBER
    if in_json and (sorted(_unescaped(one)) == sorted(_unescaped(other)) or _unescaped(wide) == _unescaped(wide_new)):
        return Cause.JSON_SPELLING
    return Cause.OTHER


def _in_json(encoder: Encoder, sampled: Sequence[int], start: int, changed: str) -> bool:
    before = encoder.decode(sampled[:start]) if start else ""
    inside = before.count("{") > before.count("}") or before.count("[") > before.count("]")
    return inside or bool(re.search(r'[{}\[\]]|"\s*[:,]|[:,]\s*"', changed))


def _without_space(text: str) -> str:
    return "".join(text.split())


def _numbers(text: str) -> str:
    """Return a text without white space in which numbers and constants are spelled in one way."""

    def spell(match: re.Match[str]) -> str:
        word = match[0].lower()
        if word in ("true", "false", "null", "none"):
            return "null" if word == "none" else word
        try:
            return repr(float(word))
        except (ValueError, OverflowError):
            return word

    return _NUMBER.sub(spell, _without_space(text))


def _unescaped(text: str) -> str:
    plain = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), _without_space(text))
    return plain.replace("\\/", "/")


def reasoning_tokens(encoder: Encoder, sampled: Sequence[int], marker: str) -> int:
    """Return how many tokens at the start of a turn are reasoning, up to its closing marker, such as `</think>`."""
    ids = list(sampled)
    known = encoder.control.ids.get(marker)
    if known is not None:
        return ids.index(known) + 1 if known in ids else 0
    if not marker or marker not in encoder.decode(ids):
        return 0
    low, high = 0, len(ids)  # the marker is plain text: find the shortest beginning of the turn that contains it
    while high - low > 1:
        middle = (low + high) // 2
        if marker in encoder.decode(ids[:middle]):
            high = middle
        else:
            low = middle
    return high
