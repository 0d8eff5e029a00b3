"""Python's garbage collector while many agents run.

Every copied message is some dozen new objects, and Python looks through the young ones after each 700. With thousands
of agents alive, that is a large part of all the work, and finds nothing: agents end by being let go of.

Invariant: how the collector was set before comes back with the last run that ends.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (10_000, 5, 1_000)
"""New objects before the collector looks at them; how often it does so before it looks at the older ones; and again. A
look at the older ones holds everything up for as long as there are live agents: 0.3 ms each."""

_lock = threading.Lock()
_runs = 0
_before: tuple[int, int, int] | None = None


@contextmanager
def calm_collector() -> Iterator[None]:
    """Have the collector look less often, unless it is off or set higher already."""
    global _runs, _before
    with _lock:
        if _runs == 0:
            _before = gc.get_threshold()
            if 0 < _before[0] < _THRESHOLDS[0]:
                gc.set_threshold(*_THRESHOLDS)
        _runs += 1
    try:
        yield
    finally:
        with _lock:
            _runs -= 1
            if _runs == 0 and _before is not None:
                gc.set_threshold(*_before)
