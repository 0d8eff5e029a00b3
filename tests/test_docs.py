"""The code blocks of the README and of docs/ run as written, against a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab_servers import LabProcess

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)

BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(_BLOCK.findall(page.read_text()), 1)
]


@pytest.mark.parametrize("block", BLOCKS)
def test_block(block: str, tool_policy: LabProcess) -> None:
    code = block.replace("http://localhost:30000", tool_policy.url)
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, env=dict(os.environ)
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout
    # A first example is silent: nothing that looks like a defect.
    assert not re.findall(r"^.*=<.*> \|.*$", result.stderr, re.MULTILINE), result.stderr


@pytest.mark.parametrize(
    "page",
    [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "lab" / "README.md", *sorted((ROOT / "examples").glob("**/*.md"))],
    ids=lambda p: p.name,
)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose):
        assert (page.parent / target).exists(), f"{page.name} points to {target}"
