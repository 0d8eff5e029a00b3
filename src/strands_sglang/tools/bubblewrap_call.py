"""Runs code in bubblewrap, once: `run_in_bubblewrap`, in a `with` block of `only_outages`.

Invariant: a result is returned only for what the code did. A sandbox that did not start, or that something outside
ended, is a `SandboxUnavailableError`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from strands_sglang.errors import SandboxUnavailableError
from strands_sglang.provider.tool_outage import reporting_outages
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


@contextmanager
def only_outages(program: str, request: Hashable) -> Iterator[None]:
    """Make an outage of every error in this `with` block, since no code raised it: that is part of a result.

    The tool call that made the request has no result then, unless it repeats the request and is answered.
    """
    with reporting_outages(request):
        try:
            yield
        except SandboxUnavailableError:
            raise
        except Exception as error:
            message = f"the sandbox failed: {type(error).__name__}: {error}"
            raise SandboxUnavailableError(message, program=program) from error
