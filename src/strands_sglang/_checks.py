"""Validation of arguments (numbers in a range, the closest known name for a misspelt one), and how to install an extra.

Invariant: every message has the form "X must be ..., got ..."; a bool is never accepted as a number. An install command
names the repository or a checkout: the name on the package index belongs to another package.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from enum import Enum
from typing import Any, TypeVar

from strands_sglang.errors import ConfigurationError

EnumT = TypeVar("EnumT", bound=Enum)

SOURCE = "https://github.com/strands-sglang/strands-sglang"


def closest_name(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name most similar to `name`, or None if none is at least `cutoff` (0 to 1) similar."""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=cutoff)), None)


def did_you_mean(name: str, known: Iterable[str], *, meant: str | None = None) -> str:
    """Return the continuation of a message about an unknown name, with the name that is `meant` or the closest one."""
    close = meant or closest_name(name, known)
    return "." if close is None else f"; did you mean {close!r}?"


def check_int(name: str, value: Any, *, minimum: int = 1, optional: bool = True, hint: str = "") -> None:
    """Raise ConfigurationError unless `value` is an int of at least `minimum`, or None if optional; `hint` is added."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigurationError(_message(name, f"an int >= {minimum}", optional, value, hint))


def chosen(name: str, value: Any, kind: type[EnumT], *, others: str = "") -> EnumT:
    """Return the member of an enum with a value, or raise ConfigurationError; `others`: what else is accepted."""
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(repr(one.value) for one in kind)
        raise ConfigurationError(f"{name} must be one of {names}{others}, got {value!r:.200}") from None


def check_methods(what: str, value: Any, *names: str) -> None:
    """Check that an object has these methods."""
    missing = [name for name in names if not callable(getattr(value, name, None))]
    if missing:
        needed = f"{', '.join(names[:-1])} and {names[-1]}"
        raise ConfigurationError(
            f"{what} must have the methods {needed}, got {value!r:.200}: implement {', '.join(missing)}"
        )


def check_number(
    name: str,
    value: Any,
    *,
    above: float | None = 0,
    minimum: float | None = None,
    maximum: float | None = None,
    finite: bool = False,
    optional: bool = True,
) -> None:
    """Raise ConfigurationError unless `value` is an int or a float in a range; NaN is in none. None: no bound.

    `finite`: whether infinity is refused. `optional`: None is accepted.
    """
    if optional and value is None:
        return
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
    if (
        is_number
        and (above is None or value > above)
        and (minimum is None or value >= minimum)
        and (maximum is None or value <= maximum)
        and not (finite and math.isinf(value))
    ):
        return
    bounds = [
        f"{sign} {bound:g}" for sign, bound in ((">", above), (">=", minimum), ("<=", maximum)) if bound is not None
    ]
    kind = f"a {'finite ' if finite else ''}number {' and '.join(bounds)}".rstrip()
    raise ConfigurationError(_message(name, kind, optional, value))


def _message(name: str, kind: str, optional: bool, value: Any, hint: str = "") -> str:
    expected = f"{kind} or None" if optional else kind
    return f"{name} must be {expected}{f' ({hint})' if hint else ''}, got {value!r:.200}"


def install(extra: str) -> str:
    """Return the command that installs this package with one of its extras ("ray", "progress", "arrow", ...)."""
    return f"pip install 'strands-sglang[{extra}] @ git+{SOURCE}', or pip install -e '.[{extra}]' in a checkout"
