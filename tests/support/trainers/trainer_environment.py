"""Runs programs in a trainer's own environment (scripts/setup-trainers)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1]
ROOT = TESTS.parent


def python_of(trainer: str) -> str:
    """Return the Python of a trainer's environment; skip the test if there is none, or fail if `CI_TRAINERS` is set."""
    command = [sys.executable, str(ROOT / "scripts" / "setup-trainers"), "--where", trainer]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        message = f"no environment for {trainer}; make it with: scripts/setup-trainers {trainer}\n{found.stderr}"
        pytest.fail(message) if os.environ.get("CI_TRAINERS") else pytest.skip(message)
    return found.stdout.strip()


def run_in_environment(trainer: str, program: str, *arguments: str, seconds: float = 540) -> Any:
    """Run a program of this folder in a trainer's environment and return its last line of output, decoded from JSON."""
    paths = os.pathsep.join(map(str, (TESTS, ROOT / "src")))
    env = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    command = [python_of(trainer), str(HERE / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.strip().splitlines()[-1])
