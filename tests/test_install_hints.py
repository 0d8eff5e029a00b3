"""Install commands in messages and pages work: the name on the package index belongs to another package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from strands_sglang._checks import SOURCE, install

ROOT = Path(__file__).resolve().parent.parent
PROJECT = (ROOT / "pyproject.toml").read_text()
EXTRAS = re.findall(r"^(\w+) = \[", PROJECT.partition("[project.optional-dependencies]")[2].partition("\n[")[0], re.M)
_FILES = ("*.py", "*.md", "*.toml", "*.txt", "*.yml", "*.yaml", "*.ipynb", "*.sh")
_FROM_THE_INDEX = re.compile(r"""pip3? install (?:-\S+ )*["'`]?strands[-_]sglang(?!\[\S*\] @ git\+)""")


def shown() -> list[Path]:
    """Return all files of the project that users read."""
    folders = [ROOT / name for name in ("src", "docs", "examples", "lab", "bench", "scripts", ".github")]
    inside = [path for folder in folders for kind in _FILES for path in folder.rglob(kind)]
    scripts = [path for path in (ROOT / "scripts").iterdir() if path.is_file()]
    return [*inside, *scripts, *ROOT.glob("*.md"), ROOT / "pyproject.toml"]


def test_no_page_installs_from_the_package_index() -> None:
    wrong = [path for path in shown() if _FROM_THE_INDEX.search(path.read_text(errors="replace"))]
    assert not wrong


@pytest.mark.parametrize("words", ["pip install 'strands-sglang[ray]'", "pip install -U strands-sglang"])
def test_the_check_finds_install_commands(words: str) -> None:
    assert _FROM_THE_INDEX.search(words) and not _FROM_THE_INDEX.search(install("ray"))


def test_the_address_is_the_projects_own() -> None:
    assert f'Source = "{SOURCE}"' in PROJECT and f"git clone {SOURCE}" in (ROOT / "README.md").read_text()


def test_extras_that_are_named_are_there() -> None:
    texts = [path.read_text(errors="replace") for path in shown()]
    called = {extra for text in texts for extra in re.findall(r"""\binstall\(["'](\w+)["']\)""", text)}
    in_checkouts = {
        extra.strip()
        for text in texts
        for names in re.findall(r"'\.\[([\w, ]+)\]'", text)
        for extra in names.split(",")
    }
    assert {"ray", "progress", "arrow", "sign"} <= called and called | in_checkouts <= set(EXTRAS)
