"""Parts of a Python installation that a sandbox mounts: `Interpreter`.

Wherever the installation is on the host (system, pyenv, conda, below a virtual environment), it is mounted at
`/python`, so that code and tracebacks have the same paths on every machine. Shared libraries are found once, with
`ldd`. Site-packages are not mounted; named distributions are mounted at `/python/packages`.

Invariant: only the interpreter, its standard library, their shared libraries and the named distributions are visible.
System libraries are mounted as whole directories, because one mount per library would be slow.
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
PROGRAM = f"{HOME}/bin/python3"  # path of the executable in the sandbox
_SHARED = f"{HOME}/shared"
_SYSTEM = tuple(Path(path) for path in ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib"))
_ARROW = re.compile(r"=> (/\S+) \(0x")
_LOADER = re.compile(r"^\s*(/\S+) \(0x", re.MULTILINE)
_SKIPPED = ("_tkinter", "_test", "_xx", "_ctypes_test")
"""Extension modules whose shared libraries are not mounted: graphics and tests."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Mounts of one Python installation."""

    executable: Path
    """Executable on the host; for a virtual environment, the one its link points to."""
    mounts: tuple[tuple[Path, str], ...]
    """Paths on the host and their paths in the sandbox, all read-only."""
    links: tuple[tuple[str, str], ...]
    """Symbolic links in the sandbox: target and path."""
    hidden: tuple[str, ...]
    """Directories that must appear empty in the sandbox."""
    library_path: str
    """LD_LIBRARY_PATH in the sandbox."""
    packages: tuple[Path, ...]
    """Top-level files and directories of the named distributions, on the host."""


@cache
def find_interpreter(python: str, packages: tuple[str, ...]) -> Interpreter:
    """Return the mounts for an interpreter (empty: the one that runs this process).

    `packages`: distributions installed for it; their requirements are included. ConfigurationError if the executable
    cannot be run, or a distribution is not installed.
    """
    info = _interpreter_info(python or sys.executable, packages)
    stdlib, executable = Path(info["stdlib"]), Path(info["executable"])
    library = f"{HOME}/{info['platlibdir']}/python{info['version']}"
    mounts = [(executable, PROGRAM), (stdlib, library)]
    dynload = Path(info["dynload"]) if info["dynload"] else None
    if dynload is not None and dynload.parent != stdlib:
        mounts.append((dynload, f"{library}/lib-dynload"))  # systems with two library directories
    hidden = [f"{library}/{name}" for name in ("site-packages", "dist-packages") if (stdlib / name).is_dir()]
    roots = tuple(Path(path) for path in info["packages"])
    mounts += [(path, f"{PACKAGES}/{path.name}") for path in roots]
    modules = sorted(dynload.glob("*.so")) if dynload is not None else []
    modules = [path for path in modules if not path.name.startswith(_SKIPPED)]
    modules += [file for root in roots for file in root.rglob("*.so*") if file.is_file()]
    loader, libraries = _shared_libraries([executable, *modules])
    shared, directories = _library_mounts([path for path in libraries if not _within(path, [stdlib, *roots])])
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
    """Return an interpreter and the host directories of distributions, for use without isolation."""
    info = _interpreter_info(python or sys.executable, packages)
    return str(info["executable"]), sorted({str(Path(path).parent) for path in info["packages"]})


def _library_mounts(libraries: Iterable[Path]) -> tuple[list[tuple[Path, str]], list[tuple[Path, str]]]:
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


def _interpreter_info(python: str, packages: tuple[str, ...]) -> dict[str, Any]:
    script = Path(__file__).with_name("interpreter_info.py").read_text()
    try:
        answer = subprocess.run(
            [python, "-I", "-c", script, *packages], capture_output=True, text=True, timeout=60, check=True
        )
        info: dict[str, Any] = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        words = getattr(error, "stderr", "") or str(error)
        raise ConfigurationError(f"python={python!r} cannot be used in the sandbox: {words.strip()}") from error
    if info["missing"]:
        missing = ", ".join(info["missing"])
        raise ConfigurationError(f"packages: {missing} is not installed for {python}: pip install {missing}")
    return info


def _shared_libraries(files: list[Path]) -> tuple[Path | None, list[Path]]:
    """Return the dynamic loader of executables and modules, and all shared libraries they load."""
    try:
        answer = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, timeout=120)
    except OSError as error:
        raise ConfigurationError(f"the sandbox needs `ldd` to find the libraries of Python: {error}") from error
    found = {Path(path) for path in _ARROW.findall(answer.stdout)}
    loader = _LOADER.search(answer.stdout)
    # The C library loads libgcc_s to end threads; ldd does not list it.
    for path in list(found):
        extra = path.parent / "libgcc_s.so.1"
        if path.name == "libc.so.6" and extra.exists():
            found.add(extra)
    return Path(loader[1]) if loader else None, sorted(found)
