"""`scripts/atlas`: the turns of generated conversations are those that a model samples after its prompt."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "atlas"


@pytest.fixture(scope="module")
def script() -> Any:
    loader = importlib.machinery.SourceFileLoader("atlas_script", str(SCRIPT))
    spec = importlib.util.spec_from_loader("atlas_script", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["atlas_script"] = module
    loader.exec_module(module)
    return module


# The first three write a prompt differently once the turn follows; the last one does not.
@pytest.mark.parametrize("name", ["deepseek-v3.2", "gpt-oss", "kimi-k2-thinking", "qwen3"])
def test_a_turn_is_its_message_and_nothing_before_it(script: Any, name: str) -> None:
    atlas = script.Atlas(name, 1)
    answers = 0
    for seed in range(3):
        messages = script.conversation(atlas.of, seed)
        for at, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            _, _, text = atlas._turn(messages, script.TOOLS, at)
            assert message["content"] in text
            assert '{"km": ' not in text  # a tool result, which is part of the prompt
            assert text.count("</think>") <= bool(atlas.of.sound.reasoning)
            answers += bool(message["content"])
    assert answers
