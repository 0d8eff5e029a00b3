"""`scripts/prose` finds what it is for, with its line, and leaves code alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def prose(*files: Path) -> list[str]:
    result = subprocess.run(
        [sys.executable, ROOT / "scripts" / "prose", *files], cwd=files[0].parent, capture_output=True, text=True
    )
    assert bool(result.returncode) == bool(result.stderr), result.stdout + result.stderr
    return (result.stdout + result.stderr).splitlines()


def test_phrases_repetitions_and_spelling_are_found(tmp_path: Path) -> None:
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text("# Title\n\n```python\nmend = 1\n```\n\nFirst `mend` it. Then give the\nsame command again.\n")
    module.write_text('def run():\n    """Return the the value."""\n    raise ValueError("it failed for good")\n')
    found = prose(page, module)
    assert [line.partition(": Write")[0] for line in found if "Write" in line] == [
        "page.md:7: 'give the same command again'",
        "module.py:3: 'for good'",
    ]
    assert any(line.startswith("module.py:2: 'the the") for line in found), found
    assert found[-1] == "prose: 3 of style"
    page.write_text("The tokenizer recieves text.\n")
    assert prose(page)[-1] == "prose: 0 of style, and spelling"


def test_good_prose_and_code_are_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# The ledger\n\nThe ledger is written by `mend for good`.\n\n```sh\nfor good in anew; do :; done\n```\n"
    )
    assert prose(page) == ["prose: 1 files"]
