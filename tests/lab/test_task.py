"""The tool policy's task: what it asks, what its calculator does, what it rewards."""

from __future__ import annotations

import random

import pytest

from support.lab_servers import task


def test_a_right_dialogue_is_rewarded() -> None:
    rng = random.Random(0)
    for _ in range(200):
        drawn = task.sample_task(rng)
        messages = task.dialogue(drawn, compact=rng.random() < 0.5)
        calls = [task.parse_call(message.text) for message in messages if message.role == "assistant"]
        results = [message.text for message in messages if message.role == "tool"]
        assert calls == [*drawn.expressions, None]
        assert results == [task.calculate(expression) for expression in drawn.expressions]
        assert task.score(drawn, messages[-1].text) == 1.0
        assert task.score(drawn, f"The answer is {drawn.answer + 1}.") == 0.0


@pytest.mark.parametrize("expression", ["", "1 / 2", "1 + ", "__import__('os')", "1 + 2 + 3", "1" * 13 + " + 1"])
def test_the_calculator_understands_one_operation_only(expression: str) -> None:
    assert task.calculate(expression) == "error"


@pytest.mark.parametrize(
    "text",
    [
        "The answer is 3.",
        "<tool_call>\n{broken\n</tool_call>",
        '<tool_call>\n{"name": "other", "arguments": {"expression": "1 + 1"}}\n</tool_call>',
        '<tool_call>\n{"name": "calculator", "arguments": "1 + 1"}\n</tool_call>',
        '<tool_call>\n{"name": "calculator", "arguments": {}}\n</tool_call>',
    ],
)
def test_what_is_not_a_call(text: str) -> None:
    assert task.parse_call(text) is None
