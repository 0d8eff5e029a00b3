"""What a program writes, as far as somebody will look at it.

Invariant: memory is bounded by what is shown, however much is written.
"""

from __future__ import annotations

import codecs


class Capture:
    """The first and the last bytes of a stream."""

    __slots__ = ("_half", "_head", "_tail", "seen")

    def __init__(self, shown: int) -> None:
        """Begin with nothing.

        Args:
            shown: Bytes to keep in all.
        """
        self._half = shown // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.seen = 0
        """Bytes that were written."""

    def feed(self, data: bytes) -> None:
        """Take what was written next."""
        self.seen += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            if len(self._tail) > 4 * self._half:  # not at every piece: that would be quadratic
                del self._tail[: -self._half]

    def text(self) -> str:
        """Return what is shown, with a note where something was left out. Bytes that are no UTF-8 become U+FFFD."""
        tail = self._tail[-self._half :] if self._half else bytearray()
        left_out = self.seen - len(self._head) - len(tail)
        if not left_out:
            return (self._head + tail).decode("utf-8", "replace")
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(self._head)  # half a character is left off
        start = next((place for place in range(min(4, len(tail))) if tail[place] & 0xC0 != 0x80), min(3, len(tail)))
        return f"{head}\n[... {left_out} bytes left out ...]\n{tail[start:].decode('utf-8', 'replace')}"
