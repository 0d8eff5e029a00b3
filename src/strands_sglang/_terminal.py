"""Text for terminals and messages: `escape_for_terminal`, `this_command`, `counted`, `table`, `natural_key`.

Invariant: escaped text is a single line without control characters, invisible characters or changes of text direction.
Content of a ledger cannot manipulate the terminal of the person who reads it.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO


def escape_for_terminal(text: str) -> str:
    r"""Return text with every non-printable character escaped: `\n`, `\x1b`, `\u202e`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal."""
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):  # a closed stream, or an incomplete file object
        return False


def this_command() -> str:
    """Return the command line of this process as it was typed: a program that is on the path has no directory."""
    python, *words = sys.orig_argv
    if words and (name := Path(words[0]).name) == "strands-sglang":  # the script of an environment: Python runs it
        return shlex.join([name if shutil.which(name) == words[0] else words[0], *words[1:]])
    return shlex.join([python, *words])


def counted(number: int, noun: str, several: str | None = None) -> str:
    """Return a number with its noun: `1 episode`, `1,024 episodes`; `several` None: the singular with an s."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def table(rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> list[str]:
    """Return rows of the same length as lines with aligned columns, `right` ones at the right; cells are escaped."""
    cells = [list(row) for row in rows]
    if not cells:
        return []
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    to_right = set(right)
    return [
        "  ".join(
            cell.rjust(width) if number in to_right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """Return a sort key by which `task-2` comes before `task-10`."""
    parts = re.split(r"(\d{1,18})", text)
    return [(1, int(part), "") if part.isdecimal() and part.isascii() else (0, 0, part) for part in parts]
