"""Verification of what was decided because of the age of tokens: `StalenessFacts`.

Invariant: an age is believed only where it cannot be recomputed, because the user gave the order of versions. The
decision must follow from the ages in any case, and the ages must cover every version that sampled a token.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import Event

if TYPE_CHECKING:
    from strands_sglang.proof.trajectories import FlatTrajectory

_DECISIONS = {"drop": ("kept", "dropped"), "retry": ("kept", "retried", "dropped"), "mask": ("kept", "masked")}
"""By action: the decisions that are possible, first the one if nothing is too old."""
_START = "default"
"""SGLang's name for the weights that a server was started with. Where versions are numbers, it is 0."""
_NO_NUMBER = (None, _START)
_MAX_DIGITS = 1_000


@dataclass(frozen=True, slots=True)
class StalenessFacts:
    """A staleness event."""

    limit: int
    action: str
    numbered: bool
    """Whether versions are ordered as decimal numbers."""
    current: str | None
    ages: dict[str | None, int | None]
    """Age by weight version of the episode's tokens; None: unknown."""
    age: int | None
    """Largest age of a token of the group; None: none is known."""
    decision: str

    @property
    def dropped(self) -> bool:
        """Whether the episode must not be trained."""
        return self.decision in ("dropped", "retried")

    def too_old_in(self, flat: FlatTrajectory) -> npt.NDArray[np.bool_]:
        """Return which tokens of a trajectory are not trained."""
        old = [name for name, age in self.ages.items() if age is not None and age > self.limit]
        if self.dropped:
            return np.ones(len(flat.versions), bool)
        if self.decision != "masked":
            return np.zeros(len(flat.versions), bool)
        return np.isin(flat.versions, [number for number, name in enumerate(flat.version_names) if name in old])

    def masked(self, flat: FlatTrajectory) -> FlatTrajectory:
        """Return a trajectory as it may be trained."""
        return replace(flat, loss_mask=np.where(self.too_old_in(flat), 0, flat.loss_mask).astype(flat.loss_mask.dtype))

    def problems(self, used: Collection[str | None]) -> Iterator[str]:
        """Yield how the event contradicts itself or the weight versions of the episode's turns (`used`)."""
        if missing := [name for name in used if name not in self.ages]:
            yield f"tokens were sampled by the weights {missing[0]!r:.50}, whose age is not stated"
        strange = [name for name in (*self.ages, self.current) if not _has_place(name) and name not in _NO_NUMBER]
        if self.numbered and strange:
            yield f"versions are ordered as numbers, but {strange[0]!r:.50} is none"
        for name, age in self.ages.items():
            if self.numbered and not strange and age != (expected := self._recomputed(name)):
                yield f"the age of the weights {name!r:.50} is {age}, but {expected} follows from {self.current!r:.50}"
        oldest = max((age for age in self.ages.values() if age is not None), default=None)
        if oldest is not None and (self.age is None or self.age < oldest):
            yield f"the age of the group is {self.age}, but the episode has a token of age {oldest}"
        fresh, *stale = _DECISIONS[self.action]
        measured = oldest if self.action == "mask" else self.age
        if self.decision not in (stale if (measured or 0) > self.limit else [fresh]):
            yield f"with a token of age {measured} and a limit of {self.limit}, it cannot be {self.decision!r:.50}"

    def _recomputed(self, version: str | None) -> int | None:
        if version is None or self.current in _NO_NUMBER:
            return None
        return max(int(str(self.current)) - (0 if version == _START else int(version)), 0)


def _has_place(version: str | None) -> bool:
    """Return whether a version is a decimal number, of a length that Python reads."""
    return version is not None and version.isascii() and version.isdecimal() and len(version) <= _MAX_DIGITS


def read_staleness(event: Event) -> StalenessFacts:
    """Return the content of a staleness event; LedgerError if it has another form."""
    data = event.data
    limit, age, ages = data.get("limit"), data.get("age"), data.get("ages")
    if type(limit) is not int or limit < 0 or not _is_age(age):
        raise LedgerError(f"limit and age must be ints of at least 0, got {limit!r:.50} and {age!r:.50}")
    if not isinstance(ages, list) or not all(_is_pair(one) for one in ages) or len(dict(ages)) < len(ages):
        raise LedgerError(f"ages must be a list of a version and its age each, none twice, got {ages!r:.200}")
    action, decision, current = data.get("action"), data.get("decision"), data.get("current")
    if action not in _DECISIONS or not isinstance(decision, str) or not isinstance(current, str | None):
        raise LedgerError(f"action, decision or current is wrong: {action!r:.50}, {decision!r:.50}, {current!r:.50}")
    return StalenessFacts(limit, action, data.get("order") == "number", current, dict(ages), age, decision)


def _is_pair(one: Any) -> bool:
    return isinstance(one, list) and len(one) == 2 and isinstance(one[0], str | None) and _is_age(one[1])


def _is_age(age: Any) -> bool:
    return age is None or (type(age) is int and age >= 0)
