"""Runs code in bubblewrap, once: `run_in_bubblewrap`.

Invariant: a result is returned only for what the code did. A sandbox that did not start, or that something outside
ended, is a `SandboxUnavailableError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing

from strands_sglang.errors import SandboxUnavailableError
from strands_sglang.tools.bubblewrap import WORKDIR, WORKSPACE, bwrap_command, input_descriptors, popen_user
from strands_sglang.tools.interpreter import Interpreter
from strands_sglang.tools.process import InitProcess, SandboxCall, StartSignal
from strands_sglang.tools.sandbox_types import Privileges, SandboxEndReason, SandboxLimits, SandboxResult


async def run_in_bubblewrap(
    program: str,
    interpreter: Interpreter,
    limits: SandboxLimits,
    privileges: Privileges,
    source: bytes,
    *,
    programs: bool = False,
    descriptors: Sequence[int] = (),
) -> SandboxResult:
    """Run Python code in a fresh sandbox.

    Args:
        program: Path of bubblewrap.
        programs: Whether the system's programs are there too.
        descriptors: Descriptors that the code gets, besides its input and output.

    Raises:
        SandboxUnavailableError: The machine failed and not the code.
    """
    with ExitStack() as pipes:
        init, start = pipes.enter_context(closing(InitProcess())), pipes.enter_context(closing(StartSignal()))
        inputs = pipes.enter_context(input_descriptors())
        command = bwrap_command(
            program, interpreter, limits, privileges, *inputs, init.descriptor, [start.argument], programs=programs
        )
        passed = (*inputs, init.descriptor, start.descriptor, *descriptors)
        settings = {"pass_fds": passed, "env": {}, "cwd": "/", **popen_user(privileges)}
        workdir = WORKSPACE if programs else WORKDIR
        result = await SandboxCall(limits, workdir, init, start).run(command, source, **settings)
        started = start.received()
        if started and (result.status is None or result.status >= 0):
            return result
    # The code did not start, or bubblewrap was killed, which code inside cannot do: this is not a result of it.
    what = "was killed" if started else "failed to start"
    reason = result.stderr.strip() or result.note or "bubblewrap exited without an error message"
    if result.end_reason is SandboxEndReason.TIMED_OUT:
        reason = f"it was not ready after {result.seconds:.0f} seconds"
    raise SandboxUnavailableError(f"the sandbox {what}: {reason}", program=program)


def machine_failure(error: Exception, program: str) -> SandboxUnavailableError:
    """Return the error for a call that failed on this side of the sandbox."""
    return SandboxUnavailableError(f"the sandbox failed: {type(error).__name__}: {error}", program=program)
