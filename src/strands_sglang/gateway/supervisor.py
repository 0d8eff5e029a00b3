"""Runs an agent's command as a child, and leaves nothing of it behind: a program of its own, with the standard library.

    python -I supervisor.py FD

It reads {"command": [...], "life": FD, "socket": PATH or null, "port": PORT} from a file that it inherits: an argument
of its own could not be as long as those of the command. It ends all processes that the command started when the
command ends, and when the pipe `life` is closed: the run that holds its other end closes it, or died. With `socket`,
it listens on a port of the loopback interface and forwards every connection to that Unix socket, which a network
namespace without other interfaces can reach.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading

_PR_SET_CHILD_SUBREAPER = 36


def children() -> list[int]:
    """Return the ids of this process's children: with a subreaper, all processes whose parents have ended, too."""
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            # Its state, its parent and more follow its name, which may have any characters, in brackets.
            if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                found.append(int(name))
    return found


def end_all() -> None:
    """Kill every process that descends from this one: those that lose their parent become children of this one."""
    while pids := children():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def why(error: Exception) -> str:
    """Return why a command could not be started, and what to do."""
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        return (
            "an argument, or a variable of the environment, may have 128 KiB, and all of them 2 MiB: pass a long text "
            "on standard input (AgentProcess(prompt=...)) or in a file"
        )
    return str(error)


def watch(life: int) -> None:
    """End everything once the other end of the pipe is closed."""
    while os.read(life, 1):
        pass
    end_all()
    os._exit(1)


def copy(source: socket.socket, target: socket.socket) -> None:
    """Forward one direction of a connection."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def forward(listener: socket.socket, path: str) -> None:
    """Forward every connection to a Unix socket."""
    while True:
        near, _ = listener.accept()
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(path)
        except OSError:
            near.close()
            continue
        for pair in ((near, far), (far, near)):
            threading.Thread(target=copy, args=pair, daemon=True).start()


def main() -> int:
    """Run the command; return its exit code, which is negative for a signal."""
    with open(int(sys.argv[1]), "rb") as file:
        given = json.load(file)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    threading.Thread(target=watch, args=(given["life"],), daemon=True).start()
    if given["socket"] is not None:
        listener = socket.create_server(("127.0.0.1", given["port"]))
        threading.Thread(target=forward, args=(listener, given["socket"]), daemon=True).start()
    try:
        code = subprocess.Popen(given["command"]).wait()
    except (OSError, ValueError) as error:  # ValueError: half a character, or a zero byte
        print(f"{given['command'][0]!r:.200} cannot be started: {why(error)}", file=sys.stderr)
        code = 127
    end_all()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main())  # threads that forward may be waiting
