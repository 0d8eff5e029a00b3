"""`scripts/size`: what counts as what."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "size"

MODULE = '''"""One.

Two.
"""

# a comment
x = 1  # code
"""Of x."""
text = """
# not a comment
"""
'''


def script() -> Any:
    loader = importlib.machinery.SourceFileLoader("size_script", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("size_script", loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


def test_lines_of_a_module_by_kind() -> None:
    counts = script().kinds(MODULE)
    assert counts == {"code": 3, "docstring": 5, "comment": 2, "blank": 1}
    assert sum(counts.values()) == len(MODULE.splitlines())


def test_rows_count_source_tests_and_pages() -> None:
    files = [("src/a.py", MODULE), ("src/a.js", "x"), ("tests/b.py", "x\ny\n"), ("docs/c.md", "three short words")]
    rows = script().sizes([*files, ("README.md", "two words"), ("bench/d.py", "x\n"), ("docs/conf.py", "x\n")])
    assert rows["src: files"] == 1 and rows["src: all lines"] == 11 and rows["src: code"] == 3
    assert rows["tests: lines"] == 2 and rows["documentation: words"] == 5


def test_it_prints_a_table() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "HEAD"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("| | HEAD | now | change |") and "| src: code |" in done.stdout
    wrong = subprocess.run([sys.executable, SCRIPT, "no-such-commit"], capture_output=True, text=True)
    assert wrong.returncode == 1 and "no-such-commit" in wrong.stderr
