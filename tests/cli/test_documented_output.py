"""The sample output on docs/cli.md and docs/drift.md is what the commands print, except for times."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from strands_sglang.cli.main import main
from support.documented_run import FAMILY, write_documented_run
from support.families import FAMILIES

FIXTURES = os.environ.get("STRANDS_SGLANG_FIXTURES")
ROOT = Path(__file__).resolve().parents[2]
BLOCKS = [
    block
    for page in ("cli.md", "drift.md")
    for block in re.findall(r"^```console\n\$ (.*?)^```", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)
    if "runs/first" in block.partition("\n")[0]
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("documented")
    if FIXTURES:
        (made / "Qwen").mkdir()
        (made / "Qwen" / "Qwen3-8B").symlink_to(Path(FIXTURES) / FAMILY)
    write_documented_run(made / "runs" / "first", str(made / "Qwen" / "Qwen3-8B") if FIXTURES else FAMILIES[FAMILY])
    return made


def without_times(text: str) -> list[str]:
    """Return lines without seconds and places in files, and with single spaces between columns."""
    text = re.sub(r"\(\S*\.py:\d+ in ", "(", text)
    lines = [re.sub(r"\d[\d.e-]* s\b|seconds=\S+|\b\d+\.\d\b(?=  [A-Z])", "-", line) for line in text.splitlines()]
    return [re.sub(r"  +", "  ", line).rstrip() for line in lines]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.partition("\n")[0])
def test_output(block: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    line, _, shown = block.partition("\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")
    assert main(shlex.split(line)[1:]) == 0
    printed, expected = without_times(capsys.readouterr().out), without_times(shown)
    if expected[-1] == "...":  # the page shows the start
        printed, expected = printed[: len(expected) - 1], expected[:-1]
    assert printed == expected


def test_blocks_are_found() -> None:
    assert {shlex.split(block.partition("\n")[0])[1] for block in BLOCKS} == {"eval", "show", "drift"}
