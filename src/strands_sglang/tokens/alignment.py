"""Where two token sequences differ: `align` by ids, `align_text` by the common text of both.

Invariant: replacing the old tokens of every difference by the new, from the last to the first, gives the new sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import NamedTuple

_MOST_PAIRS = 4_000_000  # of old and new tokens that are aligned one by one; beyond that, a block is one difference


class TokenDifference(NamedTuple):
    """Tokens of one sequence that another has in place of some."""

    start: int
    end: int  # index after the last old token; equal to `start` if tokens are only added
    new_start: int
    new_end: int  # index after the last new token; equal to `new_start` if tokens are only removed


def align(old: Sequence[int], new: Sequence[int], separators: frozenset[int] = frozenset()) -> list[TokenDifference]:
    """Return where two sequences differ, in order; long ones are divided at `separators` before they are aligned."""
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    left, right = list(old[head : len(old) - tail]), list(new[head : len(new) - tail])
    if not left and not right:
        return []
    found: list[TokenDifference] = []
    if len(left) * len(right) <= _MOST_PAIRS:
        blocks = [(0, len(left), 0, len(right))]
    else:
        blocks = _blocks(left, right, separators)
    for a, b, c, d in blocks:
        if (b - a) * (d - c) > _MOST_PAIRS:
            found.append(TokenDifference(head + a, head + b, head + c, head + d))
            continue
        matcher = SequenceMatcher(None, left[a:b], right[c:d], autojunk=False)
        found += [
            TokenDifference(head + a + i, head + a + j, head + c + k, head + c + m)
            for tag, i, j, k, m in matcher.get_opcodes()
            if tag != "equal"
        ]
    return found


def align_text(
    old: Sequence[int], new: Sequence[int], old_sizes: Sequence[int], new_sizes: Sequence[int]
) -> list[TokenDifference]:
    """Return where two sequences with the same text differ, in order: as small as their common token boundaries allow.

    The sizes are the bytes of each token. Takes time in proportion to the lengths, and is exact for any length.
    """
    found: list[TokenDifference] = []
    at = other = at_byte = other_byte = 0
    while at < len(old) or other < len(new):
        if at < len(old) and other < len(new) and old[at] == new[other] and at_byte == other_byte:
            at_byte += old_sizes[at]
            other_byte += new_sizes[other]
            at, other = at + 1, other + 1
            continue
        start, other_start = at, other
        while True:
            if at < len(old) and (at_byte <= other_byte or other >= len(new)):
                at_byte += old_sizes[at]
                at += 1
            elif other < len(new):
                other_byte += new_sizes[other]
                other += 1
            if at_byte == other_byte or (at >= len(old) and other >= len(new)):
                break
        found.append(TokenDifference(start, at, other_start, other))
    return found


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def _blocks(old: list[int], new: list[int], separators: frozenset[int]) -> list[tuple[int, int, int, int]]:
    """Return the differing blocks of two long sequences, aligned by whole segments between separators."""
    parts = [_segments(ids, separators) for ids in (old, new)]
    keys = [[tuple(ids[start:end]) for start, end in part] for ids, part in zip((old, new), parts, strict=True)]
    matcher = SequenceMatcher(None, keys[0], keys[1], autojunk=False)
    blocks = []
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag != "equal":
            a, b = (parts[0][i][0], parts[0][j - 1][1]) if j > i else (_at(parts[0], i, old), _at(parts[0], i, old))
            c, d = (parts[1][k][0], parts[1][m - 1][1]) if m > k else (_at(parts[1], k, new), _at(parts[1], k, new))
            blocks.append((a, b, c, d))
    return blocks


def _segments(ids: list[int], separators: frozenset[int]) -> list[tuple[int, int]]:
    cuts = [0, *(place for place, token in enumerate(ids) if token in separators and place), len(ids)]
    return [(start, end) for start, end in pairwise(cuts) if end > start]


def _at(parts: list[tuple[int, int]], number: int, ids: list[int]) -> int:
    return parts[number][0] if number < len(parts) else len(ids)
