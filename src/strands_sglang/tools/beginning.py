"""Whether the model's code was reached in a sandbox: `Beginning`.

The prologue says so through a pipe, when everything is set up and before it reads a line of the code, and closes it.
What the code writes or returns afterwards cannot take it back, nor can a sandbox that was never made say it.

The limit of a call's time counts from here: how long a busy machine takes to make a sandbox is not the code's doing.

Invariant: a call whose code has begun has a result; one whose code has not is nobody's fault but the machine's.
"""

from __future__ import annotations

import asyncio
import os


class Beginning:
    """A pipe through which the prologue says that it reads the code now."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)

    @property
    def descriptor(self) -> int:
        """Where the prologue writes."""
        return self._writer

    @property
    def word(self) -> str:
        """What the prologue is told."""
        return f"ready={self._writer}"

    def happened(self) -> bool:
        """Return whether it was said. To be asked once, when the call is over."""
        try:
            return bool(os.read(self._reader, 1))
        except BlockingIOError:
            return False

    async def wait(self) -> None:
        """Wait until it is said."""
        loop, said = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._reader, said.set)
        try:
            await said.wait()
        finally:
            loop.remove_reader(self._reader)

    def close(self) -> None:
        """Let go of both ends."""
        for descriptor in (self._reader, self._writer):
            os.close(descriptor)
