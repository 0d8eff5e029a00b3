"""The result of one check: `Finding`.

Invariant: a finding that did not pass says what to do. What a run does because of it (raise, log, nothing) is part of
the finding, so that `preflight` has no judgement of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """Result of one check, from best to worst."""

    SKIP = "skip"
    """It was not checked: it needs something that is missing, or that you did not ask for."""
    PASS = "pass"
    """Nothing to do."""
    WARN = "warn"
    """A run works, but slower than it could, or with a risk."""
    FAIL = "fail"
    """A run does not work, or records something other than you expect."""


class UnmetRequirement(Exception):
    """A check needs something that is missing; the message says what."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check returns. With neither `error` nor `log`, a run starts without a word about it."""

    status: Status
    found: str
    """What was found, or why it was not checked."""
    advice: str = ""  # "" if there is nothing to do
    error: Exception | None = None
    """What a run raises instead of starting."""
    log: str = ""
    """Warning that a run logs when it starts."""


def passed(found: str) -> Finding:
    """Return the finding of a check that passed."""
    return Finding(Status.PASS, found)


def warned(found: str, advice: str, *, log: str = "") -> Finding:
    """Return the finding of a check with a warning."""
    return Finding(Status.WARN, found, advice, log=log)


def failed(found: str | Exception, advice: str) -> Finding:
    """Return the finding of a check that failed; a run raises `found` if that is an error."""
    return Finding(Status.FAIL, str(found), advice, found if isinstance(found, Exception) else None)


def skipped(found: str, *, log: str = "") -> Finding:
    """Return the finding of a check that could not be made."""
    return Finding(Status.SKIP, found, log=log)
