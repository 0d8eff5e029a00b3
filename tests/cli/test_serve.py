"""`strands-sglang serve`: sessions over HTTP until SIGTERM, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.cli.main import main
from strands_sglang.proof import Verdict, verify
from support.families import tokenizer

PATIENCE = 120.0


def call(address: str, token: str, path: str, **body: Any) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    data = json.dumps(body).encode() if body else None
    with urllib.request.urlopen(urllib.request.Request(address + path, data, headers), timeout=PATIENCE) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def test_it_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "strands_sglang.cli", "serve", "--base-url", "http://127.0.0.1:9"]
    command += ["--tokenizer", tokenizer("qwen3").name_or_path, "-d", str(tmp_path / "run"), "--port", "0"]
    environment = {**os.environ, "STRANDS_SGLANG_ADMIN_TOKEN": "t" * 20}
    with subprocess.Popen(
        [*command, "--no-preflight", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        told = json.loads(process.stdout.readline())
        assert told["admin_token"] == "t" * 20
        opened = call(told["address"], told["admin_token"], "/sessions", task="Hello.")
        assert opened["base_url"].startswith(told["address"])
        call(told["address"], told["admin_token"], f"/sessions/{opened['id']}/close", reward=0)
        call(told["address"], told["admin_token"], "/sessions", task="Left open.")
        process.send_signal(signal.SIGTERM)
        errors = process.stderr.read().decode()
        assert process.wait(PATIENCE) == 0, errors
    assert "1 episode ended, 1 left unfinished" in errors
    assert verify(tmp_path / "run").verdict in (Verdict.UNFINISHED, Verdict.EMPTY)


def test_a_short_admin_token_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("STRANDS_SGLANG_ADMIN_TOKEN", "short")
    assert main(["serve", "--base-url", "http://127.0.0.1:9", "--tokenizer", "x"]) == 2
    assert "must have at least 16 characters" in capsys.readouterr().err
