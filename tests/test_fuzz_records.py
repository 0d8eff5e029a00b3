"""A small share of `scripts/fuzz-records`: in a separate process, which sets timers and limits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "fuzz-records"
KINDS = [("ledger", 150), ("hostile", 30), ("events", 300), ("response", 3000), ("carried", 1000)]


@pytest.mark.parametrize(("kind", "inputs"), KINDS)
def test_no_untyped_error_no_hang_and_bounded_memory(kind: str, inputs: int, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--kind", kind, "--inputs", str(inputs), "--out", str(tmp_path)]
    seen = subprocess.run([*command, "--seed", "1"], capture_output=True, text=True, timeout=500)
    assert seen.returncode == 0, seen.stderr[-3000:]
    told = json.loads(seen.stdout.splitlines()[-1])
    assert (told["inputs"], told["findings"]) == (inputs, 0) and told["megabytes"] < 2048
    assert len(told["outcomes"]) > (0 if kind == "carried" else 1)
