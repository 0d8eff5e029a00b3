"""Behaviour and isolation of `ShellSandbox`."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from strands.sandbox.errors import SandboxPathNotFoundError, SandboxTimeoutError
from strands.sandbox.types import ExecutionResult

from strands_sglang import SGLangModel
from strands_sglang.errors import ConfigurationError, SandboxUnavailableError
from strands_sglang.ledger.event import EventKind
from strands_sglang.runs import EndReason, ReplayVerdict, Task, replay
from strands_sglang.tools import Privileges, ShellSandbox
from support.examples import size
from support.rollout.agent_kinds import plain
from support.rollout.scripts import PromptEngine, assert_proved, crashed, record_of, run
from support.scripted_engine import tool_call
from support.tools.bombs import BOMBS
from support.tools.escape_attempts import ATTEMPTS
from support.tools.host import MEMORY, Host, a_host, left_running, limits, system_python
from tools.test_escapes import SETUPS, program

TASK = Task("go", id="t")
ELSEWHERE = {"etc", "shell", "system"}
"""What is no escape here: programs are there, with links to them in /etc."""
ENDS_ITSELF = {"kill-all-pids", "kill-parent"}
"""What ends its own sandbox, perhaps before it has said how it went."""
OWN_END = "ended: the command ended its own sandbox; the files are those from before"
ENDLESS = [
    "sleep 60",
    "trap '' HUP INT TERM; for n in 1 2 3 4 5 6; do setsid sleep 60 & done; sleep 60",
    "while :; do :; done",
    "f() { f | f & }; f; sleep 60",
    "while :; do echo x >> file; done",
]
"""Commands that do not end by themselves."""
HOSTS = """
import asyncio, os, sys
from strands_sglang.tools import SandboxLimits, ShellSandbox

settings = {"limits": SandboxLimits(seconds=99, memory=int(sys.argv[1]))}
ShellSandbox(**settings)

async def run(commands):
    await asyncio.gather(*(ShellSandbox(**settings).execute(command) for command in commands))

for line in sys.stdin:
    if (pid := os.fork()) == 0:
        asyncio.run(run(line.rstrip().split("\\t")))
        os._exit(0)
    print(pid, flush=True)
    os.waitpid(pid, 0)
"""
"""A process that makes hosts of sandboxes, each a fork of it: those of a line of commands."""


def sandbox(setup: str = "own", **others: Any) -> ShellSandbox:
    settings: dict[str, Any] = {"privileges": Privileges.NOBODY, "python": system_python()} if setup == "nobody" else {}
    return ShellSandbox(limits=limits(**others), **settings)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with a_host(tmp_path_factory.mktemp("host") / "canary") as host:
        yield host


async def said(box: ShellSandbox, command: str, **options: Any) -> str:
    result = await box.execute(command, **options)
    assert (result.exit_code, result.stderr) == (0, ""), result
    return result.stdout


@pytest.mark.parametrize("setup", SETUPS)
async def test_commands_and_files(setup: str) -> None:
    """Files stay as they are: content, modes, links, times, holes, and those that their owner may not read."""
    box = sandbox(setup)
    await box.write_text("notes/a.txt", "one\n")
    assert await box.read_text("/workspace/notes/a.txt") == "one\n"
    data = bytes(range(256)) * 2000  # more than an argument of a program may have
    await box.write_file("data.bin", data)
    assert await box.read_file("data.bin") == data
    assert [(one.name, one.is_dir) for one in await box.list_files("notes")] == [("a.txt", False)]
    await said(
        box, "ln -s a.txt notes/link; ln notes/a.txt notes/hard; touch -d 2001-02-03 notes/a.txt; chmod 751 notes"
    )
    await said(box, "truncate -s 30M hole; echo kept > /tmp/temporary; echo x > $TMPDIR/y; mkfifo pipe")
    await said(box, "mkdir secret; echo 42 > secret/file; chmod 0 secret/file secret; mkdir -p a/b/c")
    assert (
        await said(box, "cat notes/link; stat -c '%a %h %Y' notes/hard; stat -c %a notes")
        == "one\n644 2 981158400\n751\n"
    )
    assert await said(box, "stat -c '%s %b' hole; cat /tmp/*; test -p pipe; cat secret/file; ls a/b") == (
        "31457280 0\nkept\nx\n42\nc\n"
    )
    await box.remove_file("notes/a.txt")
    with pytest.raises(FileNotFoundError):
        await box.read_file("notes/a.txt")
    with pytest.raises(SandboxPathNotFoundError):
        await box.list_files("nowhere")
    assert (await box.execute_code("print(6 * 7)", "python3")).stdout == "42\n"
    result = await box.execute('pwd; echo "$X"; cat nothing', cwd="notes", env={"X": "é '\" \\"})
    assert (result.exit_code, result.stdout) == (1, "/workspace/notes\né '\" \\\n")
    assert (await box.execute("exit 7")).exit_code == 7
    assert (await box.execute("kill -9 $$")).exit_code == 137
    assert (await box.execute("true", cwd="/nowhere")).exit_code == 126
    assert (await box.execute("true\0")).exit_code == 126
    with pytest.raises(ValueError, match="Invalid environment variable name"):
        await box.execute("true", env={"A B": "1"})
    with pytest.raises(ConfigurationError, match="timeout must be"):
        await box.execute("true", timeout=0)


async def test_files_that_are_many_or_large() -> None:
    """A listing is not cut like the output of a command, so no file seems to be missing; a hole is not read."""
    box = sandbox(disk=16 << 20)
    names = [f"a-file-with-a-long-name-{number:04}" for number in range(1500)]
    await said(box, "mkdir many; cd many; for n in $(seq -w 0 1499); do : > a-file-with-a-long-name-$n; done")
    assert sorted(one.name for one in await box.list_files("many")) == names
    assert "bytes left out" in await said(box, "ls many")
    await said(box, "rm -r many; echo mine > .command; truncate -s 30M hole")
    await box.write_file("data", bytes(200_000))  # in a command that is too long for an argument
    room = box.limits.disk - (1 << 20)
    await said(box, f"yes 2>/dev/null | head -c {room} > full")
    assert await box.read_file("full") == b"y\n" * (room // 2)
    with pytest.raises(FileNotFoundError, match="bytes of output"):
        await box.read_file("hole")
    assert await box.read_text(".command") == "mine\n"


async def test_each_sandbox_has_its_own_files() -> None:
    one, other = sandbox(), sandbox()
    await one.write_text("mine", "1")
    assert (await said(other, "ls -A /workspace")).split() == [".tmp"]
    copy = pickle.loads(pickle.dumps(one))
    assert (await said(copy, "ls -A")).split() == [".tmp"] and copy.limits == one.limits


@pytest.mark.parametrize(
    ("command", "exit_code", "note"),
    [
        ("kill -9 -1", 137, OWN_END),
        ("kill -9 $PPID; sleep 9", 137, OWN_END),
        ("seq 1 30000 | xargs touch", 137, "ended: more than 10000 files; the files are those from before"),
        ("yes", 137, "ended: more than 8388608 bytes of output; the files are those from before"),
        ("cat /usr/bin/* > all; rm all", 0, None),
        ("sleep 99 & setsid sleep 99 & echo left", 0, None),
    ],
)
async def test_command_that_a_limit_ends_changes_nothing(
    command: str, exit_code: int, note: str | None, host: Host
) -> None:
    box = sandbox()
    await box.write_text("file", "before")
    result = await box.execute(f"echo after > file; {command}")
    host.check(result.stdout + result.stderr)
    assert result.exit_code == exit_code
    assert note is None or note in result.stderr, result.stderr
    assert await said(box, "cat file") == ("before" if note else "after\n")


async def test_time_limit(host: Host) -> None:
    box = sandbox(seconds=9)
    with pytest.raises(SandboxTimeoutError, match="timed out after 1 seconds") as raised:
        await box.execute("echo first; sleep 99", timeout=1)
    assert raised.value.stdout == "first\n"
    box = sandbox(seconds=1)
    with pytest.raises(SandboxTimeoutError, match="timed out after 1"):
        await box.execute("while true; do true; done", timeout=500)
    working = asyncio.ensure_future(box.execute("sleep 99"))
    await asyncio.sleep(0.3)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert await said(box, "echo on") == "on\n"
    host.check("")


def in_sandboxes() -> list[str]:
    """Return what runs in the sandboxes of this test, without what starts them."""
    return [one for one in left_running() if "(bwrap)" not in one]


def soon(condition: Callable[[], bool]) -> bool:
    """Wait for a condition, as long as a busy machine may take; return whether it came true."""
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_nothing_runs_on_when_its_host_is_killed(host: Host) -> None:
    """At random moments, and while the commands run."""
    dice, rounds = random.Random(4), size(10, 40)
    with subprocess.Popen(
        [sys.executable, "-c", HOSTS, str(MEMORY)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as hosts:
        assert hosts.stdin is not None and hosts.stdout is not None
        for number in range(rounds):
            chosen = dice.sample(ENDLESS, 2)
            print(*chosen, sep="\t", file=hosts.stdin, flush=True)
            pid = int(hosts.stdout.readline())
            if number % 2:
                assert soon(lambda: any("(sh)" in one for one in in_sandboxes())), "no command runs"
            else:
                time.sleep(dice.choice((0.003, 0.01, 0.02, 0.04, 0.08, 0.3)))
            os.kill(pid, signal.SIGKILL)
            assert soon(lambda: not in_sandboxes()), (number, chosen, in_sandboxes())
            for one in left_running():  # bubblewrap itself, in its first milliseconds
                os.kill(int(one.split()[0]), signal.SIGKILL)
        hosts.stdin.close()
        assert hosts.wait(60) == 0
    host.check("")


async def test_nothing_is_left_of_many_calls_and_of_cancelled_ones(host: Host) -> None:
    """No process, no descriptor, no file; the sandbox works on."""
    dice, box = random.Random(4), sandbox()
    await box.write_text("file", "kept")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(size(10, 60)):
        others = asyncio.gather(*(one.execute(dice.choice(ENDLESS)) for one in (sandbox(), sandbox(), box)))
        await asyncio.sleep(dice.choice((0, 0.001, 0.005, 0.02, 0.05, 0.2)))
        others.cancel()
        with pytest.raises(asyncio.CancelledError):
            await others
    for number in range(size(30, 300)):
        assert await said(box, f"cat file; echo {number}") == f"kept{number}\n"
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # the event loop watches its children through one
    host.check("")


async def test_number_of_concurrent_calls() -> None:
    """The default is enough for this machine; another one is for all sandboxes that are made with it."""
    boxes = [ShellSandbox(limits=limits(), concurrency=2) for _ in range(6)]
    assert pickle.loads(pickle.dumps(boxes[0])).concurrency == 2
    outputs = await asyncio.gather(*(said(box, "date +%s%N; sleep 0.3; date +%s%N") for box in boxes))
    spans = [tuple(map(int, output.split())) for output in outputs]
    assert max(sum(begin <= moment < end for begin, end in spans) for moment, _ in spans) == 2
    with pytest.raises(ConfigurationError, match="concurrency must be"):
        ShellSandbox(concurrency=0)


@pytest.mark.soak
async def test_a_hundred_commands_at_once(host: Host) -> None:
    boxes = [ShellSandbox(limits=limits(seconds=60), concurrency=100) for _ in range(100)]
    calls = [asyncio.ensure_future(said(box, f"echo {n} > n; sleep 20; cat n")) for n, box in enumerate(boxes)]
    most = 0
    while not all(call.done() for call in calls):
        most = max(most, sum("(sleep)" in one for one in await asyncio.to_thread(left_running)))
        await asyncio.sleep(0.2)
    assert most == 100
    assert [call.result() for call in calls] == [f"{n}\n" for n in range(100)]
    host.check("")


async def test_calls_of_one_sandbox_follow_each_other() -> None:
    """Also from several event loops, as of agents in threads."""
    box, count = sandbox(), 6

    def elsewhere() -> ExecutionResult:
        return asyncio.run(box.execute("echo $(($(cat n 2>/dev/null || echo 0) + 1)) > n"))

    await asyncio.gather(*(asyncio.to_thread(elsewhere) for _ in range(count)))
    assert await said(box, "cat n") == f"{count}\n"


async def test_files_are_read_inside(host: Host) -> None:
    """A link leads to a file of the sandbox, not of the host; no file of the host is there but programs."""
    box = sandbox()
    await said(box, f"ln -s {host.canary} link; ln -s / root; ln -s /etc/passwd passwd")
    for path in ("link", f"root{host.canary}", "passwd", "/etc/passwd", "/proc/self/environ", "/root", "/home"):
        with pytest.raises(FileNotFoundError):
            await box.read_file(path)
    await box.execute("echo x > root/usr/x; echo x > /usr/bin/x; echo x > root/etc/x")
    assert not any(Path(place).exists() for place in ("/usr/x", "/usr/bin/x", "/etc/x"))
    host.check(await said(box, "env; ls -a / /etc /dev"))


async def attempt(name: str, setup: str, host: Host) -> tuple[str, ExecutionResult]:
    env = {"LD_LIBRARY_PATH": "/usr/lib"}  # where an attempt finds a library
    return name, await sandbox(setup).execute_code(program(ATTEMPTS[name], host), "python3", env=env)


@pytest.mark.parametrize("setup", [SETUPS[0], *(pytest.param(one, marks=pytest.mark.soak) for one in SETUPS[1:])])
async def test_escape_attempts_at_once(setup: str, host: Host) -> None:
    """Every attempt in a sandbox of its own, all at the same time."""
    results = dict(await asyncio.gather(*(attempt(name, setup, host) for name in ATTEMPTS)))
    assert len(results) > 100
    for result in results.values():
        host.check(result.stdout + result.stderr)
    held = {name for name, one in results.items() if re.fullmatch(r"HELD(:.*)?\s*", one.stdout, re.DOTALL)}
    assert sorted(results.keys() - held - ENDS_ITSELF) == sorted(ELSEWHERE)


@pytest.mark.soak
@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("name", BOMBS)
async def test_bomb(name: str, setup: str, host: Host) -> None:
    """Whatever happens, it ends, nothing is left on the host, and the sandbox works afterwards."""
    box = sandbox(setup, **BOMBS[name].limits)
    try:
        result = await box.execute_code(BOMBS[name].code, "python3")
        text = result.stdout + result.stderr
    except SandboxTimeoutError as error:
        text = error.stdout + error.stderr
    except UnicodeEncodeError:  # of the SDK, before anything is run
        assert name == "lone-surrogate"
        text = ""
    host.check(text)
    assert len(text) < 25_000
    assert (await box.execute("true")).exit_code in (0, 137)


async def test_no_channel_between_sandboxes() -> None:
    """What two sandboxes share are programs, which they cannot lock, and whose reads they do not see."""
    lock = (
        "import fcntl, sys\nf = open({path!r}, {mode!r})\nfcntl.{call}\ntime = __import__('time'); time.sleep({wait})"
    )
    held = lock.format(path="/dev/null", mode="r+b", call="lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)", wait=3)
    tried = lock.format(path="/dev/null", mode="r+b", call="lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)", wait=0)
    flock = lock.format(path="/bin/sh", mode="rb", call="flock(f, fcntl.LOCK_SH)", wait=0)
    first, second, third = await asyncio.gather(
        *(sandbox().execute_code(code, "python3") for code in (held, tried, flock))
    )
    assert first.exit_code == second.exit_code == 0
    assert "PermissionError" in third.stderr
    before = os.stat("/dev/null").st_mtime_ns
    await said(sandbox(), "touch /dev/null")
    assert os.stat("/dev/null").st_mtime_ns == before


@pytest.mark.parametrize("loss", ["gone", "broken", "killed"])
async def test_loss_is_an_outage(loss: str, tmp_path: Path) -> None:
    bwrap = tmp_path / "bwrap"
    shutil.copy(shutil.which("bwrap") or "", bwrap)
    box = ShellSandbox(bwrap=str(bwrap))
    await box.write_text("file", "kept")
    if loss == "gone":
        bwrap.unlink()
    elif loss == "broken":
        bwrap.write_text("#!/bin/sh\necho 'bwrap: No space left on device' >&2; exit 1\n")
    else:
        bwrap.write_text("#!/bin/sh\nkill -9 $$\n")
    with pytest.raises(SandboxUnavailableError):
        await box.read_text("file")
    bwrap.unlink(missing_ok=True)
    shutil.copy(shutil.which("bwrap") or "", bwrap)
    assert await box.read_text("file") == "kept"
    with pytest.raises(SandboxUnavailableError, match="is not installed"):
        ShellSandbox(bwrap="no-such-bwrap")


CALLS = [
    tool_call("file_editor", command="create", path="/workspace/sum.py", file_text="print(6 * 7)\n"),
    tool_call("file_editor", command="str_replace", path="/workspace/sum.py", old_str="6", new_str="60"),
    tool_call("shell", command="python3 sum.py | tee -a log; cat log | wc -l"),
    tool_call("file_editor", command="view", path="/workspace/log"),
]


def script(prompt: str, before: int) -> str:
    done = prompt.count("<tool_response>")
    return CALLS[done] if done < len(CALLS) else "the end" + prompt.rpartition("<tool_response>")[2]


def agent_in(box: ShellSandbox) -> Any:
    def build(task: Task, model: SGLangModel) -> Any:
        return plain(model, tools=[], sandbox=box)

    return build


async def test_tools_of_the_sdk_in_a_rollout(tmp_path: Path) -> None:
    """A resumed episode restores its files by `rerun_tools`; without, they are those that its next calls make."""
    engine = PromptEngine(script)
    build = lambda task, model: plain(model, tools=[], sandbox=ShellSandbox())  # noqa: E731
    [episode] = await run(build, [TASK], engine, tmp_path / "run", reward=lambda one: float("420" in one.text))
    assert (episode.end_reason, episode.reward) == (EndReason.ANSWERED, 1.0), episode.failure
    assert_proved(tmp_path / "run")
    (replayed,) = await replay(build, tmp_path / "run", tokenizer=engine.tokenizer)
    assert replayed.verdict is ReplayVerdict.IDENTICAL

    kinds = [event.kind for event in record_of(tmp_path / "run").events]
    third = [number for number, kind in enumerate(kinds) if kind is EventKind.TOOL][2]
    for rerun, text in ((("shell", "file_editor"), "420"), ((), "does not exist")):
        folder = crashed(tmp_path / "run", tmp_path / f"cut{len(rerun)}", third + 1)
        again = PromptEngine(script).follows(record_of(folder).events)
        [resumed] = await run(build, [TASK], again, folder, rerun_tools=rerun)
        assert resumed.end_reason is EndReason.ANSWERED and text in resumed.text, resumed.text
        assert_proved(folder)


async def test_files_end_with_the_episode(tmp_path: Path) -> None:
    """They hold a descriptor, and an agent is destroyed late: a run collects garbage rarely. Shared files are kept."""
    boxes: list[ShellSandbox] = []

    def build(task: Task, model: SGLangModel) -> Any:
        boxes.append(ShellSandbox())
        return plain(model, tools=[], sandbox=boxes[-1])

    tasks = [Task("go", id=f"t{number}") for number in range(3)]
    episodes = await run(build, tasks, PromptEngine(script), tmp_path / "run")
    assert all("420" in one.text for one in episodes) and len(boxes) == 3
    assert [one._files for one in boxes] == [None] * 3
    shared = ShellSandbox()
    await asyncio.gather(*(run(agent_in(shared), [task], PromptEngine(script)) for task in tasks))
    assert shared._files is not None
    await shared.close()
    assert (await said(shared, "ls")) == ""


async def test_lost_sandbox_in_a_rollout(tmp_path: Path) -> None:
    """No result, no reward; the same call goes on when the sandbox works again."""
    bwrap, real = tmp_path / "bwrap", shutil.which("bwrap") or ""
    shutil.copy(real, bwrap)
    build, engine = agent_in(ShellSandbox(bwrap=str(bwrap))), PromptEngine(script)
    os.unlink(bwrap)
    [episode] = await run(build, [TASK], engine, tmp_path / "run", reward=lambda one: 1.0)
    assert (episode.end_reason, episode.reward) == (EndReason.TOOL_UNAVAILABLE, None)
    assert str(episode.failure) and len(engine.calls) == 1
    shutil.copy(real, bwrap)
    [again] = await run(build, [TASK], engine, tmp_path / "run", reward=lambda one: 1.0)
    assert (again.end_reason, again.reward, again.epoch) == (EndReason.ANSWERED, 1.0, 1)
    assert "420" in again.text
    assert_proved(tmp_path / "run")
