"""Python code in a sandbox: `PythonSandbox`.

    sandbox = PythonSandbox(limits=SandboxLimits(seconds=5), packages=("numpy", "sympy"))
    outcome = await sandbox.run("print(6 * 7)")

Each call is a fresh interpreter in a fresh sandbox: nothing is kept from one to the next, so a call that is run again
has no more effect than it had, and episodes that share a sandbox cannot see each other.

Invariant: code is never run with less isolation than was asked for. What cannot be made on this machine is refused when
the sandbox is constructed, not when the first model uses it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

from strands_sglang.engine.slots import Slots
from strands_sglang.errors import ConfigurationError, SandboxUnavailableError
from strands_sglang.tools.beginning import Beginning
from strands_sglang.tools.first_process import FirstProcess
from strands_sglang.tools.interpreter import find_interpreter, package_directories
from strands_sglang.tools.isolation import Isolation, Rights
from strands_sglang.tools.jail import ENVIRONMENT, WORK, jail_command, python_command, user_of
from strands_sglang.tools.outcome import Ending, Outcome
from strands_sglang.tools.probe import filter_pipe, find_bubblewrap, usable_rights
from strands_sglang.tools.sandbox_call import Call
from strands_sglang.tools.sandbox_limits import SandboxLimits

logger = logging.getLogger(__name__)

_warned = False


class PythonSandbox:
    """Runs Python code that nobody has read. One object serves any number of agents, threads and event loops."""

    def __init__(
        self,
        *,
        limits: SandboxLimits | None = None,
        packages: Sequence[str] = (),
        concurrency: int | None = None,
        python: str = "",
        isolation: Isolation = Isolation.BUBBLEWRAP,
        bwrap: str = "bwrap",
        rights: Rights | None = None,
    ) -> None:
        """Make sure that code can be run.

        Args:
            limits: What one call may use.
            packages: Distributions that code may import, by the names they are installed by; what they require comes
                with them. Everything else that is installed is out of sight.
            concurrency: Calls at once in one event loop, the others wait; None: as many as there are processors.
            python: Path of the interpreter; "": the one that runs this (of a virtual environment: the one below it).
            isolation: How code is kept apart from the host.
            bwrap: Name or path of bubblewrap.
            rights: Whose rights bubblewrap is started with; None: the best there are.

        Raises:
            SandboxUnavailableError: There is no bubblewrap, or it may not make a sandbox here.
            ConfigurationError: An argument that cannot work.
        """
        if isinstance(packages, str):
            raise ConfigurationError(f"packages is a sequence of names, not {packages!r}: write ({packages!r},)")
        if concurrency is not None and (isinstance(concurrency, bool) or concurrency < 1):
            raise ConfigurationError(f"concurrency must be a number above 0 or None, not {concurrency!r}")
        self.limits = limits or SandboxLimits()
        """What one call may use."""
        self.isolation = Isolation(isolation)
        """How code is kept apart from the host."""
        self.concurrency = concurrency or os.cpu_count() or 1
        """Calls at once in one event loop."""
        self.packages = tuple(packages)
        """Distributions that code may import."""
        self._settings = dict(
            limits=self.limits,
            packages=self.packages,
            concurrency=concurrency,
            python=python,
            isolation=self.isolation,
            bwrap=bwrap,
            rights=rights,
        )
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Slots] = weakref.WeakKeyDictionary()
        if self.isolation is Isolation.NONE_RUNS_AS_ME:
            _warn()
            self._program, self._paths = package_directories(python, self.packages)
        else:
            self._bwrap = find_bubblewrap(bwrap)
            self._interpreter = find_interpreter(python, self.packages)
            self.rights = usable_rights(self._bwrap, self._interpreter, rights)
            """Whose rights bubblewrap is started with."""

    def __reduce__(self) -> tuple[Any, ...]:
        # In another process, on another machine: everything there is found anew.
        return _again, (type(self), self._settings)

    async def run(self, code: str) -> Outcome:
        """Run code in a fresh interpreter, when a place is free.

        A cancelled call is killed with all that it started.

        Args:
            code: A program. If its last statement is an expression, its value is shown.

        Raises:
            SandboxUnavailableError: The machine does not let us make a sandbox any more (out of namespaces, say).
            OSError: No process can be started.
        """
        source = code.encode("utf-8", "surrogatepass")
        if len(source) > self.limits.code:
            note = f"not run: {len(source)} bytes of code, and {self.limits.code} are allowed"
            return Outcome(Ending.REFUSED, note=note)
        slots = self._slots.setdefault(asyncio.get_running_loop(), Slots(self.concurrency))
        if not slots.take():
            await slots.wait()
        try:
            if self.isolation is Isolation.NONE_RUNS_AS_ME:
                return await self._run_bare(source)
            return await self._run_jailed(source)
        finally:
            slots.release()

    async def _run_jailed(self, source: bytes) -> Outcome:
        with ExitStack() as pipes:
            first, beginning = pipes.enter_context(closing(FirstProcess())), pipes.enter_context(closing(Beginning()))
            reader = filter_pipe()
            pipes.callback(os.close, reader)
            command = jail_command(
                self._bwrap,
                self._interpreter,
                self.limits,
                self.rights,
                reader,
                first.descriptor,
                [beginning.word],
            )
            passed = (reader, first.descriptor, beginning.descriptor)
            settings = {"pass_fds": passed, "env": {}, "cwd": "/", **user_of(self.rights)}
            outcome = await Call(self.limits, WORK, first, beginning).run(command, source, **settings)
            if beginning.happened():
                return outcome
        # No line of the code was run: not a result of it.
        words = outcome.stderr.strip() or outcome.note or "it ended without a word"
        if outcome.ended is Ending.TIMED_OUT:
            words = f"it was not ready after {outcome.seconds:.0f} seconds"
        raise SandboxUnavailableError(f"the sandbox could not be made this time: {words}", program=self._bwrap)

    async def _run_bare(self, source: bytes) -> Outcome:
        words = [f"path={path}" for path in self._paths]
        command = python_command(self._program, self.limits, words, count_processes=False)
        with tempfile.TemporaryDirectory(prefix="python-", ignore_cleanup_errors=True) as directory:
            environment = {**ENVIRONMENT, "HOME": directory, "TMPDIR": directory, "PATH": os.environ.get("PATH", "")}
            return await Call(self.limits).run(command, source, env=environment, cwd=directory)


def _again(kind: type[PythonSandbox], settings: dict[str, Any]) -> PythonSandbox:
    return kind(**settings)


def _warn() -> None:
    """Say once that there is no sandbox."""
    global _warned
    if not _warned:
        _warned = True
        logger.warning(
            "isolation=<%s> | model-written code runs without a sandbox, with all rights of this process",
            Isolation.NONE_RUNS_AS_ME.value,
        )
