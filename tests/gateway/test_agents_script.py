"""`scripts/agents`: what its scripted model says, what counts as a failure."""

from __future__ import annotations

from typing import Any

import pytest

from support.families import tokenizer
from support.gateway.agents_script import agents_script

RIGHT = {"verdict": "proved", "audit_differences": 0, "end": "answered", "fixed": True, "turns": 5, "requests": 5}


@pytest.mark.parametrize(
    ("changed", "scripted", "real"),
    [
        ({}, True, True),
        ({"turns": 4}, False, True),
        ({"fixed": False}, False, True),
        ({"end": "agent_error"}, False, True),
        ({"audit_differences": 1}, False, False),
        ({"verdict": "broken"}, False, False),
    ],
)
def test_what_is_a_failure(changed: dict[str, Any], scripted: bool, real: bool) -> None:
    row = {**RIGHT, **changed}
    assert agents_script().is_right(row, scripted=True) == scripted
    assert agents_script().is_right(row, scripted=False) == real


@pytest.mark.parametrize(
    ("tools", "delegates", "last"),
    [
        (["bash"], False, "The bug is fixed."),
        (["Bash", "Agent"], False, "The bug is fixed."),
        (["Bash", "Agent"], True, '"name": "Agent"'),
        (["shell", "final_answer"], False, '"name": "final_answer"'),
    ],
)
def test_the_scripted_model_fixes_the_bug_and_ends_as_the_agent_expects(
    tools: list[str], delegates: bool, last: str
) -> None:
    parameters = {"type": "object", "properties": {"command": {"type": "string"}}}
    specs = [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in tools]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Fix the bug."}]
    said = []
    for _ in range(5):
        prompt = tokenizer("qwen3").apply_chat_template(
            messages, tools=specs, tokenize=False, add_generation_prompt=True
        )
        said.append(agents_script().script(prompt, delegates))
        messages += [{"role": "assistant", "content": said[-1]}, {"role": "tool", "content": "done"}]
    assert "ls" in said[0] and said[1].count("<tool_call>") == 2 and "sed -i" in said[2] and "test_calc" in said[3]
    assert last in said[4]
