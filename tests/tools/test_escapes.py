"""Code in the sandbox does not reach the host."""

from __future__ import annotations

import fcntl
import os
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from strands_sglang.tools import Isolation, Privileges, PythonSandbox, SandboxEndReason
from strands_sglang.tools.seccomp import CLONE, CLONE3, MACHINES, NEWEST, REFUSED, SOCKETPAIR
from support.tools.bombs import BOMBS
from support.tools.escape_attempts import ATTEMPTS, CONTROLS
from support.tools.host import Host, a_host, limits, system_python

COLUMN = MACHINES[os.uname().machine].column
NUMBERS = {name: numbers[COLUMN] for name, numbers in REFUSED.items()} | {
    "clone": CLONE[COLUMN],
    "clone3": CLONE3[COLUMN],
    "socketpair": SOCKETPAIR[COLUMN],
}
PROGRAM = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NUMBERS, NEWEST = {numbers!r}, {newest}
for name, value in {names!r}.items(): globals()[name] = value

def call(name, *arguments):
    number = NUMBERS.get(name, name)
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

escaped = False
try:
{body}
except (OSError, MemoryError, ValueError) as error:
    print("HELD:", type(error).__name__, error)
else:
    print("ESCAPED" if escaped else "HELD")
"""


SETUPS = ["own", "nobody"] if os.geteuid() == 0 else ["own"]
"""With the privileges of this process; for root, also as an ordinary user in a user namespace."""


def sandbox(setup: str, **others: Any) -> PythonSandbox:
    settings: dict[str, Any] = {"privileges": Privileges.NOBODY, "python": system_python()} if setup == "nobody" else {}
    return PythonSandbox(limits=limits(**others), **settings)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with a_host(tmp_path_factory.mktemp("host") / "canary") as host:
        yield host


def program(body: str, host: Host) -> str:
    code = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return PROGRAM.format(numbers=NUMBERS, newest=NEWEST, names=host.names(), body=code)


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("name", ATTEMPTS)
async def test_escape_attempt(name: str, setup: str, host: Host) -> None:
    outcome = await sandbox(setup).run(program(ATTEMPTS[name], host))
    host.check(outcome.text)
    assert outcome.end_reason is SandboxEndReason.FINISHED, outcome.text
    assert re.fullmatch(r"HELD(:.*)?", outcome.text.strip(), re.DOTALL), outcome.text


@pytest.mark.parametrize("name", CONTROLS)
async def test_attempt_succeeds_without_isolation(name: str, host: Host) -> None:
    bare = PythonSandbox(limits=limits(), isolation=Isolation.NONE_RUNS_AS_ME)
    outcome = await bare.run(program(CONTROLS[name], host))
    host.touched.clear()
    assert "ESCAPED" in outcome.text, outcome.text


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("name", BOMBS)
async def test_bomb(name: str, setup: str, host: Host) -> None:
    bomb = BOMBS[name]
    outcome = await sandbox(setup, **bomb.limits).run(bomb.code)
    host.check(outcome.text)
    assert outcome.end_reason in bomb.endings, outcome
    assert re.search(bomb.pattern, outcome.text, re.DOTALL), outcome.text
    assert len(outcome.text) < 25_000
    assert outcome.seconds < limits(**bomb.limits).seconds + 15  # tolerates a busy machine


@pytest.mark.parametrize("setup", SETUPS)
async def test_refused_system_calls(setup: str, host: Host) -> None:
    body = """
        answers = {}
        for name, number in NUMBERS.items():
            if number is not None and name not in ('clone', 'clone3', 'socketpair'):
                try: call(name, 0, 0, 0, 0, 0, 0); answers[name] = 0
                except OSError as error: answers[name] = error.errno
        print({name: number for name, number in answers.items() if number != errno.EPERM}, len(answers))"""
    outcome = await sandbox(setup).run(program(body, host))
    assert outcome.text.splitlines()[0] == f"{{}} {sum(numbers[COLUMN] is not None for numbers in REFUSED.values())}"


async def test_calls_do_not_see_each_other(host: Host) -> None:
    """Files, variables and environment of one call are not visible in the next."""
    place = sandbox("own")
    first = await place.run(
        "open('/tmp/mine', 'w').write('x'); import os, builtins; os.environ['A'] = 'b'; builtins.a = 1"
    )
    second = await place.run("import os; print(os.listdir('/tmp'), os.environ.get('A'), 'a' in dir(__builtins__))")
    assert first.end_reason is SandboxEndReason.FINISHED
    assert second.text == "['main.py'] None False"


@pytest.mark.parametrize("setup", SETUPS)
async def test_null_device_is_not_shared(setup: str) -> None:
    """Locks and timestamps of a device node would pass messages between calls, and to the host."""
    with open("/dev/null", "r+b") as null:
        fcntl.lockf(null, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 4242)
        before = os.stat(null.fileno()).st_mtime_ns
        outcome = await sandbox(setup).run(
            "import fcntl, os, subprocess, sys\n"
            "fcntl.lockf(open(os.devnull, 'r+b', 0), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 4242)\n"
            "subprocess.run([sys.executable, '-c', 'print(1)'], stdout=subprocess.DEVNULL)\n"
            "os.utime(os.devnull); print(open('/tmp/main.py').readline(), os.listdir('/dev'))"
        )
        assert outcome.text == "import fcntl, os, subprocess, sys\n ['shm', 'null']", outcome.text
        assert os.stat(null.fileno()).st_mtime_ns == before


def test_number_of_attempts() -> None:
    assert len(ATTEMPTS) > 100 and len(CONTROLS) > 30
