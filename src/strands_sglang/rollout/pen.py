"""Writing down one episode, until it is over: `Pen`.

Invariant: behind the closing of an episode nothing is written but its reward and its end, whatever still runs of it.
What an episode has to say is always written: where words cannot be put in JSON, as the nearest that can.
"""

from __future__ import annotations

import threading
from array import array
from typing import Any

from strands_sglang.errors import CallCancelledError
from strands_sglang.ledger.chain import Chain
from strands_sglang.ledger.event import EventKind


class Pen:
    """Writes the events of one episode, from any thread."""

    def __init__(self, episode: str, chain: Chain | None) -> None:
        """Take it up.

        Args:
            episode: Id of the episode.
            chain: Where events are written; None: nowhere.
        """
        self._episode, self._chain = episode, chain
        self.lock = threading.RLock()
        """Held while an event is written; hold it to write several that belong together."""
        self.closed = False
        """Whether the episode is over."""

    def close(self) -> None:
        """Take the pen from whatever still runs of the episode."""
        with self.lock:
            self.closed = True

    def check_open(self) -> None:
        """Raise CallCancelledError when the episode is over."""
        if self.closed:
            raise CallCancelledError(f"episode {self._episode} is over")

    def write(
        self,
        kind: EventKind,
        data: dict[str, Any],
        arrays: dict[str, array[Any]] | None = None,
        *,
        ends: bool = False,
    ) -> None:
        """Write an event; `ends`: whether it is part of the end, and so may come when the episode is over.

        Raises:
            CallCancelledError: The episode is over, and this is not its end.
            LedgerError: The ledger cannot be written.
        """
        with self.lock:
            if not ends and kind not in (EventKind.REWARD, EventKind.END):
                self.check_open()
            if self._chain is None:
                return
            try:
                self._chain.append(kind, data, arrays)
            except TypeError:
                self._chain.append(kind, _plain(data), arrays)


def _plain(value: Any) -> Any:
    """Return the nearest to a value that JSON can hold."""
    if isinstance(value, dict):
        return {str(_plain(name)): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()  # a number of numpy's
    if isinstance(value, str):
        return str(value).encode(errors="backslashreplace").decode()
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 1 << 63):
        return value
    return _plain(repr(value))
