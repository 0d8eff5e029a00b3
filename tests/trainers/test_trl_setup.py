"""scripts/setup-trainers: what it says when an environment is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lab_servers import LAB

SCRIPT = LAB.parent / "scripts" / "setup-trainers"


def setup(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "STRANDS_SGLANG_LAB": str(cache)}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, env=env, check=False
    )


def test_where_names_the_command_and_makes_nothing(tmp_path: Path) -> None:
    done = setup(tmp_path, "--where", "trl")
    assert done.returncode == 1 and not done.stdout and "scripts/setup-trainers trl" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_trainer_nobody_knows_is_refused(tmp_path: Path) -> None:
    done = setup(tmp_path, "dreamer")
    assert done.returncode == 1 and "no trainer is called dreamer; there are trl" in done.stderr


def test_an_environment_that_was_not_finished_is_none(tmp_path: Path) -> None:
    where = subprocess.run(
        [sys.executable, "-c", f"import runpy; print(runpy.run_path({str(SCRIPT)!r})['folder_of']('trl', '3.11'))"],
        capture_output=True,
        text=True,
        env={**os.environ, "STRANDS_SGLANG_LAB": str(tmp_path)},
        check=True,
    )
    folder = Path(where.stdout.strip())
    assert folder.parent == tmp_path
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    assert setup(tmp_path, "--where", "trl").returncode == 1
    (folder / ".complete").touch()
    found = setup(tmp_path, "--where", "trl")
    assert found.returncode == 0 and found.stdout.strip() == str(folder / "bin" / "python")
