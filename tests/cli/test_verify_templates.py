"""`strands-sglang verify --templates`: recorded conversations are compared with a full rendering."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from strands import Agent, tool

from strands_sglang.cli.main import main
from strands_sglang.ledger.reader import Ledger
from strands_sglang.runs import rollout
from support.families import FAMILIES, tokenizer
from support.rollout.scripts import FAMILY, PromptEngine, steps

FIXTURES = os.environ.get("STRANDS_SGLANG_FIXTURES")
TOKENIZER = str(Path(FIXTURES) / FAMILY) if FIXTURES else FAMILIES[FAMILY]


@tool
def step(number: int) -> str:
    """Make a step."""
    return f"step {number}"


def build(task: Any, model: Any) -> Agent:
    return Agent(model=model, tools=[step], system_prompt="Go on.", callback_handler=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("templates") / "run"
    run = rollout(
        build,
        ["one", "two", "three"],
        client=PromptEngine(steps(3)),
        tokenizer=tokenizer(FAMILY),
        directory=made,
        audit_share=1,  # audit all episodes
    )
    asyncio.run(run)
    return made


def test_conversations_equal_a_full_rendering(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder), "--templates", TOKENIZER]) == 0
    shown = capsys.readouterr().out
    assert "EXACT  3 conversations compared with one rendering" in shown
    assert "audited" in shown and "0 differ" in shown


def test_one_episode_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = Ledger(folder).ids()[0]
    assert main(["verify", str(folder), "--templates", TOKENIZER, "--json", "--episode", one]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["templates"] == {"conversations": 1, "unknown": 0, "differences": []}
    assert report["audit_differences"] == 0


def test_another_template_differs(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tokenizer(FAMILY).chat_template.replace("# Tools", "# All tools")
    saved = tmp_path / "other"
    tokenizer(FAMILY).save_pretrained(saved)
    (saved / "chat_template.jinja").write_text(other)
    assert main(["verify", str(folder), "--templates", str(saved)]) == 1
    shown = capsys.readouterr().out
    assert "DIFFERENT" in shown and "All tools" in shown
