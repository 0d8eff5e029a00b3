"""Whether this machine lets us make a sandbox: bubblewrap found, and tried.

Invariant: what it returns has just run code that came back right; it never settles for less isolation.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

from strands_sglang.errors import SandboxUnavailableError
from strands_sglang.tools.interpreter import Interpreter
from strands_sglang.tools.isolation import Rights
from strands_sglang.tools.jail import jail_command, possible_rights, user_of
from strands_sglang.tools.sandbox_limits import SandboxLimits
from strands_sglang.tools.seccomp import seccomp_filter

_INSTALL = "apt-get install bubblewrap, dnf install bubblewrap, or conda install -c conda-forge bubblewrap"
_SECONDS = 60  # an answer takes some 20 ms; a machine that is busy may take long
_OTHERWISE = (
    "To run code without a sandbox, with all your rights, say so: isolation=Isolation.NONE_RUNS_AS_ME. "
    "docs/sandbox.md has the details"
)


def filter_pipe() -> int:
    """Return a descriptor from which bubblewrap reads the system call filter; whoever asks closes it."""
    reader, writer = os.pipe()
    with open(writer, "wb") as file:
        file.write(seccomp_filter())  # a few kilobytes: it fits into the pipe
    return reader


def find_bubblewrap(bwrap: str = "bwrap") -> str:
    """Return the path of bubblewrap.

    Raises:
        SandboxUnavailableError: There is none.
    """
    found = shutil.which(bwrap)
    if found is None:
        raise SandboxUnavailableError(
            f"model-written code runs in a sandbox made by bubblewrap, and {bwrap!r} is not installed: {_INSTALL} "
            f"(Linux only). {_OTHERWISE}",
            program=bwrap,
        )
    return found


@cache
def usable_rights(bwrap: str, interpreter: Interpreter, asked: Rights | None = None) -> Rights:
    """Return whose rights a sandbox can be made with here, having made one.

    Args:
        bwrap: Path of bubblewrap.
        interpreter: What is to run inside.
        asked: Only these; None: the best there are.

    Raises:
        SandboxUnavailableError: None; the message has bubblewrap's words and what may be done.
    """
    refusals = []
    for rights in (asked,) if asked is not None else possible_rights():
        words = _tried(bwrap, interpreter, rights)
        if words is None:
            return rights
        refusals.append(f"as {rights.value}: {words}")
    raise SandboxUnavailableError(
        f"bubblewrap cannot make a sandbox here ({'; '.join(refusals)}). {_advice(' '.join(refusals))}. {_OTHERWISE}",
        program=bwrap,
        reason="; ".join(refusals),
    )


def _tried(bwrap: str, interpreter: Interpreter, rights: Rights) -> str | None:
    """Run a line of code; return None if its answer is right, else what went wrong."""
    reader = filter_pipe()
    try:
        command = jail_command(bwrap, interpreter, SandboxLimits(seconds=_SECONDS), rights, reader)
        answer = subprocess.run(
            command,
            input=b"print(6 * 7)",
            capture_output=True,
            timeout=_SECONDS,
            pass_fds=(reader,),
            env={},
            cwd="/",
            **user_of(rights),  # type: ignore[call-overload]
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    finally:
        os.close(reader)
    if answer.stdout == b"42\n":
        return None
    lines = answer.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"exit status {answer.returncode}"


def _advice(refused: str) -> str:
    """Return what may be done about a refusal."""
    if "nknown option" in refused:
        return f"This bubblewrap is too old; 0.8 or later is needed: {_INSTALL}"
    if "source path" in refused and "as root" not in refused:
        return "Every user must be able to read the interpreter (not one in root's home); name another with python="
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return (
            "In Docker start the container with --cap-add SYS_ADMIN --cap-add NET_ADMIN "
            "--security-opt apparmor=unconfined, or with --privileged"
        )
    return (
        "The kernel must let ordinary users make user namespaces: sysctl user.max_user_namespaces=10000, and where "
        "they exist kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu; "
        "better an AppArmor profile for bwrap)"
    )
