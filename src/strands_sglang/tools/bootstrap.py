"""First code that runs in the sandbox: drops privileges, sets limits, then runs the program on stdin.

This file is passed as text to the sandbox's interpreter (`python -c`), which may have another Python version. It uses
nothing of this package and imports as little as possible, because imports are most of the cost of a call.

    python -c BOOTSTRAP uid=2000000001 AS=1073741824 NPROC=32 path=/python/packages

Invariant: the model's code is not run or even read before all privileges are dropped and all limits are set.
"""

import sys


def confine(arguments: "list[str]") -> "list[int]":
    """Drop privileges and set limits irrevocably; return the descriptors on which to signal the start."""
    import posix  # os is built on it, and takes milliseconds to import
    import resource

    ready: list[int] = []
    for argument in arguments:
        name, _, value = argument.partition("=")
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


def output_is_closed() -> bool:
    """Return whether nothing reads stdout: the parent was killed before it could end this process."""
    import select

    output = select.poll()
    output.register(1, 0)  # errors only
    return bool(output.poll(0))


def show_error(kind: type, error: BaseException, trace: object) -> None:
    """Print an exception without the frames of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename == "<string>":  # type: ignore[attr-defined]
        trace = trace.tb_next  # type: ignore[attr-defined]
    sys.__excepthook__(kind, error.with_traceback(trace), trace)  # type: ignore[arg-type]


def run(source: bytes, path: str) -> None:
    """Run a program as `__main__`; if its last statement is an expression, print its value as a notebook does."""
    import _ast
    import builtins

    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    with open(path, "wb") as file:
        file.write(source)  # tracebacks show its lines
    main = type(sys)("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    sys.argv = [path]
    sys.excepthook = show_error
    only_tree: int = 0x400  # ast.PyCF_ONLY_AST; ast is slow to import
    tree = compile(source, path, "exec", only_tree, dont_inherit=True)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
    exec(compile(tree, path, "exec", dont_inherit=True), main.__dict__)
    if last is not None:
        exec(compile(_ast.Interactive(body=[last]), path, "single", dont_inherit=True), main.__dict__)


if __name__ == "__main__":
    waiting = confine(sys.argv[1:])
    sys.path[:] = [entry for entry in sys.path if entry]
    import posix

    if output_is_closed():
        posix._exit(0)
    for descriptor in waiting:
        posix.write(descriptor, b".")
        posix.close(descriptor)
    run(sys.stdin.buffer.read(), posix.getcwd() + "/main.py")
