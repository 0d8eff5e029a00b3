"""`strands-sglang templates`: reports, failures, and hostile text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from strands_sglang.cli.main import main
from support.families import tokenizer_path
from support.rollout.scripts import FAMILY

TOKENIZER = tokenizer_path(FAMILY)


def test_a_template(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["templates", TOKENIZER]) == 0
    name, proved, *rest = capsys.readouterr().out.splitlines()
    assert name == Path(TOKENIZER).name
    assert proved.startswith("  proved   tool, user") and rest[-2].startswith("  advice   ")
    assert main(["templates", TOKENIZER, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["error"] is None and "tool" in report["proved"]


def test_what_cannot_be_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["templates", str(tmp_path)]) == 3
    assert "no tokenizer found" in capsys.readouterr().err
    (tmp_path / "bad\x1b[2J").mkdir()
    (tmp_path / "bad\x1b[2J" / "tokenizer.json").write_text("{}")
    assert main(["templates", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert r"bad\x1b[2J" in printed and "could not be checked" in printed and "\x1b" not in printed
    assert main(["templates", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]
    shutil.rmtree(tmp_path / "bad\x1b[2J")
    assert main(["templates", TOKENIZER, "--chat-template", str(tmp_path / "missing")]) == 2
