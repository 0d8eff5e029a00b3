"""Runs one call as a process: writes its input, reads its output, enforces limits and kills it: `SandboxCall`.

Invariants: when a call is over, for whatever reason including cancellation, its process and all processes it started
have been killed. Memory for output is bounded by what is shown. Nothing that the code does raises here: an error is the
machine's.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import select
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from strands_sglang.tools.process_usage import descendants, files_in, memory_of, socket_memory_of
from strands_sglang.tools.sandbox_types import SandboxEndReason, SandboxLimits, SandboxResult, exit_note

_SAMPLE_SECONDS = 0.1  # time between two samples of resource usage
_CHUNK = 65536
_SETUP_SECONDS = 60.0  # time limit for the setup of a sandbox, which takes about 10 ms on an idle machine
_DRAIN_SECONDS = 5.0  # time limit for reading the rest of a killed process's output, which takes milliseconds
_INFO_SECONDS = 2.0  # time limit for bubblewrap's report, which it writes right after parsing its arguments
_WATCHERS = 4  # threads that sample resource usage for all calls of this process


class BoundedOutput:
    """Keeps the first and the last bytes of a stream."""

    __slots__ = ("_half", "_head", "_tail", "seen")

    def __init__(self, shown: int) -> None:
        """Create an empty buffer that keeps `shown` bytes in total."""
        self._half = shown // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.seen = 0

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        self.seen += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            if len(self._tail) > 4 * self._half:  # not for every chunk, which would be quadratic
                del self._tail[: -self._half]

    def text(self) -> str:
        """Return the kept bytes as text, with a note where bytes are omitted. Invalid UTF-8 becomes U+FFFD."""
        tail = self._tail[-self._half :] if self._half else bytearray()
        omitted = self.seen - len(self._head) - len(tail)
        if not omitted:
            return (self._head + tail).decode("utf-8", "replace")
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(self._head)  # drops an incomplete character
        start = next((place for place in range(min(4, len(tail))) if tail[place] & 0xC0 != 0x80), min(3, len(tail)))
        return f"{head}\n[... {omitted} bytes left out ...]\n{tail[start:].decode('utf-8', 'replace')}"


class StartSignal:
    """Pipe on which the bootstrap signals that it starts the model's code.

    The bootstrap writes to it after the setup and before it reads the code, and closes it. The code cannot revoke the
    signal, and a sandbox that failed to start cannot send it. The time limit of a call starts with the signal, so that
    a slow setup on a busy machine does not count.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)

    @property
    def descriptor(self) -> int:
        """Descriptor that the bootstrap writes to."""
        return self._writer

    @property
    def argument(self) -> str:
        """Argument of the bootstrap."""
        return f"ready={self._writer}"

    def received(self) -> bool:
        """Return whether the signal was sent. Call it once, after the process has ended."""
        try:
            return bool(os.read(self._reader, 1))
        except BlockingIOError:
            return False

    async def wait(self) -> None:
        """Wait for the signal."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._reader, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._reader)

    def close(self) -> None:
        """Close both ends of the pipe."""
        for descriptor in (self._reader, self._writer):
            os.close(descriptor)


class InitProcess:
    """Init process of a sandbox's pid namespace, whose id bubblewrap writes to a pipe.

    bubblewrap ends the sandbox when it is killed, but only after the setup: killed in its first milliseconds, it leaves
    a process behind. Therefore the init process is killed directly, and the kernel kills all others in its namespace.
    Only a child of the bubblewrap that reported it is ever killed.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        self._pid: int | None = None

    @property
    def descriptor(self) -> int:
        """Descriptor that bubblewrap writes to (`--info-fd`)."""
        return self._writer

    def started(self) -> None:
        """Close our copy of the write end, after bubblewrap has inherited it."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def close(self) -> None:
        """Close both ends of the pipe."""
        self.started()
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1

    def kill(self, bubblewrap: int) -> None:
        """Kill the init process; in the first milliseconds of a call this waits until its id is known."""
        self.started()  # otherwise the read would not end if bubblewrap exits without a report
        if self._pid is None and self._reader >= 0:
            self._pid = self._read_pid()
        if self._pid and _parent(self._pid) == bubblewrap:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, signal.SIGKILL)

    def _read_pid(self) -> int:
        """Return the process id, or 0 if bubblewrap exited without reporting it."""
        report = b""
        poll = select.poll()  # select() does not support descriptors above 1,023
        poll.register(self._reader, select.POLLIN)
        while poll.poll(_INFO_SECONDS * 1000):
            more = os.read(self._reader, 4096)
            report += more
            found = re.search(rb'"child-pid"\s*:\s*(\d+)\b\s*[,}]', report)
            if found or not more:
                return int(found[1]) if found else 0
        return 0


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


@cache
def _watchers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_WATCHERS, thread_name_prefix="sandbox-watch")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watchers.cache_clear)  # threads do not survive a fork


@dataclass(slots=True)
class SandboxCall:
    """One running call."""

    limits: SandboxLimits
    workdir: str | None = None
    """Directory in the sandbox whose files are counted; None: files are not counted."""
    init: InitProcess | None = None
    start_signal: StartSignal | None = None
    """Signals the start of the code and of its time limit; None: both start at once."""
    process: asyncio.subprocess.Process | None = None
    stdout: BoundedOutput = field(init=False)
    stderr: BoundedOutput = field(init=False)
    exceeded: SandboxEndReason | None = None

    def __post_init__(self) -> None:
        self.stdout, self.stderr = BoundedOutput(self.limits.output), BoundedOutput(self.limits.output)

    async def run(self, command: Sequence[str], code: bytes, **settings: Any) -> SandboxResult:
        """Run a command that reads code from stdin; settings are arguments of `subprocess.Popen`."""
        began = time.monotonic()
        process = await self._start(command, settings)
        io = asyncio.ensure_future(self._communicate(process, code))
        watch = asyncio.ensure_future(self._watch(process.pid))
        try:
            await self._wait_for_start({io, watch})
            if self.exceeded is None:
                await asyncio.wait({io, watch}, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if not io.done() and self.exceeded is None:
                self.exceeded = SandboxEndReason.TIMED_OUT
        finally:
            self.kill()
            watch.cancel()
            # Every process that had the pipes open is dead, so the rest of the output is read at once.
            await asyncio.wait({io, watch}, timeout=_DRAIN_SECONDS)
            io.cancel()
            _raise_error(io)
            _raise_error(watch)
        return self._result(process.returncode or 0, time.monotonic() - began)

    async def _wait_for_start(self, others: set[asyncio.Future[None]]) -> None:
        """Wait until the code starts, another task ends, or the setup takes too long."""
        if self.start_signal is None:
            return
        started = asyncio.ensure_future(self.start_signal.wait())
        try:
            done, _ = await asyncio.wait(
                {*others, started}, timeout=_SETUP_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                self.exceeded = SandboxEndReason.TIMED_OUT
        finally:
            started.cancel()
            await asyncio.wait({started})

    async def _start(self, command: Sequence[str], settings: dict[str, Any]) -> asyncio.subprocess.Process:
        """Start a command; if the call is cancelled meanwhile, kill it with `kill` and not by the event loop."""
        pipe = asyncio.subprocess.PIPE
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, limit=_CHUNK, **settings
            )
        )
        try:
            self.process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._kill_started)
            await asyncio.wait({starting}, timeout=_DRAIN_SECONDS)
            if self.process is not None:
                await asyncio.wait({asyncio.ensure_future(self.process.communicate())}, timeout=_DRAIN_SECONDS)
            raise
        if self.init is not None:
            self.init.started()
        return self.process

    def _kill_started(self, starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
        if not starting.cancelled() and starting.exception() is None:
            self.process = starting.result()
            self.kill()

    def kill(self) -> None:
        """Kill the process and all it started; does nothing if it has ended."""
        if self.process is None or self.process.returncode is not None:
            return
        try:
            if self.init is not None:
                self.init.kill(self.process.pid)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                # The process group: without isolation there is no other handle. With it, bubblewrap ends the sandbox.
                os.killpg(self.process.pid, signal.SIGKILL)

    async def _communicate(self, process: asyncio.subprocess.Process, code: bytes) -> None:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        await asyncio.gather(
            _write(process.stdin, code),
            self._read(process.stdout, self.stdout),
            self._read(process.stderr, self.stderr),
        )
        await process.wait()

    async def _read(self, stream: asyncio.StreamReader, output: BoundedOutput) -> None:
        while data := await stream.read(_CHUNK):
            output.feed(data)
            if self.exceeded is None and self.stdout.seen + self.stderr.seen > self.limits.flood:
                self.exceeded = SandboxEndReason.FLOODED
                self.kill()

    async def _watch(self, pid: int) -> None:
        """Sample the resource usage of a process and its descendants until it exceeds a limit."""
        loop, pause = asyncio.get_running_loop(), _SAMPLE_SECONDS
        while self.exceeded is None:
            await asyncio.sleep(pause)
            began = time.monotonic()
            exceeded = await loop.run_in_executor(_watchers(), self._sample, pid)
            pause = max(_SAMPLE_SECONDS, time.monotonic() - began)  # slow samples use at most half of a processor
            self.exceeded = self.exceeded or exceeded

    def _sample(self, pid: int) -> SandboxEndReason | None:
        """Return the limit that a process and its descendants exceed, or None.

        Runs in a thread: the code determines how long it takes, because the kernel needs long to count the memory of a
        process with tens of thousands of mappings.
        """
        pids = descendants(pid)
        if memory_of(pids, self.limits.memory) + socket_memory_of(pids) > self.limits.memory:
            return SandboxEndReason.MEMORY
        if self.workdir is not None and files_in(pids, self.workdir) > self.limits.files:
            return SandboxEndReason.FILES
        return None

    def _result(self, status: int, seconds: float) -> SandboxResult:
        stdout, stderr, limits = self.stdout.text(), self.stderr.text(), self.limits
        if self.exceeded is None:
            reason = SandboxEndReason.FAILED if status else SandboxEndReason.FINISHED
            return SandboxResult(reason, stdout, stderr, status, seconds, exit_note(status, stderr))
        notes = {
            SandboxEndReason.TIMED_OUT: f"timed out after {limits.seconds:g} seconds",
            SandboxEndReason.MEMORY: f"ended: more than {limits.memory // 2**20} MiB of memory",
            SandboxEndReason.FILES: f"ended: more than {limits.files} files",
            SandboxEndReason.FLOODED: f"ended: more than {limits.flood} bytes of output",
        }
        return SandboxResult(self.exceeded, stdout, stderr, None, seconds, notes[self.exceeded])


async def _write(stdin: asyncio.StreamWriter, code: bytes) -> None:
    with contextlib.suppress(OSError):  # the process ended before it read everything
        stdin.write(code)
        await stdin.drain()
    with contextlib.suppress(OSError):
        stdin.close()
        await stdin.wait_closed()


def _raise_error(task: asyncio.Future[None]) -> None:
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        raise error
