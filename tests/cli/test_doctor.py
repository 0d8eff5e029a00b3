"""`strands-sglang doctor`: reports as text and JSON, colours, options that reach the checks, exit codes."""

from __future__ import annotations

import json

import pytest

from strands_sglang.cli import _command
from strands_sglang.cli.commands import doctor
from strands_sglang.cli.main import main
from strands_sglang.runs.checks import CHECKS
from support.cli import exit_code
from support.families import tokenizer, tokenizer_path
from support.rollout.agent_kinds import build  # noqa: F401, named on the command line
from support.scripted_fleet import Engine

pytestmark = pytest.mark.usefixtures("no_known_servers")
FAMILY = "qwen2.5"
TOKENIZER = tokenizer_path(FAMILY)


def arguments(url: str, *more: str) -> list[str]:
    return ["doctor", "--base-url", url, "--tokenizer", TOKENIZER, *more]


def test_a_healthy_server(capsys: pytest.CaptureFixture[str]) -> None:
    with Engine(tokenizer(FAMILY)).server() as server:
        code = main(arguments(server.url, "--agent", f"{__name__}:build"))
        lines = capsys.readouterr().out.splitlines()
        assert code in (0, 3)  # 3 where bubblewrap is missing
        assert lines[0] == f"PASS  server           server at {server.url}, serving some/model"
        assert not any(line.startswith("FAIL") for line in lines)
        assert any(line.startswith("PASS  agent ") for line in lines)
        assert lines[-1].startswith(f"{server.url}: ") and "\x1b" not in "".join(lines)


def test_limits_and_options_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with Engine(tokenizer(FAMILY), context=4096).server() as server:
        given = ["--only", "context", "--max-context-tokens", "8192", "--json"]
        assert main(arguments(server.url, *given)) == 1
        (check,) = json.loads(capsys.readouterr().out)["checks"]
        assert check["status"] == "fail" and "--context-length" in check["advice"]
        given = ["--only", "return_logprob", "--sampling-params", '{"top_p": 0.8}', "--json"]
        assert main(arguments(server.url, *given)) == 0
        assert main(arguments(server.url, *given, "--strict")) == 3
        assert "top_p=0.8" in capsys.readouterr().out


def test_no_server(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_command, "wants_colours", lambda stream=None: True)
    assert main(arguments("http://127.0.0.1:9", "--only", "server", "--only", "clock", "--timeout", "5")) == 1
    first, advice, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("\x1b[31;1mFAIL\x1b[0m  server ") and "-> start the server" in advice
    assert second.startswith("\x1b[2;1mSKIP\x1b[0m  clock ")


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for given, words in (
        (arguments("localhost:30000"), "--base-url must look like"),
        (arguments("http://x", "--agent", "nowhere:build"), "cannot import 'nowhere'"),
        (arguments("http://x", "--agent", "nowhere"), "--agent must be MODULE:FUNCTION"),
        (arguments("http://x", "--model-options", '{"timeout": 1}'), "settings of the model only, got 'timeout'"),
    ):
        assert main(given) == 2
        printed = capsys.readouterr()
        assert words in printed.err and not printed.out
    for given in (["doctor"], arguments("http://x", "--only", "nothing")):
        assert exit_code(given) == 2


def test_names_of_checks_are_those_of_the_package() -> None:
    assert tuple(CHECKS) == doctor.CHECKS
