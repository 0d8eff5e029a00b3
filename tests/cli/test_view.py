"""`strands-sglang view`: exports, serves until Ctrl-C, and says what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from strands_sglang.cli.main import main
from support.cli import exit_code
from support.interrupts import PATIENCE, heeds_interrupts
from support.ledger.episodes import plain_episode, written_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with written_run(tmp_path / "run", sealed=False) as writer:
        for number in range(2):
            plain_episode(writer.write, sample=number)
    return tmp_path / "run"


def test_export(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.html"
    assert main(["view", str(folder), "--export", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 2 episodes, {path.stat().st_size:,} bytes\n"
    assert main(["view", str(folder), "--export", str(path), "--episode", "add/1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"file": str(path), "episodes": 1, "bytes": path.stat().st_size}
    assert path.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("as_json", [False, True])
def test_the_page_is_served_until_ctrl_c(folder: Path, as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if as_json:
        monkeypatch.setenv("STRANDS_SGLANG_VIEWER_TOKEN", "a-token-for-scripts")
    words = [sys.executable, "-m", "strands_sglang.cli", "view", str(folder), "--no-browser"]
    words += ["--json"] if as_json else []
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heeds_interrupts
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = json.loads(line)["address"] if as_json else re.findall(r"is shown at (\S+)", line)[0]
        assert address.startswith("http://127.0.0.1:")
        page, token = address.split("?token=")
        assert token == "a-token-for-scripts" if as_json else len(token) == 32
        with urllib.request.urlopen(f"{page}api/rows?since=0&token={token}", timeout=PATIENCE) as answer:
            assert {row["id"] for row in json.load(answer)["rows"]} <= {"add/0", "add/1"}
        process.send_signal(2)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        assert errors == ("" if as_json else "press Ctrl-C to end the viewer\n")
    finally:
        process.kill()


def test_wrong_usage(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        ([str(tmp_path / "none")], "must be the directory of a run"),
        ([str(folder), "--episode", "add/0"], "--export FILE.html"),
        ([str(folder), "--export", str(tmp_path / "x.html"), "--episode", "nope\x1b"], r"has no episode 'nope\x1b'"),
        ([str(folder), "--export", str(tmp_path / "none" / "x.html")], "No such file or directory"),
    ):
        assert main(["view", *arguments]) == 2
        printed = capsys.readouterr()
        assert words in printed.err and not printed.out
    assert exit_code(["view", str(folder), "--port", "70000"]) == 2
