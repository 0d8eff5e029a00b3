"""Environments of the packages that are compared: the published package, and this one, on the same Python 3.12.

The published package has the same import name as this one and needs Python 3.12, so it gets an environment of its own.
This package is compared with it in a second environment with the same versions of everything else, from the sources of
this checkout. Both are kept in the cache; each appears completely or not at all.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "STRANDS_SGLANG_BENCH_SOURCE"
"""Environment variable with the folder that our package is imported from; by default that of this checkout."""
PUBLISHED = "strands-sglang==0.6.2"
_COMPLETE = "complete"
_IS_312 = "import sys; sys.exit(sys.version_info[:2] != (3, 12))"


class Unavailable(Exception):
    """Something that a comparison needs is missing; the message says what, and how to get it."""


@dataclass(frozen=True)
class Environment:
    """A Python and the sources that it imports besides its own packages."""

    python: str
    path: str
    """PYTHONPATH; empty: none."""

    def variables(self) -> dict[str, str]:
        """Return the environment variables of a process of this environment."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        return {**kept, "TOKENIZERS_PARALLELISM": "false", **({"PYTHONPATH": self.path} if self.path else {})}


def own() -> Environment:
    """Return the environment of this process, with the sources of this checkout."""
    return Environment(sys.executable, os.environ.get(SOURCE, str(ROOT / "src")))


def published(install: bool) -> Environment:
    """Return the environment with the published package.

    Args:
        install: Whether to create it if it is missing; this needs a package index and takes some minutes.

    Raises:
        Unavailable: It is missing and was not, or could not be, created.
    """
    return Environment(_ready(PUBLISHED.replace("==", "-"), [PUBLISHED], None, install), "")


def beside_published(install: bool) -> Environment:
    """Return an environment for this checkout with the same versions as the published package's environment.

    Raises:
        Unavailable: It is missing and was not, or could not be, created.
    """
    theirs = published(install)
    declared = re.search(r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S)
    assert declared is not None
    wanted = re.findall(r'^\s*"([^"]+)"', declared[1], re.M)
    key = hashlib.sha256(" ".join([*wanted, PUBLISHED]).encode()).hexdigest()[:10]
    python = _ready(f"ours-{key}", [*wanted, "strands-agents[openai]"], theirs.python, install)
    return Environment(python, str(ROOT / "src"))


def _ready(name: str, wanted: list[str], like: str | None, install: bool) -> str:
    """Return the Python of an environment in the cache, which is created if it is missing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strands-sglang" / "bench"
    folder = cache / f"{name}-py312"
    python = folder / "bin" / "python"
    if (folder / _COMPLETE).exists():
        return str(python)
    if not install:
        raise Unavailable(f"{name} is not installed: run `bench/run --only agents` once, with a package index")
    print(f"installing {name} into {folder} (once, some minutes)", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        subprocess.run([python312(), "-m", "venv", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if like is not None:
            frozen = subprocess.run([like, "-m", "pip", "freeze"], check=True, capture_output=True, text=True).stdout
            same = [line for line in frozen.splitlines() if "==" in line and not line.startswith("strands-sglang")]
            (folder / "constraints.txt").write_text("\n".join(same))
            pip += ["--constraint", str(folder / "constraints.txt")]
        done = subprocess.run([*pip, *wanted], check=False, capture_output=True, text=True, timeout=900)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"{name} cannot be installed: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "WARNING" not in line]
        raise Unavailable(f"{name} cannot be installed: {' '.join(lines[-3:])}")
    (folder / _COMPLETE).touch()
    return str(python)


def python312() -> str:
    """Return a Python 3.12.

    Raises:
        Unavailable: There is none.
    """
    pyenv = os.environ.get("PYENV_ROOT") or str(Path.home() / ".pyenv")
    found = [sys.executable, "python3.12", *sorted(glob.glob(f"{pyenv}/versions/3.12*/bin/python"))]
    for python in found:
        try:
            if not subprocess.run([python, "-c", _IS_312], check=False, capture_output=True).returncode:
                return python
        except OSError:
            continue
    raise Unavailable("Python 3.12 is needed, and there is none on the PATH or in pyenv")


def versions(environment: Environment, names: list[str]) -> dict[str, str]:
    """Return the versions of Python and of some packages in an environment; packages that it lacks are left out."""
    program = (
        "import json, sys, platform\nfrom importlib.metadata import PackageNotFoundError, version\n"
        "found = {'python': platform.python_version()}\n"
        "for name in sys.argv[1:]:\n    try: found[name] = version(name)\n    except PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        [environment.python, "-c", program, *names],
        check=True,
        capture_output=True,
        text=True,
        env=environment.variables(),
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found
