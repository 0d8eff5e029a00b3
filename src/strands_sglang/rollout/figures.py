"""Numbers for the eye: bars, curves, durations.

Invariant: what is drawn has exactly the width it was given, or less; never more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise


def bar(part: float, width: int, cells: str) -> str:
    """Return a bar of `width` columns.

    Args:
        part: How much of it is full, 0 to 1. Anything above 0 can be seen.
        width: Columns.
        cells: Parts of a column, empty to full.
    """
    steps = len(cells) - 1
    filled = min(max(math.ceil(part * width * steps) if part > 0 else 0, 0), width * steps)
    whole, rest = divmod(filled, steps)
    return (cells[-1] * whole + (cells[rest] if rest else "")).ljust(width)


def curve(points: Sequence[float], heights: str) -> str:
    """Return one character a point, lowest to highest; a curve that is flat lies in the middle."""
    if not points:
        return ""
    low, high = min(points), max(points)
    if high <= low:
        return heights[len(heights) // 2] * len(points)
    top = len(heights) - 1
    # Each is divided before it is subtracted: the distance of two numbers may be too large for a float.
    span = high / 2 - low / 2
    return "".join(heights[min(round((point / 2 - low / 2) / span * top), top)] for point in points)


def shrunk(points: Sequence[float], most: int) -> list[float]:
    """Return at most `most` points, each the mean of those that lie in its place."""
    count = len(points)
    if count <= most:
        return list(points)
    edges = [place * count // most for place in range(most + 1)]
    return [math.fsum(points[a:b]) / (b - a) for a, b in pairwise(edges)]


def duration(seconds: float) -> str:
    """Return seconds as people say them: "42 s", "3:05", "11:02:03", "2 d 4 h"."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}:{rest:02}"
    if hours < 24:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{hours // 24} d {hours % 24} h"


def rounded(number: float) -> str:
    """Return a number with a few digits: "0", "61.2", "12,431", "1.2M"."""
    if number >= 1e6:
        return f"{number / 1e6:,.1f}M"
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:,.1f}"


class History:
    """Numbers as a curve of few points: where there are too many, neighbours are joined to their mean."""

    def __init__(self, points: int) -> None:
        """Begin empty, with room for an even number of points."""
        self._room, self._size = points, 1
        self._points: list[float] = []
        self._sum, self._count = 0.0, 0

    def add(self, value: float) -> None:
        """Add a number."""
        self._sum += value
        self._count += 1
        if self._count < self._size:
            return
        self._points.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self._points) == self._room:
            self._points = [(a + b) / 2 for a, b in zip(self._points[::2], self._points[1::2], strict=True)]
            self._size *= 2

    def points(self) -> tuple[float, ...]:
        """Return the curve, oldest first; each point is the mean of equally many numbers."""
        return tuple(self._points)
