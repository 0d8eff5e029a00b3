"""What commands print: JSON, escaped text, numbers and colours.

Invariants: printed text has no control characters except the line breaks and colours of this module. JSON is printable
ASCII, with null for NaN and infinities. Colours are used only if standard output is a terminal and NO_COLOR is not set.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, TextIO

from strands_sglang._terminal import escape_for_terminal

_CODES = {
    **{"bold": "1", "dim": "2", "underline": "4", "red": "31", "green": "32", "yellow": "33", "blue": "34"},
    **{"magenta": "35", "cyan": "36"},
    **{"likely": "38;5;250", "probable": "38;5;114", "possible": "38;5;221", "unlikely": "38;5;208"},
    "improbable": "1;38;5;203",
}


def wants_colours(stream: TextIO | None = None) -> bool:
    """Return whether text for a stream (None: stdout) is coloured: a terminal, without NO_COLOR (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return (stream or sys.stdout).isatty()
    except (AttributeError, ValueError):  # a closed stream, or an incomplete file object
        return False


class Paint:
    r"""Colours text, or returns it unchanged."""

    def __init__(self, coloured: bool) -> None:
        self.coloured = coloured

    def __call__(self, text: str, *styles: str) -> str:
        """Return text in styles; the text itself must be escaped already."""
        if not self.coloured or not text or not styles:
            return text
        return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return printable ASCII JSON, with null for NaN and infinities."""
    return json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None), indent=indent)


def escape_lines(text: str) -> list[str]:
    """Return the lines of a text, each escaped."""
    return [escape_for_terminal(line) for line in text.split("\n")]


def shorten(text: str, width: int) -> str:
    """Return a text as one escaped line of at most `width` characters."""
    line = escape_for_terminal(" ".join(text[: 4 * width].split()))
    return line if len(line) <= width and len(text) <= 4 * width else line[: max(width - 1, 0)] + "…"


def number(value: float | None, digits: int = 4) -> str:
    """Return a number in a short form; "-" for None."""
    return "-" if value is None else f"{value:.{digits}g}"
