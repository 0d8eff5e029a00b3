"""A Python installation, as much of it as a sandbox must see: `Interpreter`.

Wherever it lies on the host (a system's, pyenv's, conda's, below a virtual environment), inside it is at `/python`:
code sees the same paths on every machine, and so does the model when they stand in a traceback. Shared libraries are
found by asking the dynamic loader, once. Site-packages are not there; distributions that were named are, at
`/python/packages`.

Invariant: nothing is visible but the interpreter, its standard library, the shared libraries of these, and what was
named. System libraries come with the directory they are in, since a mount for each would be slow.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from strands_sglang.errors import ConfigurationError

HOME = "/python"
PACKAGES = f"{HOME}/packages"
_SHARED = f"{HOME}/shared"
_SYSTEM = tuple(Path(path) for path in ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib"))
_ARROW = re.compile(r"=> (/\S+) \(0x")
_LOADER = re.compile(r"^\s*(/\S+) \(0x", re.MULTILINE)
_HEAVY = ("_tkinter", "_test", "_xx", "_ctypes_test")
"""Extension modules whose libraries are not brought along: no screen, no tests."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What to mount where."""

    executable: Path
    """The program on the host; not a virtual environment's link to it."""
    mounts: tuple[tuple[Path, str], ...]
    """Paths on the host, and where they are inside; all read-only."""
    links: tuple[tuple[str, str], ...]
    """Symbolic links inside: target, and where."""
    hidden: tuple[str, ...]
    """Directories inside that must look empty."""
    library_path: str
    """Where the loader looks for shared libraries inside."""
    packages: tuple[Path, ...]
    """What lies at the top of the distributions that were named, on the host."""

    @property
    def program(self) -> str:
        """The program inside."""
        return f"{HOME}/bin/python3"


@cache
def find_interpreter(python: str, packages: tuple[str, ...]) -> Interpreter:
    """Return what a sandbox needs of a Python.

    Args:
        python: Path of the program; "" for the one that runs this.
        packages: Names of distributions, installed for that Python; what they require comes with them.

    Raises:
        ConfigurationError: The program cannot be run, or a distribution is not installed.
    """
    found = _ask(python or sys.executable, packages)
    stdlib, executable = Path(found["stdlib"]), Path(found["executable"])
    library = f"{HOME}/{found['platlibdir']}/python{found['version']}"
    mounts = [(executable, f"{HOME}/bin/python3"), (stdlib, library)]
    dynload = Path(found["dynload"]) if found["dynload"] else None
    if dynload is not None and dynload.parent != stdlib:
        mounts.append((dynload, f"{library}/lib-dynload"))  # a system with two library directories
    hidden = [f"{library}/{name}" for name in ("site-packages", "dist-packages") if (stdlib / name).is_dir()]
    roots = tuple(Path(path) for path in found["packages"])
    mounts += [(path, f"{PACKAGES}/{path.name}") for path in roots]
    modules = sorted(dynload.glob("*.so")) if dynload is not None else []
    modules = [path for path in modules if not path.name.startswith(_HEAVY)]
    modules += [file for root in roots for file in root.rglob("*.so*") if file.is_file()]
    loader, libraries = _libraries([executable, *modules])
    shared, directories = _placed([path for path in libraries if not _within(path, [stdlib, *roots])])
    links = []
    if loader is not None:
        real = loader.resolve()
        if _within(real, [path for path, _ in directories]):
            links.append((str(real), str(loader)))
        else:
            mounts.append((real, str(loader)))
    where = [_SHARED] * bool(shared) + [inside for _, inside in directories]
    return Interpreter(
        executable, (*mounts, *shared, *directories), tuple(links), tuple(hidden), ":".join(where), roots
    )


def package_directories(python: str, packages: tuple[str, ...]) -> tuple[str, list[str]]:
    """Return an interpreter, and the directories on the host that distributions lie in, for use without a sandbox."""
    found = _ask(python or sys.executable, packages)
    return str(found["executable"]), sorted({str(Path(path).parent) for path in found["packages"]})


def _placed(libraries: Iterable[Path]) -> tuple[list[tuple[Path, str]], list[tuple[Path, str]]]:
    """Return mounts of single libraries, and of whole directories: those of the system."""
    shared, directories = [], set()
    for path in libraries:
        if _within(path.resolve().parent, _SYSTEM):
            directories.add(path.resolve().parent)
        else:
            shared.append((path.resolve(), f"{_SHARED}/{path.name}"))
    outer = [path for path in directories if not _within(path.parent, directories)]
    return shared, [(path, str(path)) for path in sorted(outer)]


def _within(path: Path, directories: Iterable[Path]) -> bool:
    return any(path == directory or directory in path.parents for directory in directories)


def _ask(python: str, packages: tuple[str, ...]) -> dict[str, Any]:
    """Return what an interpreter says of itself."""
    survey = Path(__file__).with_name("survey.py").read_text()
    try:
        answer = subprocess.run(
            [python, "-I", "-c", survey, *packages], capture_output=True, text=True, timeout=60, check=True
        )
        found: dict[str, Any] = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        words = getattr(error, "stderr", "") or str(error)
        raise ConfigurationError(f"python={python!r} cannot be used in the sandbox: {words.strip()}") from error
    if found["missing"]:
        missing = ", ".join(found["missing"])
        raise ConfigurationError(f"packages: {missing} is not installed for {python}: pip install {missing}")
    return found


def _libraries(files: list[Path]) -> tuple[Path | None, list[Path]]:
    """Return the dynamic loader of some programs and modules, and all shared libraries they load."""
    try:
        answer = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, timeout=120)
    except OSError as error:
        raise ConfigurationError(f"the sandbox needs `ldd` to see which libraries Python uses: {error}") from error
    found = {Path(path) for path in _ARROW.findall(answer.stdout)}
    loader = _LOADER.search(answer.stdout)
    # Threads end with the help of this one, which nothing names.
    for path in list(found):
        extra = path.parent / "libgcc_s.so.1"
        if path.name == "libc.so.6" and extra.exists():
            found.add(extra)
    return Path(loader[1]) if loader else None, sorted(found)
