"""Host resources that code in a sandbox must not reach, and checks that it did not: `Host`."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.tools import SandboxLimits

DISK = 64 * 2**20 + 4096 * secrets.randbelow(100_000)
MEMORY = 2**30 + 4096 * secrets.randbelow(100_000)
"""Limits unique to this test run, by which remaining processes are recognised."""
SECRET = "strands_canary_" + secrets.token_hex(8)
HALF = SECRET[: len(SECRET) // 2]
"""Part of the secret that is passed to the code, so that it can search for the rest."""


def limits(**others: Any) -> SandboxLimits:
    """Return limits by which remaining processes can be recognised."""
    return SandboxLimits(**{"seconds": 20, "disk": DISK, "memory": MEMORY, **others})


@dataclass
class Host:
    """Resources that must stay untouched."""

    folder: Path
    process: subprocess.Popen[bytes]
    tcp: socket.socket
    udp: socket.socket
    unix: socket.socket
    abstract: socket.socket
    touched: list[str] = field(default_factory=list)

    @property
    def canary(self) -> Path:
        return self.folder / "canary.txt"

    def names(self) -> dict[str, Any]:
        """Return the variables that are passed to the code."""
        return {
            "CANARY": str(self.canary),
            "FOLDER": str(self.folder),
            "PORT": self.tcp.getsockname()[1],
            "UDP": self.udp.getsockname()[1],
            "SOCKET": self.unix.getsockname(),
            "ABSTRACT": "\0" + self.abstract.getsockname().decode()[1:],
            "PID": self.process.pid,
            "HOME": str(Path.home()),
            "SECRET_HALF": HALF,
            "OUTSIDE": [path for path in sys.path if path],
        }

    def check(self, seen: str) -> None:
        """Fail if a resource was reached or changed, the secret was seen, or a process remains."""
        assert SECRET not in seen
        assert self.canary.read_text() == SECRET
        assert sorted(os.listdir(self.folder)) == ["canary.txt", "socket"]
        assert self.process.poll() is None
        assert not self.touched
        deadline = time.monotonic() + 2
        while left := left_running():
            assert time.monotonic() < deadline, f"left running: {left}"
            time.sleep(0.01)


def system_python() -> str:
    """Return an interpreter that every user can read; the current one may be in root's home directory."""
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if Path(path).exists() and "/root/" not in str(Path(path).resolve()):
            return path
    pytest.fail("the tests need an interpreter that every user can read: apt-get install python3")


def left_running() -> list[str]:
    """Return the sandbox processes of this test run, recognised by their limits."""
    found = []
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            try:
                bounds = Path(f"/proc/{pid}/limits").read_text()
                command = Path(f"/proc/{pid}/cmdline").read_text()
                about = Path(f"/proc/{pid}/stat").read_text()
            except (OSError, UnicodeDecodeError):
                continue
            marked = any(f" {bound} " in bounds or f"={bound}\0" in command for bound in (DISK, MEMORY))
            if marked and about.rpartition(")")[2].split()[0] not in "ZX":
                found.append(about[:60])
    return found


@contextmanager
def a_host(folder: Path) -> Iterator[Host]:
    folder.mkdir()
    (folder / "canary.txt").write_text(SECRET)
    unix, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    unix.bind(str(folder / "socket"))
    abstract.bind("\0" + "strands-test-" + secrets.token_hex(4))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    tcp = socket.create_server(("127.0.0.1", 0))
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
    host = Host(folder, process, tcp, udp, unix, abstract)
    over = threading.Event()

    def serve(server: socket.socket, name: str) -> None:
        server.settimeout(0.1)
        while not over.is_set():
            try:
                if server.type == socket.SOCK_DGRAM:
                    server.recv(100)
                else:
                    answer = server.accept()[0]
                    answer.sendall(b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi")
                    answer.close()
            except TimeoutError:
                continue
            except OSError:
                pass
            host.touched.append(name)

    threads = []
    for name in ("tcp", "udp", "unix", "abstract"):
        server = getattr(host, name)
        if server.type != socket.SOCK_DGRAM:
            server.listen()
        threads.append(threading.Thread(target=serve, args=(server, name)))
        threads[-1].start()
    os.environ["STRANDS_TEST_SECRET"] = SECRET
    inherited = os.open(host.canary, os.O_RDONLY)
    os.set_inheritable(inherited, True)
    directory = os.open("/", os.O_RDONLY)
    os.set_inheritable(directory, True)
    try:
        yield host
    finally:
        over.set()
        del os.environ["STRANDS_TEST_SECRET"]
        os.close(inherited)
        os.close(directory)
        process.kill()
        process.wait()
        for thread in threads:
            thread.join()
        for server in (tcp, udp, unix, abstract):
            server.close()
