"""Rendering a recorded conversation again: with the template of the run, at the time of the episode."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from attack.awkward import chatml
from runs.test_template_time import DATED, build
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.run_dir import read_run
from strands_sglang.runs import Task
from strands_sglang.viewer.drift import rendered_view
from strands_sglang.viewer.token_text import TokenTexts
from support.clock import set_clock
from support.families import tokenizer
from support.rollout.scripts import run
from support.scripted_engine import Reply, ScriptedEngine

CALLS = {
    **{family: call for family, (call, _) in DATED.items()},
    "deepseek-v3.1": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>step<｜tool▁sep｜>{"number": N}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
    ),
    "qwen2.5": '<tool_call>\n{"name": "step", "arguments": {"number": N}}\n</tool_call><|im_end|>',
}
OPTIONS: dict[str, dict[str, Any]] = {
    "smollm3": {"tool_parser": "hermes"},  # its template writes no calls
    "deepseek-v3.1": {"on_hidden_tools": "allow"},
    "qwen2.5": {"chat_template": chatml(user="{{ note ~ m.content }}"), "chat_template_kwargs": {"note": "NB "}},
}


@pytest.mark.parametrize("family", CALLS)
async def test_prompts_are_rendered_as_they_were(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the date of another day, nor another template, nor the form of arguments that a template reads."""
    set_clock(monkeypatch, datetime(2026, 11, 17, 12))
    replies = [Reply(CALLS[family].replace("N", "0"), ended=False), Reply("Done.", ended=False)]
    engine = ScriptedEngine(tokenizer(family), replies)
    await run(build, [Task("go", id="t")], engine, tmp_path, **OPTIONS.get(family, {}))
    set_clock(monkeypatch, datetime(2026, 11, 19, 12))
    record, texts = Ledger(tmp_path).episode("t/0"), TokenTexts(tokenizer(family))
    tree = record.tree()
    (leaf,) = tree.branches()
    view = rendered_view(record, leaf.id, texts, read_run(tmp_path))
    assert view["error"] == ""
    assert all(start >= tree[0].sampled_start for start, *_ in view["spans"])
    assert not view["spans"] or family in ("gpt-oss", "smollm3")  # which write calls in another way
