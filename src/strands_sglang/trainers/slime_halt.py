"""slime's wish to stop, heard: `AbortFlag`, and the `Watch` that sets episodes aside when it is raised.

At the end of a batch slime raises a flag, aborts what its engines are doing, and waits for every episode without a
bound. The flag is a plain attribute of an object in slime's process.

Invariant: slime is never imported; without it nothing is ever aborted. One task looks at the flag, however many
episodes there are, and none when there are none.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

_SLIME = "slime.rollout.sglang_rollout"
_MILES = "miles.rollout"
_CALLERS = 8  # frames to look at
_LOOK = 0.02  # seconds between two looks


class AbortFlag:
    """Whether slime wants its episodes back."""

    def __init__(self, args: Any) -> None:
        """Find it.

        Args:
            args: slime's arguments, which its state is made with.
        """
        self._state = _of_miles()
        kind = getattr(sys.modules.get(_SLIME), "GenerateState", None)
        if self._state is None and kind is not None:
            # There is one where slime has called us; where it has not, we make none, which would load a tokenizer.
            known = getattr(kind, "_instances", None)
            self._state = known.get(kind) if isinstance(known, dict) else kind(args)

    def is_set(self) -> bool:
        """Return whether the flag is raised."""
        return bool(getattr(self._state, "aborted", False))


def _of_miles() -> Any:
    """Return the state of Miles' rollout that has called us; None: it has not.

    Miles has no state that can be asked for. Its adapter for functions of slime's form has one, and hands on only a
    part of it: it is in the adapter's frame.
    """
    frame = sys._getframe(1)
    for _ in range(_CALLERS):
        if frame is None or frame.f_back is None:
            return None
        frame = frame.f_back
        if str(frame.f_globals.get("__name__", "")).startswith(_MILES):
            state = getattr(frame.f_locals.get("input"), "state", None) or frame.f_locals.get("state")
            if hasattr(state, "aborted"):
                return state
    return None


class Watch:
    """Looks at the flags of live episodes, on one event loop."""

    def __init__(self) -> None:
        self._live: dict[object, tuple[AbortFlag, Callable[[], object]]] = {}
        self._task: asyncio.Task[None] | None = None

    def begin(self, flag: AbortFlag, raised: Callable[[], object]) -> object:
        """Watch a flag for an episode; return what ends that.

        Args:
            flag: Which.
            raised: Called when it is raised, and again until the watching ends.
        """
        key = object()
        self._live[key] = (flag, raised)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._look())
        return key

    def end(self, key: object) -> None:
        """Watch no longer."""
        self._live.pop(key, None)

    async def _look(self) -> None:
        while self._live:
            for flag, raised in list(self._live.values()):
                if flag.is_set():
                    try:
                        raised()
                    except Exception:
                        logger.exception("an episode could not be set aside")
            await asyncio.sleep(_LOOK)
