"""How long to wait before trying again: exponential, capped, with full jitter.

Full jitter (anything from zero to the ceiling) spreads thousands of episodes that all lost the same worker at the
same moment; equal waits would bring them back as one wave.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waiting times of consecutive failures."""

    base: float
    """Ceiling of the first wait, in seconds."""
    cap: float
    """Ceiling of every wait that the server does not name, in seconds."""
    rng: random.Random = field(default_factory=random.SystemRandom, repr=False, compare=False)
    """Source of jitter: the system's, so that forked workers do not draw the same waits."""

    def delay(self, failures: int, retry_after: float | None = None) -> float:
        """Return the seconds to wait after `failures` (from 1) failures in a row.

        A server that names a time is waited for at least that long, with jitter on top.
        """
        if retry_after is not None:
            return retry_after + self.rng.uniform(0, self.base)
        # The exponent is bounded so that a long outage cannot overflow the float.
        return self.rng.uniform(0, min(self.cap, self.base * 2.0 ** min(failures - 1, 60)))
