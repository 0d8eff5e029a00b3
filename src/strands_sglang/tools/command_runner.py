"""Program that runs a shell command in a sandbox whose files are kept: restores them, runs, and packs them again.

This file is passed as text to the sandbox's interpreter, followed by a call of `main`, and is run by `bootstrap.py`. It
uses nothing of this package and imports as little as possible.

Invariant: the command and whatever it starts have no descriptor of the packed files, and are dead before the files are
packed. The first bytes of the new archive are written last: an archive without them is incomplete.
"""

import posix
import sys

HEADER = 16  # bytes before the archive: the exit status of the command
_KILL = 9


def spawn(argv: "list[str]", env: "dict[str, str]", descriptors: "dict[int, int]", directory: str = "") -> int:
    """Run a program to its end and return its exit status; 128 plus the number of the signal that ended it."""
    pid = posix.fork()
    if pid == 0:
        try:
            for target, source in descriptors.items():
                posix.dup2(source, target)
            if directory:
                posix.chdir(directory)
            posix.execve(argv[0], argv, env)
        except BaseException as error:
            posix.write(2, f"{error}\n".encode("utf-8", "replace"))
        finally:
            posix._exit(126)
    code = posix.waitpid(pid, 0)[1]
    return 128 + (code & 0x7F) if code & 0x7F else code >> 8


def main(command: str, directory: str, variables: "dict[str, str]", before: int, after: int) -> None:
    """Run a command. `before`, `after`: descriptors of the archives of files, read (-1: none) and written."""
    home = posix.getcwd()
    posix.unlink(sys.argv[0])
    for descriptor in {before, after} - {-1}:
        posix.set_inheritable(descriptor, False)
    inherited = {name.decode(): value.decode() for name, value in posix.environ.items()}
    del inherited["LD_LIBRARY_PATH"]  # it is for the interpreter that runs this
    env = {**inherited, "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", **variables}
    null = posix.open("/dev/null", posix.O_RDWR | posix.O_CLOEXEC)
    if before >= 0:
        posix.lseek(before, HEADER, 0)
        if spawn(["/bin/tar", "--skip-old-files", "-xpf", "-"], inherited, {0: before, 2: null}):
            posix.write(2, b"the files of this sandbox could not be restored\n")
            posix._exit(125)
    try:
        posix.mkdir(".tmp", 0o700)
    except OSError:
        pass  # it is there
    shell, stdin = ["/bin/sh", "-c", command], null
    if len(command) > 30_000:  # the kernel's limit of one argument is 128 KiB; a character has up to four bytes
        stdin = posix.open(".", posix.O_RDWR | posix.O_TMPFILE | posix.O_CLOEXEC, 0o600)
        rest = command.encode("utf-8", "replace")
        while rest:
            rest = rest[posix.write(stdin, rest) :]
        posix.lseek(stdin, 0, 0)
        shell = ["/bin/sh"]
    status = spawn(shell, env, {0: stdin}, directory or home)
    try:
        posix.kill(-1, _KILL)  # everything else in this sandbox, but not this process
    except OSError:
        pass  # there is nothing else
    for attempt in range(2):
        posix.ftruncate(after, 0)
        posix.lseek(after, HEADER, 0)
        if spawn(["/bin/tar", "--sparse", "-cf", "-", "."], inherited, {1: after, 2: null}) <= 1:
            posix.pwrite(after, b"%-16d" % status, 0)
            break
        if not attempt:  # files that their owner may not read
            spawn(["/bin/chmod", "-R", "u+rwX", "."], inherited, {1: null, 2: null})
    posix._exit(status)
