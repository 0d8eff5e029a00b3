"""`strands-sglang drift`: runs and message logs, as text, JSON and a page; exit codes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.cli.main import main
from strands_sglang.ledger.run_dir import read_run, write_run
from support.families import tokenizer, tokenizer_path
from support.rollout.agent_kinds import build
from support.rollout.scripts import FAMILY, PromptEngine, run

TOKENIZER = tokenizer_path(FAMILY)
LOG: list[dict[str, Any]] = [{"role": "user", "content": "What is 2 + 3?"}, {"role": "assistant", "content": "5."}]


def script(prompt: str, before: int) -> str:
    called = "<tool_response>" in prompt
    return "the end" if called else '<tool_call>\n{"name":"step","arguments":{"number":1}}\n</tool_call>'


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drift") / "run"
    given = [{"prompt": f"task {number}", "id": f"t{number}"} for number in range(3)]
    asyncio.run(run(build, given, PromptEngine(script), folder, chat_template_kwargs={"add_vision_id": False}))
    return folder


def test_a_run_with_the_tokenizer_of_its_run_file(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drift", str(recorded)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{recorded}  ({tokenizer(FAMILY).name_or_path})\n  3 conversations, 6 turns, ")
    assert "render each turn: 3 of 6 turns differ (50.00%)" in printed.out
    assert printed.out.count("JSON spacing") == 2 and not printed.err
    assert main(["drift", str(recorded), "--episode", "t1/0", "--json", "--examples", "2"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["turns"] == 2 and report["methods"]["render"]["causes"]["json_spacing"]["turns"] == 1
    assert report["examples"][0]["conversation"] == "t1/0"


def test_a_page(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "drift.html"
    assert main(["drift", str(recorded), "--html", str(path), "--examples", "0"]) == 0
    printed = capsys.readouterr()
    assert printed.err == f"strands-sglang: {path} was written\n" and "⟦" not in printed.out
    page = path.read_text()
    assert page.count("<svg") == 2 and "JSON spacing" in page and 'class="example"' in page


def test_a_message_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "messages.jsonl"
    path.write_text(json.dumps({"messages": LOG}) + "\n")
    assert main(["drift", str(path)]) == 2
    assert "--tokenizer must be given for a file" in capsys.readouterr().err
    assert main(["drift", str(path), "--tokenizer", TOKENIZER, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["estimated"]
    path.write_text(f"nonsense\x1b\n{json.dumps(LOG)}\n")
    assert main(["drift", str(path), "--tokenizer", TOKENIZER]) == 1
    printed = capsys.readouterr()
    assert "not read: line 1" in printed.out and "1 problem: the figures do not cover everything" in printed.err
    path.write_text("\n")
    assert main(["drift", str(path), "--tokenizer", TOKENIZER]) == 3


def test_a_run_whose_tokenizer_has_no_name_needs_one(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    (folder / "ledger").mkdir(parents=True)
    for path in (recorded / "ledger").iterdir():
        (folder / "ledger" / path.name).write_bytes(path.read_bytes())
    about = {name: value for name, value in (read_run(recorded) or {}).items() if name != "tokenizer"}
    write_run(folder, about)
    assert main(["drift", str(folder)]) == 2
    assert "run.json does not name the tokenizer" in capsys.readouterr().err
    assert main(["drift", str(folder), "--tokenizer", TOKENIZER]) == 0
    assert "3 of 6 turns differ" in capsys.readouterr().out


def test_wrong_usage(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        ([str(tmp_path / "none"), "--tokenizer", TOKENIZER], "must be the directory of a run, or a file"),
        ([str(tmp_path)], "is not the directory of a run"),
        ([str(recorded), "--episode", "nope\x1b"], r"has no episode 'nope\x1b'"),
        ([str(recorded), "--model-options", '{"tokenizer": "x"}'], "settings of the model only, got 'tokenizer'"),
        ([str(recorded), "--model-options", '{"tool_parser": "hermse"}'], "did you mean 'hermes'"),
    ):
        assert main(["drift", *arguments]) == 2, arguments
        printed = capsys.readouterr()
        assert words in printed.err and not printed.out, arguments
