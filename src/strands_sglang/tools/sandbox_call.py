"""One call of the sandbox: a process started, fed, read, watched, and ended with all it started.

Invariant: when a call is over, for whatever reason (cancelled, too), its process has been killed, and with it every
process it had started. No more of its output is kept than is shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from strands_sglang.tools.beginning import Beginning
from strands_sglang.tools.capture import Capture
from strands_sglang.tools.first_process import FirstProcess
from strands_sglang.tools.outcome import Ending, Outcome, note_for
from strands_sglang.tools.process_tree import descendants, files_in, memory_of, sockets_of
from strands_sglang.tools.sandbox_limits import SandboxLimits

_LOOK = 0.1  # seconds between two looks at what a call uses
_CHUNK = 65536
_SET_UP = 60.0  # seconds for a sandbox to be made; it takes a hundredth of one on an idle machine
_LAST_WORDS = 5.0  # seconds to read what a killed process has written; it takes milliseconds
_WATCHERS = 4  # threads that look, for all calls of this process


@cache
def _watchers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_WATCHERS, thread_name_prefix="sandbox-watch")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watchers.cache_clear)  # threads do not come along


@dataclass(slots=True)
class Call:
    """A call under way."""

    limits: SandboxLimits
    """What it may use."""
    work: str | None = None
    """Directory inside whose files are counted; None: they are not."""
    first: FirstProcess | None = None
    """The first process inside the sandbox; None: there is no sandbox."""
    beginning: Beginning | None = None
    """Says when the code begins, and its time with it; None: at once."""
    process: asyncio.subprocess.Process | None = None
    """What was started; None before."""
    stdout: Capture = field(init=False)
    """What it wrote there."""
    stderr: Capture = field(init=False)
    """What it wrote there."""
    broken: Ending | None = None
    """The limit that we ended it for; None: none."""

    def __post_init__(self) -> None:
        self.stdout, self.stderr = Capture(self.limits.output), Capture(self.limits.output)

    async def run(self, command: Sequence[str], code: bytes, **settings: Any) -> Outcome:
        """Run a command that reads code from stdin.

        Args:
            command: What to start.
            code: Its input.
            **settings: For `subprocess.Popen`: `env`, `cwd`, `pass_fds`, the user.
        """
        began = time.monotonic()
        process = await self._started(command, settings)
        work = asyncio.ensure_future(self._served(process, code))
        watch = asyncio.ensure_future(self._watched(process.pid))
        try:
            await self._begun({work, watch})
            if self.broken is None:
                await asyncio.wait({work, watch}, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and self.broken is None:
                self.broken = Ending.TIMED_OUT
        finally:
            self.kill()
            watch.cancel()
            # All that had the pipes open is dead, so what is left in them is read and this ends at once.
            await asyncio.wait({work, watch}, timeout=_LAST_WORDS)
            work.cancel()
            _seen(work)
        return self._outcome(process.returncode or 0, time.monotonic() - began)

    async def _begun(self, others: set[asyncio.Future[None]]) -> None:
        """Wait until the code begins, or something else is over, or the sandbox takes too long to make."""
        if self.beginning is None:
            return
        begun = asyncio.ensure_future(self.beginning.wait())
        try:
            done, _ = await asyncio.wait({*others, begun}, timeout=_SET_UP, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                self.broken = Ending.TIMED_OUT
        finally:
            begun.cancel()
            await asyncio.wait({begun})

    async def _started(self, command: Sequence[str], settings: dict[str, Any]) -> asyncio.subprocess.Process:
        """Start a command; if the call is cancelled meanwhile, end it our way, and not by the event loop's."""
        pipe = asyncio.subprocess.PIPE
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, limit=_CHUNK, **settings
            )
        )
        try:
            self.process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._end_at_once)
            await asyncio.wait({starting}, timeout=_LAST_WORDS)
            if self.process is not None:
                await asyncio.wait({asyncio.ensure_future(self.process.communicate())}, timeout=_LAST_WORDS)
            raise
        if self.first is not None:
            self.first.started()
        return self.process

    def _end_at_once(self, starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
        if not starting.cancelled() and starting.exception() is None:
            self.process = starting.result()
            self.kill()

    def kill(self) -> None:
        """End the process and all it started; nothing happens if it has ended."""
        if self.process is None or self.process.returncode is not None:
            return
        try:
            if self.first is not None:
                self.first.kill(self.process.pid)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                # The group: without a sandbox that is all we can reach. With one, bubblewrap takes everything along.
                os.killpg(self.process.pid, signal.SIGKILL)

    async def _served(self, process: asyncio.subprocess.Process, code: bytes) -> None:
        """Feed and read a process until it has ended."""
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        await asyncio.gather(
            _feed(process.stdin, code), self._read(process.stdout, self.stdout), self._read(process.stderr, self.stderr)
        )
        await process.wait()

    async def _read(self, stream: asyncio.StreamReader, capture: Capture) -> None:
        while data := await stream.read(_CHUNK):
            capture.feed(data)
            if self.broken is None and self.stdout.seen + self.stderr.seen > self.limits.flood:
                self.broken = Ending.FLOODED
                self.kill()

    async def _watched(self, pid: int) -> None:
        """Look at what a process and its descendants use until it is too much."""
        loop, pause = asyncio.get_running_loop(), _LOOK
        while self.broken is None:
            await asyncio.sleep(pause)
            began = time.monotonic()
            found = await loop.run_in_executor(_watchers(), self._look, pid)
            pause = max(_LOOK, time.monotonic() - began)  # whoever makes looking slow does not get a processor for it
            self.broken = self.broken or found

    def _look(self, pid: int) -> Ending | None:
        """Return the limit that a process and its descendants are beyond; None: none. In a thread of its own.

        The code decides how long this takes: a process with tens of thousands of mappings takes the kernel long to
        count, and no event loop may wait for that.
        """
        pids = descendants(pid)
        if memory_of(pids, self.limits.memory) + sockets_of(pids) > self.limits.memory:
            return Ending.MEMORY
        if self.work is not None and files_in(pids, self.work) > self.limits.files:
            return Ending.FILES
        return None

    def _outcome(self, status: int, seconds: float) -> Outcome:
        stdout, stderr, limits = self.stdout.text(), self.stderr.text(), self.limits
        if self.broken is None:
            ended = Ending.FAILED if status else Ending.FINISHED
            return Outcome(ended, stdout, stderr, status, seconds, note_for(status, stderr))
        notes = {
            Ending.TIMED_OUT: f"timed out after {limits.seconds:g} seconds",
            Ending.MEMORY: f"ended: more than {limits.memory // 2**20} MiB of memory",
            Ending.FILES: f"ended: more than {limits.files} files",
            Ending.FLOODED: f"ended: more than {limits.flood} bytes of output",
        }
        return Outcome(self.broken, stdout, stderr, None, seconds, notes[self.broken])


async def _feed(stdin: asyncio.StreamWriter, code: bytes) -> None:
    with contextlib.suppress(OSError):  # it ended before it had read everything
        stdin.write(code)
        await stdin.drain()
    with contextlib.suppress(OSError):
        stdin.close()
        await stdin.wait_closed()


def _seen(task: asyncio.Future[None]) -> None:
    """Raise what went wrong with reading, unless it was cancelled."""
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        raise error
