"""What this process knows about reaching a server: whether it ever answered, and since when it does not.

An address that never answered is probably wrong, so a call to it gives up early and says what to look at; one that did
answer is down, and is waited for. Thousands of calls lose one server at the same moment: what is logged about it is
logged for all of them together.

Invariant: one record for each address, shared by all clients, loops and threads of the process; an answer, whatever it
says, ends an outage. Single attributes are written, never two that must agree, so there is no lock.
"""

from __future__ import annotations

import logging
import time

from yarl import URL

from strands_sglang.engine.faults import TransientFault
from strands_sglang.published_errors import SGLangConnectionError

logger = logging.getLogger(__name__)

_EVERY = 30.0
"""Seconds between two lines about one outage."""
# Said by a router or proxy that stands before a server that does not answer.
_NOBODY_THERE = frozenset({502, 503, 504})


class Contact:
    """What is known about one address."""

    __slots__ = ("_next_line", "_unsaid", "answered", "served", "unreachable_since", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        """The address, as it may be shown."""
        self.answered = False
        """Whether it ever answered anything."""
        self.served = False
        """Whether it ever did what it was asked to."""
        self.unreachable_since: float | None = None
        """When its present outage began, by the monotonic clock; None: there is none."""
        self._next_line = 0.0
        self._unsaid = 0

    def unreachable_seconds(self) -> float:
        """Return for how long its present outage has lasted; 0: there is none."""
        since = self.unreachable_since
        return 0.0 if since is None else time.monotonic() - since

    def heard(self, *, served: bool = True) -> None:
        """Note an answer.

        Args:
            served: Whether it was the answer that was asked for, and no refusal.
        """
        self.answered = True
        if served:
            self.served = True
        since, self.unreachable_since = self.unreachable_since, None
        if since is not None:
            if self._next_line:
                seconds = time.monotonic() - since
                logger.warning("server=<%s>, down_seconds=<%.0f> | the engine answers again", self.url, seconds)
            self._next_line, self._unsaid = 0.0, 0

    def failed(self, fault: TransientFault) -> None:
        """Note a failed attempt: an outage that begins or goes on, or an answer that says no."""
        status = getattr(fault.error, "status", None)
        if isinstance(fault.error, SGLangConnectionError) or status in _NOBODY_THERE:
            if self.unreachable_since is None:
                self.unreachable_since = time.monotonic()
            self.answered = self.answered or status is not None
        elif status is not None:
            self.heard(served=False)

    def say(self, fault: TransientFault, delay: float) -> None:
        """Log that an attempt failed and another follows: at once, then every 30 seconds for all calls together."""
        self._unsaid += 1
        now = time.monotonic()
        loud = now >= self._next_line
        if loud:
            failures, self._unsaid, self._next_line = self._unsaid, 0, now + _EVERY
        else:
            failures = 1
        logger.log(
            logging.WARNING if loud else logging.DEBUG,
            "server=<%s>, failures=<%d>, down_seconds=<%.0f>, delay=<%.2f>, fault=<%s> | trying again",
            self.url,
            failures,
            self.unreachable_seconds(),
            delay,
            fault,
        )


_contacts: dict[str, Contact] = {}


def contact(base_url: URL | str) -> Contact:
    """Return the record of an address, made if there is none."""
    address = str(base_url).rstrip("/")
    found = _contacts.get(address)
    return found if found is not None else _contacts.setdefault(address, Contact(address))
