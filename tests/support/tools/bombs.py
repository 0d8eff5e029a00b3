"""Programs that exceed limits of time, memory, processes, files or output."""

from __future__ import annotations

from typing import Any, NamedTuple

from strands_sglang.tools import SandboxEndReason as Reason

_MIB = 2**20


class Bomb(NamedTuple):
    """A program, its limits, and its expected result."""

    code: str
    endings: tuple[Reason, ...]
    pattern: str = ""
    limits: dict[str, Any] = {}


_TIME = {"seconds": 0.6}
_MEMORY = {"memory": 128 * _MIB}
_TIMED_OUT = (Reason.TIMED_OUT,)
_FAILED = (Reason.FAILED,)
_FINISHED = (Reason.FINISHED,)
_FORK = "import os, time\n"
# Depends on which limit is reached first.
_FORK_ENDS = (Reason.FAILED, Reason.TIMED_OUT, Reason.FLOODED, Reason.MEMORY)

BOMBS = {
    # Time.
    "endless-loop": Bomb("while True: pass", _TIMED_OUT, r"timed out after 0\.6 seconds", _TIME),
    "sleep": Bomb("import time; print('first', flush=True); time.sleep(99)", _TIMED_OUT, r"first\n\[timed out", _TIME),
    "ignores-signals": Bomb(
        "import signal\n"
        "for s in set(range(1, 65)) - {9, 19, 32, 33}: signal.signal(s, signal.SIG_IGN)\n"
        "while True: pass",
        _TIMED_OUT,
        limits=_TIME,
    ),
    "children-that-sleep": Bomb(
        _FORK + "for _ in range(5):\n  if os.fork() == 0: time.sleep(99)\ntime.sleep(99)", _TIMED_OUT, limits=_TIME
    ),
    "daemon": Bomb(
        _FORK + "if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    for n in (0, 1, 2): os.close(n)\n"
        "    time.sleep(99)\n"
        "  os._exit(0)\nprint('gone')",
        _FINISHED,
        "gone",
    ),
    "daemon-with-output-open": Bomb(
        _FORK + "if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: time.sleep(99)\n  os._exit(0)\nprint('gone')",
        _FINISHED,
        "gone",
    ),
    "stopped": Bomb("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", _TIMED_OUT, limits=_TIME),
    "regular-expression": Bomb("import re; re.match(r'(a+)+$', 'a' * 40 + 'b')", _TIMED_OUT, limits=_TIME),
    "big-power": Bomb("print(len(str(9 ** 9 ** 9)))", (Reason.TIMED_OUT, Reason.FAILED), limits={**_TIME, **_MEMORY}),
    "reads-terminal": Bomb("input()", _FAILED, "EOFError"),
    "cpu-in-a-thread": Bomb(
        "import threading\ndef f():\n  while True: pass\nthreading.Thread(target=f).start()", _TIMED_OUT, limits=_TIME
    ),
    "exit-handler": Bomb("import atexit, time; atexit.register(time.sleep, 99)", _TIMED_OUT, limits=_TIME),
    "finally-forever": Bomb(
        "def f():\n  try: f()\n  finally: f()\nimport sys; sys.setrecursionlimit(50)\nf()",
        (Reason.TIMED_OUT, Reason.FAILED),
        limits=_TIME,
    ),
    # Memory.
    "list": Bomb("x = [0]\nwhile True: x += x", _FAILED, "MemoryError", _MEMORY),
    "string": Bomb("x = 'x' * 10 ** 10", _FAILED, "MemoryError", _MEMORY),
    "mmap": Bomb("import mmap; mmap.mmap(-1, 10 ** 9)", _FAILED, "(?i)memory", _MEMORY),
    "shared-mmap": Bomb(
        "import mmap\nx = []\nwhile True:\n  m = mmap.mmap(-1, 2 ** 24); m.write(b'x' * 2 ** 24); x.append(m)",
        (Reason.FAILED, Reason.MEMORY),
        "(?i)memory",
        _MEMORY,
    ),
    "shared-memory": Bomb(
        "from multiprocessing import shared_memory as s\n"
        "x = s.SharedMemory(create=True, size=2 ** 28); x.buf[:] = b'x' * 2 ** 28",
        _FAILED,
        "",
        {"disk": 2**20},
    ),
    "dev-shm": Bomb(
        "f = open('/dev/shm/x', 'wb')\nwhile True: f.write(b'x' * 2 ** 20)",
        _FAILED,
        "No space|too large|SIGXFSZ",
        {"disk": 2**20},
    ),
    "many-processes": Bomb(
        _FORK
        + "for _ in range(8):\n  if os.fork() == 0:\n    x = os.urandom(60 * 2 ** 20); time.sleep(99)\ntime.sleep(99)",
        (Reason.MEMORY,),
        "more than 128 MiB of memory",
        {**_MEMORY, "seconds": 15},
    ),
    "recursion": Bomb("def f(): f()\nf()", _FAILED, "RecursionError"),
    "deep-recursion": Bomb(
        "import sys; sys.setrecursionlimit(10 ** 9)\ndef f(n): return max(f(n + 1), key=lambda x: x)\nf(0)",
        (Reason.FAILED, Reason.MEMORY),
        "MemoryError|SystemError|SIGSEGV|memory",
        _MEMORY,
    ),
    "deep-source": Bomb("x = " + "(" * 5000 + ")" * 5000, _FAILED, "too many nested|MemoryError|SIGSEGV"),
    "zip": Bomb(
        "import zlib; d = zlib.compress(bytes(10 ** 7), 9); x = [zlib.decompress(d) for _ in range(100)]",
        _FAILED,
        "MemoryError",
        _MEMORY,
    ),
    "socket-buffers": Bomb(
        _FORK + "import socket\nfor _ in range(20):\n  if os.fork() == 0: break\nkeep = []\n"
        "try:\n  while True:\n    pair = socket.socketpair(); keep += pair\n    for one in pair:\n"
        "      one.setblocking(False)\n      try:\n        while True: one.send(b'x' * 4096)\n"
        "      except BlockingIOError: pass\nexcept OSError: pass\ntime.sleep(99)",
        (Reason.MEMORY,),
        "more than 128 MiB of memory",
        {**_MEMORY, "seconds": 15},
    ),
    "larger-socket-buffers": Bomb(
        "import socket\na, b = socket.socketpair(); a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)",
        _FAILED,
        "not permitted",
    ),
    "access-lists": Bomb(
        "import os\nopen('x', 'w').close()\nos.setxattr('x', 'user.a', b'x' * 60_000)", _FAILED, "not permitted"
    ),
    # Processes.
    "fork": Bomb(_FORK + "while True: os.fork()", _FORK_ENDS, limits=_TIME),
    "fork-quietly": Bomb(
        _FORK + "while True:\n  try: os.fork()\n  except OSError: time.sleep(0.01)",
        (Reason.TIMED_OUT, Reason.MEMORY),
        limits=_TIME,
    ),
    "fork-counted": Bomb(
        _FORK + "n = 0\ntry:\n  while True:\n    if os.fork() == 0: time.sleep(99)\n    n += 1\n"
        "except OSError: print('made', n)",
        _FINISHED,
        r"made 1[0-5]\b",
        {"processes": 16},
    ),
    "threads": Bomb(
        "import threading, time\nn = 0\ntry:\n  while True:\n"
        "    threading.Thread(target=time.sleep, args=(99,), daemon=True).start(); n += 1\n"
        "except RuntimeError: print('made', n)",
        _FINISHED,
        r"made 1[0-5]\b",
        {"processes": 16},
    ),
    "zombies": Bomb(
        _FORK + "try:\n  while True:\n    if os.fork() == 0: os._exit(0)\nexcept OSError as e: print(e)",
        _FINISHED,
        "unavailable",
    ),
    "new-sessions": Bomb(
        _FORK + "for _ in range(20):\n  if os.fork() == 0:\n    os.setsid(); time.sleep(99)\nprint('done')",
        _FINISHED,
        "done",
    ),
    "kill-everybody": Bomb(
        "import os, signal; os.kill(-1, signal.SIGKILL); print('alive')", (Reason.FAILED, Reason.FINISHED)
    ),
    "kill-own-group": Bomb("import os, signal; os.killpg(0, signal.SIGKILL)", _FAILED, "SIGKILL"),
    "exec-something-else": Bomb(
        "import os, sys; os.execv(sys.executable, [sys.executable, '-S', '-c', 'import time; time.sleep(99)'])",
        _TIMED_OUT,
        limits=_TIME,
    ),
    # Files.
    "fill-disk": Bomb(
        "n = 0\nwhile True:\n  open(f'{n}', 'wb').write(b'x' * 100_000); n += 1",
        _FAILED,
        "No space left",
        {"disk": 2**20},
    ),
    "one-big-file": Bomb(
        "f = open('x', 'wb')\nwhile True: f.write(b'x' * 2 ** 20)", _FAILED, "No space|too large", {"disk": 2**20}
    ),
    "sparse-file": Bomb("import os; f = open('x', 'wb'); os.truncate('x', 2 ** 40)", _FAILED, "too large"),
    "allocate": Bomb(
        "import os; f = open('x', 'wb'); os.posix_fallocate(f.fileno(), 0, 2 ** 30)", _FAILED, "too large|No space"
    ),
    "many-files": Bomb(
        "n = 0\nwhile True:\n  open(f'{n}', 'w').close(); n += 1",
        (Reason.FILES,),
        "more than 2000 files",
        {"files": 2000},
    ),
    "deep-directories": Bomb(
        "import os\nwhile True:\n  os.mkdir('d'); os.chdir('d')",
        (Reason.FILES, Reason.FAILED),
        "files",
        {"files": 2000},
    ),
    "open-files": Bomb("x = []\nwhile True: x.append(open('/dev/null'))", _FAILED, "Too many open files"),
    "pipes": Bomb("import os\nwhile True: os.pipe()", _FAILED, "Too many open files"),
    # Output.
    "stdout": Bomb(
        "while True: print('x' * 1000)", (Reason.FLOODED,), "bytes left out.*more than 1000000 bytes", {"flood": 10**6}
    ),
    "stderr": Bomb("import sys\nwhile True: sys.stderr.write('x' * 1000)", (Reason.FLOODED,), limits={"flood": 10**6}),
    "no-newline": Bomb("while True: print('x', end='')", (Reason.FLOODED,), limits={"flood": 10**6}),
    "binary": Bomb("import os\nwhile True: os.write(1, os.urandom(65536))", (Reason.FLOODED,), limits={"flood": 10**6}),
    "from-children": Bomb(
        _FORK + "for _ in range(4): os.fork()\nwhile True: os.write(2, b'y' * 9999)",
        (Reason.FLOODED,),
        limits={"flood": 10**6},
    ),
    "one-huge-line": Bomb("print('x' * 5_000_000 + 'end')", _FINISHED, "left out.*end"),
    "not-utf-8": Bomb(r"import os; os.write(1, b'a\xff\xfe\x80b')", _FINISHED, "a\ufffd\ufffd\ufffdb"),
    "surrogates": Bomb(r"print('\ud800')", _FINISHED, r"\\ud800"),
    # Code.
    "too-long": Bomb("x = 1\n" * 100_000, (Reason.REFUSED,), "the code has 600000 bytes"),
    "zero-bytes": Bomb("print(1)\x00print(2)", _FAILED, "null bytes"),
    "lone-surrogate": Bomb("x = '\ud800'", _FAILED, "utf-8|surrogate|unicode"),
    "empty": Bomb("", _FINISHED, "no output"),
    "syntax": Bomb("def f(:", _FAILED, r'File "/tmp/main.py", line 1\n.*SyntaxError'),
    "exit": Bomb("import os; os._exit(7)", _FAILED, "exit status 7"),
    "segmentation-fault": Bomb("import ctypes; ctypes.string_at(0)", _FAILED, "SIGSEGV"),
    "abort": Bomb("import os; os.abort()", _FAILED, "SIGABRT"),
    "closes-output": Bomb("import os; os.close(1); os.close(2)", (Reason.FINISHED, Reason.FAILED)),
    "system-call-of-another-kind": Bomb(
        "import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 39)", (Reason.FAILED, Reason.FINISHED)
    ),
}
"""Name to bomb."""
