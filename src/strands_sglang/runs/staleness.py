"""How old the weights may be that sampled a token to train: `MaxStaleness`, and who decides it, `StalenessGate`.

The age of a token is the number of weight updates between the weights that sampled it and the current ones. A group is
as old as its oldest token. It is decided where a group is handed over to training; the decision is recorded for each
episode (`EventKind.STALENESS`), and `verify` holds exported tokens against it.

Invariant: versions are compared by a declared order, never as text. A version that the order does not know is an error,
not a guess; only `default`, of a server before its first update, is older than all then. The current version never goes
back. An episode whose decision is on record is not decided again, unless it was resumed.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from strands_sglang._checks import check_int, chosen
from strands_sglang.engine import ServerEngine, TokenEngine, is_server
from strands_sglang.engine.adapters import MARK
from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.encoding import HashChain
from strands_sglang.ledger.event import EventKind, StalenessData
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.runs.episode import Episode, Staleness, StalenessDecision

START = "default"
"""SGLang's name for the weights that a server was started with, before its first update."""
OLDEST = -(1 << 31)
"""Place of weights that come before all that an order knows."""

VersionOrder: TypeAlias = "Callable[[str], int] | Sequence[str]"
CurrentVersion: TypeAlias = "Callable[[], str | Awaitable[str | None] | None]"


class StaleAction(str, Enum):
    """What happens to a group with a token that is too old."""

    DROP = "drop"
    """No episode of the group is trained."""
    RETRY = "retry"
    """The same, and new episodes of its task are run."""
    MASK = "mask"
    """Only the old tokens are not trained."""


@dataclass(frozen=True, slots=True)
class MaxStaleness:
    """The age up to which tokens are trained.

    Example:
        >>> rule = MaxStaleness(2, action="mask", order=["base", "step-1", "step-2", "step-3"])
        >>> rule.age("base", "step-3")
        3
    """

    limit: int
    """Largest age, in weight updates; 0: only tokens of the current weights."""
    action: StaleAction | str = StaleAction.DROP
    order: VersionOrder | None = None
    """Position of a version: a function, or all versions, oldest first. None: versions are decimal numbers, and
    "default" is 0. A list may grow while it is used. A function that raises for "default", and a list without it, make
    those tokens older than all. The version None has no age and is never too old."""
    current: CurrentVersion | None = None
    """Returns the current version, plain or async. None: the oldest that a worker of the engine reports, but none
    before the newest that sampled a token. An engine does not report adapters: needed if they are trained."""
    retries: int = 3
    """How often a task may be run again with `action="retry"`; then its group is dropped."""
    stop_running: bool = True
    """Whether `rollout` stops the running episodes of a group that became too old, as `not_needed`."""

    def __post_init__(self) -> None:
        check_int("max_staleness", self.limit, minimum=0, optional=False)
        check_int("MaxStaleness.retries", self.retries, minimum=0, optional=False)
        object.__setattr__(self, "action", chosen("MaxStaleness.action", self.action, StaleAction))
        if isinstance(self.order, str) or not (callable(self.order) or isinstance(self.order, Sequence | None)):
            raise ConfigurationError(
                f"MaxStaleness.order must be a function of a version, or a list of versions, got {self.order!r:.200}"
            )

    @classmethod
    def of(cls, given: MaxStaleness | Mapping[str, Any] | int | None) -> MaxStaleness | None:
        """Return a rule from itself, a dict of its fields, or its limit; None: no rule."""
        if given is None or isinstance(given, MaxStaleness):
            return given
        return cls(**given) if isinstance(given, Mapping) else cls(given)

    @property
    def stops_running(self) -> bool:
        """Whether running episodes whose group is too old are stopped."""
        return self.stop_running and self.action is not StaleAction.MASK

    def position(self, version: str | None) -> int | None:
        """Return the place of a version in the order; None for the version None.

        Raises:
            ConfigurationError: The order does not know the version.
        """
        if version is None:
            return None
        if callable(self.order):
            try:
                return self.order(version)
            except Exception:
                if version != START:
                    raise
                return OLDEST
        if self.order is not None:
            if version in self.order:
                return self.order.index(version)
            if version == START:
                return OLDEST
            raise ConfigurationError(f"max_staleness must know all weight versions, got {version!r}: add it to order=")
        if version == START:
            return 0
        if version.isdecimal() and version.isascii():
            return int(version)
        raise ConfigurationError(
            f"max_staleness must know the order of weight versions, and {version!r} is no decimal number: pass "
            "MaxStaleness(..., order=) with a function that returns the position of a version, or a list of all"
            + (", and current=, because the engine does not report adapters" if MARK in version else "")
        )

    def age(self, version: str | None, current: str | None) -> int | None:
        """Return the number of updates between a version and the current one.

        None: one of the two is None, or versions are numbers and the current one is `default`.

        Raises:
            ConfigurationError: The order does not know one of them, or an adapter's tokens are compared with `default`.
        """
        place, now = self.position(version), self.position(current)
        if current == START and (self.order is None or now == OLDEST):
            if MARK in str(version):
                raise ConfigurationError(
                    f"max_staleness must know the current adapter to tell the age of {version!r}, got {current!r}, the "
                    "version of the base weights: pass MaxStaleness(..., current=) with a function that returns a "
                    "version with the adapter"
                )
            return None
        return None if place is None or now is None else max(now - place, 0)

    def stale(self, versions: Iterable[str | None], current: str | None) -> bool:
        """Return whether one of these versions is too old. A trainer may ask again when it takes a group."""
        return any((self.age(version, current) or 0) > self.limit for version in versions)


_KNOWN_SECONDS = 0.2  # for which the version that the workers reported is used again
_PATIENCE = 5.0  # seconds in which a worker is asked again, if none has answered yet
_PAUSE = 0.5


@dataclass(slots=True)
class StalenessGate:
    """Decides for the groups of one run whether they are trained."""

    rule: MaxStaleness
    client: TokenEngine
    directory: Path | None = None
    """Directory of the ledger that decisions are written to; None: they are not recorded."""
    worker: str = "staleness"
    """Name of the writer, which is part of the names of its files."""
    _known: str | None = None  # the newest version that is known to have been the current one
    _known_at: float = -math.inf
    _waits_until: float | None = None  # for a first answer of a worker
    _sampled: set[str | None] = field(default_factory=set)  # versions not yet looked at
    _writer: LedgerWriter | None = None

    def __post_init__(self) -> None:
        if self.rule.current is None and not is_server(self.client):
            raise ConfigurationError(
                f"max_staleness needs the current weight version, which a {type(self.client).__name__} does not "
                "report: pass MaxStaleness(..., current=) with a function that returns it"
            )

    def sampled(self, versions: Iterable[str | None]) -> None:
        """Register versions that sampled tokens: the current one is none before them, even if no worker answers."""
        if self.rule.current is None:
            self._sampled.update(versions)

    async def current(self) -> str | None:
        """Return the current version; if no worker answers, the newest that is known."""
        if self.rule.current is not None:
            given: Any = self.rule.current()
            version: str | None = await given if inspect.isawaitable(given) else given
            return version
        if is_server(self.client) and time.monotonic() - self._known_at > _KNOWN_SECONDS:
            versions = set(await self._reported(self.client)) - {None}
            # A worker that restarted has the weights of its start; the others still have the current ones, or had.
            updated = versions - {START} or versions
            self._raise_to(min(updated, key=lambda one: self.rule.position(one) or 0, default=None))
            self._known_at = time.monotonic()
        for one in self._sampled:
            # The base weights of an adapter say nothing about its age.
            self._raise_to(None if one is None or MARK in one else one)
        self._sampled.clear()
        return self._known

    async def _reported(self, engine: ServerEngine) -> Collection[str | None]:
        """Return the versions of all workers that answer; the first time, wait a little for one."""
        while True:
            versions = (await engine.control.weight_versions()).values()
            if self._waits_until is None:
                self._waits_until = time.monotonic() + _PATIENCE
            if versions or time.monotonic() > self._waits_until:
                self._waits_until = -math.inf
                return versions
            await asyncio.sleep(_PAUSE)

    def _raise_to(self, version: str | None) -> None:
        """Register a version that is the current one, or was; the newest counts."""
        place, known = self.rule.position(version), self.rule.position(self._known)
        if place is not None and (known is None or place > known):
            self._known = version

    def decide(
        self,
        episodes: Sequence[Episode],
        current: str | None,
        *,
        retry: bool = False,
        others: Iterable[str | None] = (),
    ) -> Staleness:
        """Decide about a group, set and record `Episode.staleness`, and return the decision about the group.

        Args:
            episodes: The episodes of the group. If all have a recorded decision, that is returned.
            current: The current weight version.
            retry: Whether its task may be run again.
            others: Weight versions of further episodes of the group.
        """
        known = [one.staleness for one in episodes if one.staleness is not None]
        if known and len(known) == len(episodes):
            return next((one for one in known if one.dropped), known[0])
        versions = {*others, *(version for one in episodes for version in one.metrics.versions)}
        age = max((age for one in versions if (age := self.rule.age(one, current)) is not None), default=None)
        decision = StalenessDecision.KEPT
        if self.rule.action is not StaleAction.MASK and (age or 0) > self.rule.limit:
            again = retry and self.rule.action is StaleAction.RETRY
            decision = StalenessDecision.RETRIED if again else StalenessDecision.DROPPED
        group = Staleness(decision, self.rule.limit, StaleAction(self.rule.action).value, current, {}, age)
        for episode in episodes:
            self.note(episode, group)
        return group

    def note(self, episode: Episode, group: Staleness) -> None:
        """Set the decision about an episode, which follows from the one about its group, and record it."""
        ages = {version: self.rule.age(version, group.current) for version in episode.metrics.versions}
        decision = episode.staleness = replace(group, ages=ages)
        if decision.too_old and self.rule.action is StaleAction.MASK:
            decision = episode.staleness = replace(decision, decision=StalenessDecision.MASKED)
        if self.directory is None or episode.chain_end is None:
            return
        if self._writer is None:
            self._writer = LedgerWriter(self.directory, worker=self.worker)
        epoch, number, head = episode.chain_end
        chain = HashChain(self._writer.write, episode.id, epoch=epoch, number=number, head=head)
        data: StalenessData = {
            "limit": decision.limit,
            "action": decision.action,
            "order": "number" if self.rule.order is None else "given",
            "current": decision.current,
            "ages": [[version, age] for version, age in ages.items()],
            "age": decision.age,
            "decision": decision.decision.value,
            "time": time.time(),
        }
        chain.append(EventKind.STALENESS, data)
        episode.chain_end = (epoch, chain.number, chain.head)

    async def flushed(self) -> None:
        """Wait until all decisions are written."""
        if self._writer is not None:
            await self._writer.flushed()

    async def close(self) -> None:
        """Write the remaining decisions and close the file."""
        await self.flushed()
        if self._writer is not None:
            self._writer.close()
