"""Behaviour of `PythonSandbox`."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.errors import ConfigurationError, SandboxUnavailableError
from strands_sglang.tools import (
    Isolation,
    Privileges,
    PythonSandbox,
    SandboxEndReason,
    SandboxLimits,
    bubblewrap_call,
    process,
)
from strands_sglang.tools import sandbox as module
from strands_sglang.tools.bubblewrap import find_bubblewrap, python_command
from strands_sglang.tools.process import InitProcess
from strands_sglang.tools.sandbox_types import SandboxResult
from support.tools.bombs import BOMBS
from support.tools.host import MEMORY, left_running, limits, system_python


async def all_ended() -> None:
    deadline = time.monotonic() + 2
    while left := left_running():
        assert time.monotonic() < deadline, f"left running: {left}"
        await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def sandbox() -> PythonSandbox:
    return PythonSandbox(limits=limits(), concurrency=2)


async def test_last_expression_is_printed(sandbox: PythonSandbox) -> None:
    outcome = await sandbox.run("x = 6\nprint('six')\nx * 7")
    assert (outcome.end_reason, outcome.status, outcome.stderr) == (SandboxEndReason.FINISHED, 0, "")
    assert outcome.text == "six\n42"


async def test_traceback_has_only_frames_of_the_code(sandbox: PythonSandbox) -> None:
    outcome = await sandbox.run("def f(n):\n    return 1 / n\nprint('before')\nf(0)")
    assert outcome.end_reason is SandboxEndReason.FAILED
    assert outcome.stdout == "before\n"
    assert outcome.stderr.startswith(
        'Traceback (most recent call last):\n  File "/tmp/main.py", line 4, in <module>\n    f(0)'
    )
    assert outcome.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert "<string>" not in outcome.stderr


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("if __name__ == '__main__': print(__file__)", "/tmp/main.py"),
        ("exit()", "[no output: use print() to see a value]"),
        ("print('é', '漢字', '\\U0001f600')", "é 漢字 😀"),
        ("import sys; print(sys.argv, sys.prefix)", "['/tmp/main.py'] /python"),
        ("print({'b', 'a', 'c', 'd'} == {'a'}, list({'x', 'y', 'z'}))", None),
        ("import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__name__)", "A"),
        ("import asyncio\nasync def f(): return 3\nasyncio.run(f())", "3"),
        ("import multiprocessing as m\nwith m.Pool(2) as p: print(p.map(abs, [-1, -2]))", "[1, 2]"),
        ("import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', 'print(5)']))", "b'5\\n'"),
        ("import decimal, fractions, itertools, json, math, random, re, sqlite3, statistics, zlib; 1", "1"),
        ("'''only words'''", "'only words'"),
        ("# -*- coding: latin-1 -*-\nprint(1)", "1"),
    ],
)
async def test_programs(sandbox: PythonSandbox, code: str, text: str | None) -> None:
    first = await sandbox.run(code)
    assert first.end_reason is SandboxEndReason.FINISHED, first.text
    assert text is None or first.text == text
    assert (await sandbox.run(code)).text == first.text  # output is reproducible


async def test_event_loop_is_not_blocked_and_concurrency_is_bounded(sandbox: PythonSandbox) -> None:
    beats, over = 0, False

    async def beat() -> None:
        nonlocal beats
        while not over:
            await asyncio.sleep(0.005)
            beats += 1

    heart = asyncio.ensure_future(beat())
    code = "import time; a = time.time(); time.sleep(0.3); print(a, time.time())"
    outcomes = await asyncio.gather(*(sandbox.run(code) for _ in range(6)))
    over = True
    await heart
    spans = [tuple(float(word) for word in outcome.text.split()) for outcome in outcomes]
    assert max(sum(begin <= point < end for begin, end in spans) for point, _ in spans) <= 2
    assert beats > 40  # a blocked loop would have about six


async def lateness(during: Coroutine[Any, Any, SandboxResult]) -> tuple[SandboxResult, float]:
    """Return a result and the 99th percentile of the time that the event loop was blocked.

    Measured in CPU seconds of its thread, so that other load on the machine does not count.
    """
    late: list[float] = []

    async def beat() -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.005)
            late.append(time.thread_time() - before)

    heart = asyncio.ensure_future(beat())
    outcome = await during
    heart.cancel()
    return outcome, sorted(late)[len(late) * 99 // 100]


@pytest.mark.timing
async def test_event_loop_does_not_wait_for_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def slowly(pids: list[int], limit: int) -> int:
        nonlocal looks
        looks += 1
        time.sleep(0.4)
        return 0 if looks < 3 else limit + 1

    monkeypatch.setattr(process, "memory_of", slowly)
    outcome, late = await lateness(PythonSandbox(limits=limits()).run("import time; time.sleep(99)"))
    assert (outcome.end_reason, looks) == (SandboxEndReason.MEMORY, 3)
    assert late < 0.05


MAPPINGS = """
    import ctypes, os, time
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    start = libc.mmap(None, 60_000 * 4096, 3, 0x22, -1, 0)
    ctypes.memset(start, 1, 60_000 * 4096)
    for number in range(0, 60_000, 2): libc.mprotect(start + number * 4096, 4096, 1)
    for _ in range(25):
        if os.fork() == 0: time.sleep(60)
    time.sleep(60)"""


@pytest.mark.soak
async def test_slow_samples_do_not_block_the_event_loop() -> None:
    hostile = PythonSandbox(limits=limits(seconds=4))
    outcome, late = await lateness(hostile.run(textwrap.dedent(MAPPINGS)))
    assert outcome.end_reason is SandboxEndReason.TIMED_OUT and outcome.seconds < 10
    assert late < 0.05


@pytest.mark.soak
async def test_limits_hold_for_a_hundred_concurrent_calls() -> None:
    kinds = [
        ("print(6 * 7)", SandboxEndReason.FINISHED, "42"),
        ("time.sleep(99)", SandboxEndReason.TIMED_OUT, "timed out"),
        ("x = [0]\nwhile True: x += x", SandboxEndReason.FAILED, "MemoryError"),
        ("while True: print('x' * 10_000)", SandboxEndReason.FLOODED, "bytes of output"),
    ]
    together = 15  # seconds: long enough for a busy machine to start them all
    many = PythonSandbox(limits=limits(seconds=together + 30, memory=MEMORY // 8), concurrency=100)
    runs = [asyncio.ensure_future(many.run(f"import time\ntime.sleep({together})\n{code}")) for code, *_ in kinds * 25]
    most = 0
    while not all(run.done() for run in runs):
        most = max(most, sum("(python" in process for process in await asyncio.to_thread(left_running)))
        await asyncio.sleep(0.2)
    assert most >= 100
    for run, (_, ended, expected_text) in zip(runs, kinds * 25, strict=True):
        outcome = run.result()
        assert outcome.end_reason is ended and expected_text in outcome.text, outcome
    await all_ended()


@pytest.mark.timing
async def test_cancelled_call_is_killed_with_its_children(sandbox: PythonSandbox) -> None:
    code = "import os, time\nfor _ in range(3): os.fork()\nif os.getpid() != os.getpgid(0): os.setsid()\ntime.sleep(99)"
    tasks = [asyncio.ensure_future(sandbox.run(code)) for _ in range(4)]
    deadline = time.monotonic() + 10
    while len(left_running()) < 9:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    for task in tasks:
        task.cancel()
    began = time.monotonic()
    assert all(
        isinstance(found, asyncio.CancelledError) for found in await asyncio.gather(*tasks, return_exceptions=True)
    )
    assert time.monotonic() - began < 5
    while left_running():
        assert time.monotonic() - began < 10
        await asyncio.sleep(0.01)
    assert (await sandbox.run("1")).text == "1"  # its slots are free again


async def test_call_can_be_cancelled_at_any_time(sandbox: PythonSandbox) -> None:
    """Also in its first milliseconds, when killing bubblewrap does not end the sandbox yet."""
    dice = random.Random(0)

    async def cancelled() -> None:
        task = asyncio.ensure_future(sandbox.run("import time; time.sleep(99)"))
        await asyncio.sleep(dice.uniform(0, 0.03))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for _ in range(20):
        await asyncio.gather(*(cancelled() for _ in range(4)))
    deadline = time.monotonic() + 5
    while left := left_running():
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.01)


def test_code_is_not_run_if_stdout_is_closed(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = python_command(sys.executable, limits(), [], count_processes=False)
    code = b"open('ran', 'w')"
    assert subprocess.run(command, input=code, stdout=writer, cwd=tmp_path, timeout=30).returncode == 0
    os.close(writer)
    assert not os.listdir(tmp_path)
    subprocess.run(command, input=code, stdout=subprocess.PIPE, cwd=tmp_path, timeout=30, check=True)
    assert sorted(os.listdir(tmp_path)) == ["main.py", "ran"]


async def test_no_descriptor_leaks(sandbox: PythonSandbox) -> None:
    await sandbox.run("1")
    before = len(os.listdir("/proc/self/fd"))
    await asyncio.gather(*(sandbox.run("print('x' * 100000)") for _ in range(10)))
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.fixture
def many_descriptors() -> Iterator[int]:
    """Open many descriptors, as a host with a thousand connections has, so that new ones are above 2,000."""
    descriptors, bounds = 2000, resource.getrlimit(resource.RLIMIT_NOFILE)
    if bounds[0] < 2 * descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2 * descriptors, bounds[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(descriptors)]
    yield max(held)
    for descriptor in held:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, bounds)


@pytest.mark.parametrize("name", ["sleep", "many-processes", "many-files", "stdout", "fork-quietly", "stopped"])
async def test_limits_with_many_descriptors(name: str, many_descriptors: int) -> None:
    assert many_descriptors >= 2000
    bomb = BOMBS[name]
    outcome = await PythonSandbox(limits=limits(**bomb.limits)).run(bomb.code)
    assert outcome.end_reason in bomb.endings, outcome
    await all_ended()


async def test_cancellation_with_many_descriptors(sandbox: PythonSandbox, many_descriptors: int) -> None:
    for moment in (0.0, 0.005, 0.3):
        task = asyncio.ensure_future(sandbox.run("import time; time.sleep(99)"))
        await asyncio.sleep(moment)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await all_ended()


async def test_process_group_is_killed_if_the_init_process_is_unknown(
    sandbox: PythonSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(first: InitProcess) -> int:
        raise OSError("no name")

    monkeypatch.setattr(InitProcess, "_read_pid", fail)
    brief = PythonSandbox(limits=limits(seconds=0.5))
    with pytest.raises(SandboxUnavailableError, match="no name"):
        await brief.run("import os, time; os.fork(); time.sleep(99)")
    await all_ended()


def test_one_object_in_several_event_loops(sandbox: PythonSandbox) -> None:
    seen: list[str] = []

    def work() -> None:
        async def both() -> None:
            seen.extend(outcome.text for outcome in await asyncio.gather(*(sandbox.run("2") for _ in range(3))))

        asyncio.run(both())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["2"] * 6


async def test_pickle(sandbox: PythonSandbox) -> None:
    again = pickle.loads(pickle.dumps(sandbox))
    assert (again.limits, again.concurrency, again.privileges) == (sandbox.limits, 2, sandbox.privileges)
    assert (await again.run("3")).text == "3"


async def test_dies_with_its_parent(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import asyncio, sys
        from strands_sglang.tools import PythonSandbox, SandboxLimits
        sandbox = PythonSandbox(limits=SandboxLimits(seconds=99, disk={limits().disk}))
        asyncio.run(sandbox.run("import os, time; os.fork(); time.sleep(99)"))
        """
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    deadline = time.monotonic() + 90  # a busy machine takes its time to import
    while len(left_running()) < 2:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    process.kill()
    await process.wait()
    while left_running():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_only_named_packages_are_visible() -> None:
    numbers = PythonSandbox(limits=limits(), packages=("NumPy",))
    code = "import numpy; print(numpy.linalg.det(numpy.eye(3) * 2), numpy.__file__)\nimport importlib.util as u\n"
    outcome = await numbers.run(code + "print(u.find_spec('transformers'), u.find_spec('pip'))")
    assert outcome.text == "7.999999999999998 /python/packages/numpy/__init__.py\nNone None"
    without = await PythonSandbox(limits=limits()).run("import numpy")
    assert "No module named 'numpy'" in without.text


def test_missing_package() -> None:
    with pytest.raises(ConfigurationError, match="pip install no-such-distribution"):
        PythonSandbox(packages=("no.such_distribution",))


async def test_another_interpreter() -> None:
    outcome = await PythonSandbox(limits=limits(), python=system_python()).run("import sys; print(sys.executable)")
    assert outcome.text == "/python/bin/python3"


@pytest.mark.skipif(os.geteuid() != 0, reason="this process is not root")
def test_as_an_ordinary_user() -> None:
    """The process that creates the sandbox is unprivileged."""
    program = textwrap.dedent(
        f"""
        import asyncio, os
        from strands_sglang.tools import PythonSandbox
        import asyncio.subprocess, concurrent.futures.thread, encodings.idna
        os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
        sandbox = PythonSandbox(python={system_python()!r})
        outcome = asyncio.run(sandbox.run("import os; print(os.getuid(), os.path.exists('/etc'))"))
        print(sandbox.privileges.value, outcome.text)
        """
    )
    seen = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert seen.stdout == "user 1000 False\n", seen.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to imitate a container")
@pytest.mark.parametrize(
    ("granted", "python", "privileges"), [("+sys_admin,+net_admin", "", "root"), ("", "system", "nobody_in_container")]
)
def test_as_root_of_a_container(granted: str, python: str, privileges: str) -> None:
    """With the capabilities of root in Docker, with and without additional ones, and a read-only /proc/sys."""
    kept = (
        "chown dac_override fsetid fowner mknod net_raw setgid setuid setfcap setpcap net_bind_service sys_chroot kill"
    )
    bounds = ",".join(["-all", *(f"+{name}" for name in kept.split()), *([granted] if granted else [])])
    program = textwrap.dedent(
        f"""
        import asyncio
        from strands_sglang.tools import PythonSandbox
        sandbox = PythonSandbox(python={system_python() if python else ""!r})
        code = "import os; print(os.getuid() > 0)\\ntry: os.chroot('/tmp')\\nexcept OSError as e: print(e.errno)"
        print(sandbox.privileges.value, *asyncio.run(sandbox.run(code)).text.split())
        """
    )
    shell = 'mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", shell, "sh", "setpriv", "--bounding-set", bounds, "--inh-caps", "-all"]
    seen = subprocess.run([*command, sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert seen.stdout == f"{privileges} True 1\n", seen.stderr


def test_without_bubblewrap() -> None:
    with pytest.raises(SandboxUnavailableError, match="apt-get install bubblewrap") as caught:
        PythonSandbox(bwrap="no-such-bwrap")
    assert caught.value.program == "no-such-bwrap"


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("bwrap: No permissions to create new namespace", "user.max_user_namespaces|--cap-add SYS_ADMIN"),
        ("bwrap: Unknown option --disable-userns", "0.8 or later"),
    ],
)
def test_bubblewrap_without_permission(tmp_path: Path, words: str, advice: str) -> None:
    program = tmp_path / "bwrap"
    program.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(SandboxUnavailableError, match=advice) as caught:
        PythonSandbox(bwrap=str(program))
    assert words in caught.value.reason


def test_bubblewrap_that_runs_nothing_is_rejected(tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    with pytest.raises(SandboxUnavailableError):
        PythonSandbox(bwrap=str(program))


def sandbox_with_script(script: str, folder: Path, **settings: Any) -> PythonSandbox:
    """Return a sandbox whose bubblewrap is replaced by a shell script after the probe."""
    program = folder / "bwrap"
    program.symlink_to(find_bubblewrap())
    sandbox = PythonSandbox(bwrap=str(program), **settings)
    program.unlink()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return sandbox


async def test_sandbox_that_fails_to_start_raises(tmp_path: Path) -> None:
    """A failure of the sandbox must not look like a result of the code."""
    script = "echo 'bwrap: Creating new namespace failed: No space left on device' >&2\nexit 1"
    sandbox = sandbox_with_script(script, tmp_path)
    with pytest.raises(SandboxUnavailableError, match="No space left"):
        await sandbox.run("1")


@pytest.mark.parametrize(
    "code",
    [
        "import os, sys; sys.stderr.write('bwrap: x'); sys.stderr.flush(); os._exit(1)",
        "import os; os.write(2, b'bwrap: Creating new namespace failed: No space left on device'); os._exit(1)",
        "import os; os.closerange(3, 128); os.write(2, b'bwrap: x'); os._exit(1)",
        "import os, signal; os.write(2, b'bwrap: x'); os.kill(os.getpid(), signal.SIGKILL)",
        "raise SystemExit('bwrap: x')",
    ],
)
async def test_code_that_imitates_errors_of_bubblewrap_has_failed(code: str, sandbox: PythonSandbox) -> None:
    """Code that has started has a result, whatever it prints; otherwise it would not be scored."""
    outcome = await sandbox.run(code)
    assert outcome.end_reason is SandboxEndReason.FAILED and outcome.stderr.startswith("bwrap: ")


async def test_code_has_only_standard_streams_open(sandbox: PythonSandbox) -> None:
    code = """
        import os
        def is_open(number):
            try: return bool(os.fstat(number))
            except OSError: return False
        print([number for number in range(128) if is_open(number)])"""
    assert (await sandbox.run(textwrap.dedent(code))).text == "[0, 1, 2]"


@pytest.mark.parametrize("ends", ["exit 0", "exit 7", "kill -9 $$", "echo 'no such file' >&2; exit 127", "sleep 60"])
async def test_code_that_did_not_start_has_no_result(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_SETUP_SECONDS", 1.0)
    broken = sandbox_with_script(ends, tmp_path, limits=limits(seconds=1))
    with pytest.raises(SandboxUnavailableError, match="the sandbox failed to start"):
        await broken.run("1")


def no_threads(*_: Any) -> None:
    raise RuntimeError("can't start new thread")


def kills_what_has_started(call: process.SandboxCall, pid: int) -> None:
    if call.stdout.seen:
        os.kill(pid, signal.SIGKILL)


def no_descriptors(*_: Any) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize("fault", ["removed", "not executable", "no descriptors", "no threads", "killed"])
async def test_failure_of_the_machine_is_not_a_result(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = sandbox_with_script(f'exec {find_bubblewrap()} "$@"', tmp_path, limits=limits(seconds=20))
    program = tmp_path / "bwrap"
    code, match = "print(6 * 7)", "the sandbox failed"
    if fault == "removed":
        program.unlink()
    elif fault == "not executable":
        program.chmod(0o644)
    elif fault == "no descriptors":
        monkeypatch.setattr(bubblewrap_call, "input_descriptors", no_descriptors)
    elif fault == "no threads":
        monkeypatch.setattr(process.SandboxCall, "_sample", no_threads)
        code = "import time; time.sleep(15)"
    else:
        monkeypatch.setattr(process.SandboxCall, "_sample", kills_what_has_started)
        code, match = "print('started', flush=True)\nwhile True: pass", "the sandbox was killed"
    with pytest.raises(SandboxUnavailableError, match=match) as caught:
        await broken.run(code)
    assert caught.value.program == str(program)
    await all_ended()


async def test_slow_setup_does_not_count_toward_the_time_limit(tmp_path: Path) -> None:
    script = f'sleep 2.5\nexec {find_bubblewrap()} "$@"'
    slow = sandbox_with_script(script, tmp_path, limits=limits(seconds=2))
    assert (await slow.run("print(6 * 7)")).text == "42"
    assert (await slow.run("while True: pass")).end_reason is SandboxEndReason.TIMED_OUT


@pytest.mark.skipif(os.geteuid() != 0, reason="needs an interpreter that only root can read")
def test_unreadable_interpreter(tmp_path: Path) -> None:
    if "/root/" not in str(Path(sys.executable).resolve()):
        pytest.skip("every user can read this interpreter")
    with pytest.raises(SandboxUnavailableError, match="python="):
        PythonSandbox(privileges=Privileges.NOBODY)


async def test_without_isolation_it_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    module._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        bare = [PythonSandbox(isolation=Isolation.NONE_RUNS_AS_ME, limits=limits(seconds=3)) for _ in range(3)]
    assert [record.getMessage().partition(" |")[0] for record in caplog.records] == ["isolation=<none_runs_as_me>"]
    outcome = await bare[0].run("import os; print(os.getuid(), os.path.exists('/etc'))\n1 / 0")
    assert outcome.stdout == f"{os.getuid()} True\n"
    assert "ZeroDivisionError" in outcome.text


async def test_without_isolation_limits_still_hold() -> None:
    bare = PythonSandbox(isolation=Isolation.NONE_RUNS_AS_ME, limits=limits(seconds=0.5, memory=2**27))
    assert (await bare.run("import os, time; os.fork(); time.sleep(99)")).end_reason is SandboxEndReason.TIMED_OUT
    assert "MemoryError" in (await bare.run("x = 'x' * 10 ** 10")).text
    assert not left_running()


@pytest.mark.parametrize(
    "name", ["seconds", "memory", "processes", "disk", "files", "open_files", "output", "flood", "code"]
)
@pytest.mark.parametrize("value", [0, -1, True, "1", float("inf"), None])
def test_invalid_limits(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"SandboxLimits.{name}"):
        SandboxLimits(**{name: value})  # type: ignore[arg-type]


def test_invalid_arguments() -> None:
    with pytest.raises(ConfigurationError, match=r"write \('numpy',\)"):
        PythonSandbox(packages="numpy")
    with pytest.raises(ConfigurationError, match="concurrency"):
        PythonSandbox(concurrency=0)
    with pytest.raises(ConfigurationError, match="cannot be used"):
        PythonSandbox(python="/no/such/python")
    with pytest.raises(ConfigurationError, match="64 MiB"):
        SandboxLimits(memory=2**20)
