"""Shell completion: the scripts, and what they complete."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from strands_sglang.cli.main import COMMANDS, COMPLETE_VARIABLE, main


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"{COMPLETE_VARIABLE}={shell}_complete" in script and "strands-sglang" in script


def test_an_unknown_shell() -> None:
    with pytest.raises(SystemExit) as exit:
        main(["completion", "tcsh"])
    assert exit.value.code == 2


def completed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    monkeypatch.setenv(COMPLETE_VARIABLE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(["strands-sglang", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    with pytest.raises(SystemExit) as exit:
        main([])
    assert exit.value.code == 0
    return [line.partition(",")[2] for line in capsys.readouterr().out.splitlines()]


def test_completions(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed(capsys, monkeypatch, "s") == [name for name in COMMANDS if name.startswith("s")]
    assert completed(capsys, monkeypatch, "show", "--min") == ["--min-reward"]
    assert completed(capsys, monkeypatch, "show", "runs", "--ended", "turn") == ["turn_limit", "turn_truncated"]
    assert completed(capsys, monkeypatch, "completion", "z") == ["zsh"]
    assert completed(capsys, monkeypatch, "d") == ["doctor", "drift"]
    assert completed(capsys, monkeypatch, "doctor", "--only", "pre") == ["prefix cache"]
    assert completed(capsys, monkeypatch, "view", "--ex") == ["--export"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_in_bash(tmp_path: Path) -> None:
    program = tmp_path / "strands-sglang"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m strands_sglang.cli "$@"\n')
    program.chmod(0o755)
    lines = """
    source <(strands-sglang completion bash)
    COMP_WORDS=(strands-sglang temp) COMP_CWORD=1
    _strands_sglang_completion strands-sglang temp strands-sglang
    echo "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, env=environment, timeout=120)
    assert done.stdout.strip() == "templates", done.stderr
