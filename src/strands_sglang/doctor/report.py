"""The result of a diagnosis: `Report`, a list of `Check`s with a `Status` each.

Invariant: every check that was requested is in the report once, whatever happened while it ran. A check that did not
pass says what to do.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from strands_sglang._terminal import counted, escape_for_terminal

_NAME_WIDTH = 15  # of the longest name of a check


class Status(str, Enum):
    """Result of one check, from best to worst.

    Example:
        ```python
        broken = [check.name for check in report.checks if check.status is Status.FAIL]
        ```
    """

    SKIP = "skip"
    """It was not checked: it needs something that is missing, or that you did not ask for."""
    PASS = "pass"
    """Nothing to do."""
    WARN = "warn"
    """A run works, but slower than it could, or with a risk."""
    FAIL = "fail"
    """A run does not work, or records something other than you expect."""


_ORDER = (Status.SKIP, Status.PASS, Status.WARN, Status.FAIL)
EXIT_CODES = {Status.SKIP: 0, Status.PASS: 0, Status.WARN: 3, Status.FAIL: 1}
"""Exit code of a report by its worst status."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of a report.

    Example:
        ```python
        for check in report.checks:
            print(check.status.value, check.name, check.found, check.advice)
        ```
    """

    name: str
    """What was checked."""
    status: Status
    """The result."""
    found: str
    """What was found, or why it was not checked."""
    advice: str = ""
    """What to do; "" if there is nothing to do."""
    seconds: float = 0.0
    """Duration of the check in seconds, including facts that it waited for."""

    def to_dict(self) -> dict[str, Any]:
        """Return the check as plain data."""
        return {
            "name": self.name,
            "status": self.status.value,
            "found": self.found,
            "advice": self.advice,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of a diagnosis. `text` is for people, `to_dict` for programs.

    Example:
        ```python
        report = await diagnose("http://localhost:30000", "Qwen/Qwen3-8B")
        print(report.text())
        sys.exit(report.exit_code)
        ```
    """

    base_url: str
    """Address that was diagnosed."""
    checks: tuple[Check, ...] = field(default_factory=tuple)
    """The checks, in a fixed order."""

    def __getitem__(self, name: str) -> Check:
        """Return a check by its name."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"no check {name!r}; the report has {', '.join(check.name for check in self.checks)}")

    @property
    def status(self) -> Status:
        """The worst status of all checks."""
        return max((check.status for check in self.checks), key=_ORDER.index, default=Status.SKIP)

    @property
    def exit_code(self) -> int:
        """0 if nothing failed or warned, 3 if there are only warnings, 1 if a check failed."""
        return EXIT_CODES[self.status]

    def count(self, status: Status) -> int:
        """Return the number of checks with a status."""
        return sum(check.status is status for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "base_url": self.base_url,
            "status": self.status.value,
            "counts": {status.value: self.count(status) for status in _ORDER},
            "checks": [check.to_dict() for check in self.checks],
        }

    def text(self, width: int | None = None) -> str:
        """Return the report as text: a line per check, advice below it.

        Args:
            width: Number of characters after which lines are wrapped; None: they are not.
        """
        lines = []
        indent = " " * (8 + _NAME_WIDTH)
        for check in self.checks:
            head = f"{check.status.value.upper()}  {check.name:<{_NAME_WIDTH}}  "
            lines += _wrapped(head, check.found, indent, width)
            if check.advice:
                lines += _wrapped(f"{indent}-> ", check.advice, f"{indent}   ", width)
        told = [(Status.FAIL, "failure", None), (Status.WARN, "warning", None)]
        counts = [counted(self.count(status), noun, more) for status, noun, more in told if self.count(status)]
        passed = f"{self.count(Status.PASS)} passed, {self.count(Status.SKIP)} skipped"
        lines.append("")
        lines.append(f"{self.base_url}: {', '.join([*counts, passed])}")
        return "\n".join(map(escape_for_terminal, lines))


def _wrapped(first: str, text: str, others: str, width: int | None) -> list[str]:
    """Return a text as lines of at most a width.

    Args:
        first: Start of the first line.
        text: The text.
        others: Start of the other lines.
        width: The width; None: one line.
    """
    if width is None:
        return [first + text]
    escaped = escape_for_terminal(text)
    wide = max(width, len(others) + 20)
    return textwrap.wrap(escaped, wide, initial_indent=first, subsequent_indent=others, break_on_hyphens=False) or [
        first
    ]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check function returns; `diagnose` adds name and duration."""

    status: Status
    """The result."""
    found: str
    """What was found."""
    advice: str = ""
    """What to do; "" if there is nothing to do."""


def passed(found: str) -> Finding:
    """Return the finding of a check that passed."""
    return Finding(Status.PASS, found)


def warned(found: str, advice: str) -> Finding:
    """Return the finding of a check with a warning."""
    return Finding(Status.WARN, found, advice)


def failed(found: str, advice: str) -> Finding:
    """Return the finding of a check that failed."""
    return Finding(Status.FAIL, found, advice)


def skipped(found: str) -> Finding:
    """Return the finding of a check that could not be made."""
    return Finding(Status.SKIP, found)
