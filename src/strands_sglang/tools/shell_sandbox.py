"""A sandbox for shell commands whose files are kept between calls, as a Strands `Sandbox`: `ShellSandbox`.

Each call is a fresh sandbox, as in `sandbox.py`. Its files are unpacked from an archive before the command runs and
packed into another one afterwards, both times inside the sandbox. The archives are unnamed files of this process, which
only passes them on: nothing of the files is ever read, written or deleted by code outside.

Invariants: two sandboxes share no file that can be changed. The files after a call are those that the command left, or,
if a limit ended the call, those from before it. The model gets a result for what its command did only; a failure of the
machine is a `SandboxUnavailableError`, after which the files are those from before the call.
"""

from __future__ import annotations

import asyncio
import base64
import os
import shlex
import tempfile
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from strands.sandbox.errors import SandboxTimeoutError
from strands.sandbox.posix_shell import PosixShellSandbox, validate_env_keys
from strands.sandbox.types import ExecutionResult, FileInfo, StreamChunk
from strands.types.tools import AgentTool

from strands_sglang._checks import check_int, check_number
from strands_sglang.engine.connections import Slots
from strands_sglang.errors import SandboxUnavailableError
from strands_sglang.tools.bubblewrap import find_bubblewrap, probe_privileges
from strands_sglang.tools.bubblewrap_call import only_outages, run_in_bubblewrap
from strands_sglang.tools.command_runner import HEADER
from strands_sglang.tools.interpreter import find_interpreter
from strands_sglang.tools.sandbox_types import Privileges, SandboxEndReason, SandboxLimits, SandboxResult

_RUNNER = Path(__file__).with_name("command_runner.py").read_text()
_AT_ONCE = max(4, 2 * (os.cpu_count() or 1))
_POLL_SECONDS = 0.005  # while another call uses the same sandbox
_KILLED = 137  # exit status of a command that a limit ended
_slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, Slots]] = weakref.WeakKeyDictionary()


class ShellSandbox(PosixShellSandbox):
    """Shell commands and files of one episode, isolated from the host and from other episodes.

    Example:
        ```python
        def build(task, model):
            return Agent(model=model, sandbox=ShellSandbox())  # with the tools `shell` and `file_editor`
        ```
    """

    def __init__(
        self,
        *,
        limits: SandboxLimits | None = None,
        concurrency: int | None = None,
        python: str = "",
        bwrap: str = "bwrap",
        privileges: Privileges | None = None,
    ) -> None:
        """Test that a sandbox works; the result is remembered, so further objects take no time.

        Args:
            limits: Resource limits of one call; None: the defaults, with 60 seconds.
            concurrency: Maximum number of concurrent calls per event loop, of all objects that are made with this
                number; None: twice the number of processors, but at least 4.
            python: Path of the interpreter that starts the commands; empty: the one of this process.
            bwrap: Name or path of bubblewrap.
            privileges: Privileges to start bubblewrap with; None: the best that work.

        Raises:
            SandboxUnavailableError: bubblewrap is not installed or cannot create a sandbox on this machine, or the
                machine has no /bin/sh and /bin/tar.
        """
        check_int("concurrency", concurrency)
        self.limits = limits or SandboxLimits(seconds=60)
        self.concurrency = concurrency or _AT_ONCE
        self._settings: dict[str, Any] = {
            "limits": self.limits,
            "concurrency": concurrency,
            "python": python,
            "bwrap": bwrap,
            "privileges": privileges,
        }
        self._program = find_bubblewrap(bwrap)
        self._interpreter = find_interpreter(python, ())
        self.privileges = probe_privileges(self._program, self._interpreter, privileges)
        """Privileges that bubblewrap is started with."""
        for needed in ("/bin/sh", "/bin/tar"):
            if not os.access(needed, os.X_OK):
                raise SandboxUnavailableError(f"ShellSandbox needs {needed}, which this machine does not have")
        self._files: IO[bytes] | None = None  # the archive after the last call; None: there are no files
        self._turn = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._settings), ()  # without files

    async def execute_streaming(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        """Run a command; what it prints arrives at its end. `timeout`: at most `SandboxLimits.seconds`.

        Raises:
            SandboxTimeoutError: The command did not end in time.
            SandboxUnavailableError: The machine failed and not the command.
        """
        for part in await self._run(command, self.limits, timeout, cwd, env):
            yield part

    async def read_file(self, path: str, **kwargs: Any) -> bytes:
        """Return a file, read inside the sandbox; FileNotFoundError also if holes make it larger than all files."""
        result = await _Whole(self).execute(f"base64 < {shlex.quote(path)}")
        if result.exit_code != 0:
            raise FileNotFoundError(result.stderr or f"{path} cannot be read")
        return base64.b64decode(result.stdout)

    async def list_files(self, path: str, **kwargs: Any) -> list[FileInfo]:
        """Return the entries of a directory: all of them, also if a command could not show so many."""
        return await _Whole(self).list_files(path)

    def get_tools(self) -> list[AgentTool]:
        """Return the tools `shell` and `file_editor` of the Strands SDK, for this sandbox."""
        from strands.vended_tools.file_editor import make_file_editor
        from strands.vended_tools.shell import make_shell

        return [make_shell(sandbox=self), make_file_editor(sandbox=self)]

    async def close(self) -> None:
        """Delete the files. A rollout does it when the episode ends, for the sandbox of its agent."""
        async with self._alone():
            if self._files is not None:
                self._files.close()
                self._files = None

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Wait for the calls that were made before."""
        while not self._turn.acquire(blocking=False):  # noqa: ASYNC110 - callers may be on different event loops
            await asyncio.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            self._turn.release()

    async def _run(
        self,
        command: str,
        limits: SandboxLimits,
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
    ) -> list[StreamChunk | ExecutionResult]:
        """Run a command on the files, one after the other, as soon as a slot is free; return what its stream has."""
        validate_env_keys(env or {})
        check_number("timeout", timeout, finite=True)
        limits = replace(limits, seconds=min(limits.seconds, timeout or limits.seconds))
        of_loop = _slots.setdefault(asyncio.get_running_loop(), {})
        slots = of_loop.setdefault(self.concurrency, Slots(self.concurrency))
        async with self._alone():
            if not slots.take():
                await slots.wait()
            try:
                with only_outages(self._program, (id(self), command)):
                    result = await self._call(command, limits, cwd or "", env or {})
            finally:
                slots.release()
        if result.end_reason is SandboxEndReason.TIMED_OUT:
            raise SandboxTimeoutError(limits.seconds, result.stdout, result.stderr)
        parts: list[StreamChunk | ExecutionResult] = []
        parts += [StreamChunk(result.stdout, "stdout")] if result.stdout else []
        parts += [StreamChunk(result.stderr, "stderr")] if result.stderr else []
        return [*parts, ExecutionResult(result.status or 0, result.stdout, result.stderr)]

    async def _call(self, command: str, limits: SandboxLimits, cwd: str, env: dict[str, str]) -> SandboxResult:
        """Run a command on the files of now, and keep those that it leaves."""
        with ExitStack() as unused:
            after = unused.enter_context(tempfile.TemporaryFile())
            descriptors = [] if self._files is None else [self._files.fileno()]
            arguments = command, cwd, env, descriptors[0] if descriptors else -1, after.fileno()
            result = await run_in_bubblewrap(
                self._program,
                self._interpreter,
                limits,
                self.privileges,
                f"{_RUNNER}\nmain{arguments!r}\n".encode(),
                programs=True,
                descriptors=[*descriptors, after.fileno()],
            )
            status = os.pread(after.fileno(), HEADER, 0).strip(b"\0 ")
            if status and result.status is not None:
                unused.pop_all()
                if self._files is not None:
                    self._files.close()
                self._files = after
                return replace(result, status=int(status))
        note = result.note if result.status is None else "ended: the command ended its own sandbox"
        whole = f"{result.stderr}\n[{note}; the files are those from before]".lstrip("\n")
        return replace(result, status=_KILLED, stderr=whole)


class _Whole(PosixShellSandbox):
    """The same sandbox for the commands of its own methods: what they print is not cut."""

    def __init__(self, box: ShellSandbox) -> None:
        self._box = box

    async def execute_streaming(
        self, command: str, **options: Any
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        limits = self._box.limits
        room = max(limits.flood, limits.disk * 7 // 5)  # all files as base64, with its line breaks
        limits = replace(limits, output=2 * room, flood=room)
        for part in await self._box._run(command, limits, **options):
            yield part
