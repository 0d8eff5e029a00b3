"""Runs Python code in a sandbox: `PythonSandbox`, and `python_sandbox`, which is the same as a Strands tool.

Each call is a fresh interpreter in a fresh sandbox. No state is kept between calls, so a call can be repeated safely,
and episodes that share a sandbox are isolated from each other.

Invariants: code never runs with less isolation than requested; if this machine cannot provide it, the constructor
raises, not the first call of a model. The model gets a text whatever its code does, and only for what its code did: a
failure of the machine is a `SandboxUnavailableError`, of which no model is told.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import weakref
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from strands import tool

from strands_sglang._checks import check_int
from strands_sglang.engine.connections import Slots
from strands_sglang.errors import ConfigurationError
from strands_sglang.tools.bubblewrap import (
    ENVIRONMENT,
    find_bubblewrap,
    probe_privileges,
    python_command,
)
from strands_sglang.tools.bubblewrap_call import only_outages, run_in_bubblewrap
from strands_sglang.tools.interpreter import find_interpreter, package_directories
from strands_sglang.tools.process import SandboxCall
from strands_sglang.tools.sandbox_types import Isolation, Privileges, SandboxEndReason, SandboxLimits, SandboxResult

logger = logging.getLogger(__name__)


class PythonSandbox:
    """Runs untrusted Python code. One object can be shared by any number of agents, threads and event loops."""

    def __init__(
        self,
        *,
        limits: SandboxLimits | None = None,
        packages: Sequence[str] = (),
        concurrency: int | None = None,
        python: str = "",
        isolation: Isolation = Isolation.BUBBLEWRAP,
        bwrap: str = "bwrap",
        privileges: Privileges | None = None,
    ) -> None:
        """Find the interpreter and test that a sandbox works.

        Args:
            limits: Resource limits of one call; None: the defaults.
            packages: Names of installed distributions that code may import; their requirements are included. No other
                installed distribution is visible.
            concurrency: Maximum number of concurrent calls per event loop; None: the number of processors.
            python: Path of the interpreter; empty: the one of this process, or the base of its virtual environment.
            isolation: How code is isolated from the host.
            bwrap: Name or path of bubblewrap.
            privileges: Privileges to start bubblewrap with; None: the best that work.

        Raises:
            SandboxUnavailableError: bubblewrap is not installed or cannot create a sandbox on this machine.
        """
        if isinstance(packages, str):
            raise ConfigurationError(f"packages must be a sequence of names, got {packages!r}: write ({packages!r},)")
        check_int("concurrency", concurrency)
        self.limits = limits or SandboxLimits()
        self.isolation = Isolation(isolation)
        self.concurrency = concurrency or os.cpu_count() or 1
        self.packages = tuple(packages)
        self._settings: dict[str, Any] = dict(
            limits=self.limits,
            packages=self.packages,
            concurrency=concurrency,
            python=python,
            isolation=self.isolation,
            bwrap=bwrap,
            privileges=privileges,
        )
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Slots] = weakref.WeakKeyDictionary()
        if self.isolation is Isolation.NONE_RUNS_AS_ME:
            _warn_once()
            self._program, self._paths = package_directories(python, self.packages)
        else:
            self._program = find_bubblewrap(bwrap)
            self._interpreter = find_interpreter(python, self.packages)
            self.privileges = probe_privileges(self._program, self._interpreter, privileges)
            """Privileges that bubblewrap is started with."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The interpreter and bubblewrap are looked up again where the object is unpickled.
        return partial(type(self), **self._settings), ()

    async def run(self, code: str) -> SandboxResult:
        """Run code in a fresh interpreter, as soon as a slot is free.

        If the last statement is an expression, its value is printed. A cancelled call is killed with all its processes.

        Raises:
            SandboxUnavailableError: The machine failed and not the code: the sandbox did not start, for example because
                there are no namespaces or descriptors left, or it was ended from outside.
        """
        source = code.encode("utf-8", "surrogatepass")
        if len(source) > self.limits.code:
            note = f"not run: the code has {len(source)} bytes, and at most {self.limits.code} are allowed"
            return SandboxResult(SandboxEndReason.REFUSED, note=note)
        slots = self._slots.setdefault(asyncio.get_running_loop(), Slots(self.concurrency))
        if not slots.take():
            await slots.wait()
        try:
            with only_outages(self._program, (id(self), source)):
                if self.isolation is Isolation.NONE_RUNS_AS_ME:
                    return await self._run_without_isolation(source)
                return await run_in_bubblewrap(self._program, self._interpreter, self.limits, self.privileges, source)
        finally:
            slots.release()

    async def _run_without_isolation(self, source: bytes) -> SandboxResult:
        arguments = [f"path={path}" for path in self._paths]
        command = python_command(self._program, self.limits, arguments, count_processes=False)
        with tempfile.TemporaryDirectory(prefix="python-", ignore_cleanup_errors=True) as directory:
            environment = {**ENVIRONMENT, "HOME": directory, "TMPDIR": directory, "PATH": os.environ.get("PATH", "")}
            return await SandboxCall(self.limits).run(command, source, env=environment, cwd=directory)


@cache
def _warn_once() -> None:
    logger.warning(
        "isolation=<%s> | model-written code runs without a sandbox, with all privileges of this process",
        Isolation.NONE_RUNS_AS_ME.value,
    )


_DESCRIPTION = (
    "Run Python code and get what it prints. Each call starts a fresh interpreter: variables, imports and files are "
    "not kept. There is no network. The limit is {seconds:g} seconds.{packages}"
)


def python_sandbox(
    sandbox: PythonSandbox | None = None,
    *,
    name: str = "python",
    description: str = "",
    limits: SandboxLimits | None = None,
    packages: Sequence[str] = (),
    **settings: Any,
) -> Any:
    """Return a Strands tool that runs Python code in a sandbox.

    The tool can be given to any number of agents. Code that fails, by an exception or a limit, gives a result with the
    status "error".

    Args:
        sandbox: Sandbox to use; None: a new one, created from the arguments below.
        description: Description for the model; empty: a default that states the packages and the time limit.
        limits: As for `PythonSandbox`.
        packages: As for `PythonSandbox`.
        **settings: Further arguments of `PythonSandbox`.
    """
    place = sandbox or PythonSandbox(limits=limits, packages=packages, **settings)
    if not description:
        known = f" Besides the standard library there are: {', '.join(place.packages)}." if place.packages else ""
        description = _DESCRIPTION.format(seconds=place.limits.seconds, packages=known)
    schema = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The program. Print what you want to see."}},
        "required": ["code"],
    }

    @tool(name=name, description=description, inputSchema={"json": schema})
    async def python(code: str) -> dict[str, Any]:
        result = await place.run(code)
        status = "success" if result.end_reason is SandboxEndReason.FINISHED else "error"
        return {"status": status, "content": [{"text": result.text}]}

    return python
