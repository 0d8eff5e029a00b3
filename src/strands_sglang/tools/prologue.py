"""What runs first in the sandbox: gives up rights, sets limits, then runs the code that stands on stdin.

This file is sent as text to the interpreter of the sandbox (`python -c`), whichever version that is, so it uses nothing
of this package and imports as little as it can: imports are most of what a call costs.

    python -c PROLOGUE uid=2000000001 AS=1073741824 NPROC=32 path=/python/packages

Invariant: no line of the model's code runs, or is even read, before every right is given up and every limit is set.
"""

import sys


def confine(words: "list[str]") -> "list[int]":
    """Become somebody without rights, and set limits that cannot be raised again; return where to say so."""
    import posix  # what os is made of; os itself takes milliseconds
    import resource

    ready: list[int] = []
    for word in words:
        name, _, value = word.partition("=")
        if name == "path":
            sys.path.append(value)
        elif name == "ready":
            ready.append(int(value))
        elif name == "uid":
            number = int(value)
            posix.setgroups([])
            posix.setresgid(number, number, number)
            posix.setresuid(number, number, number)
        else:
            kind = getattr(resource, "RLIMIT_" + name, None)  # not every system has every limit
            if kind is not None:
                soft = int(value)
                hard = resource.getrlimit(kind)[1]
                if hard != resource.RLIM_INFINITY:
                    soft = min(soft, hard)
                resource.setrlimit(kind, (soft, soft + (name == "CPU" and soft != hard)))
    return ready


def is_alone() -> bool:
    """Return whether nobody reads what we write: who started us was killed before it could take us along."""
    import select

    output = select.poll()
    output.register(1, 0)  # errors alone
    return bool(output.poll(0))


def show(kind: type, error: BaseException, trace: object) -> None:
    """Show an error without the lines of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename == "<string>":  # type: ignore[attr-defined]
        trace = trace.tb_next  # type: ignore[attr-defined]
    sys.__excepthook__(kind, error.with_traceback(trace), trace)  # type: ignore[arg-type]


def run(source: bytes, path: str) -> None:
    """Run a program as `__main__`; if its last statement is an expression, show its value as a notebook would."""
    import _ast
    import builtins

    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    with open(path, "wb") as file:
        file.write(source)  # tracebacks show its lines
    main = type(sys)("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    sys.argv = [path]
    sys.excepthook = show
    only_tree: int = 0x400  # ast.PyCF_ONLY_AST, but ast is slow to import
    tree = compile(source, path, "exec", only_tree, dont_inherit=True)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
    exec(compile(tree, path, "exec", dont_inherit=True), main.__dict__)
    if last is not None:
        exec(compile(_ast.Interactive(body=[last]), path, "single", dont_inherit=True), main.__dict__)


if __name__ == "__main__":
    waiting = confine(sys.argv[1:])
    sys.path[:] = [entry for entry in sys.path if entry]
    import posix

    if is_alone():
        posix._exit(0)
    for descriptor in waiting:
        posix.write(descriptor, b".")
        posix.close(descriptor)
    run(sys.stdin.buffer.read(), posix.getcwd() + "/main.py")
