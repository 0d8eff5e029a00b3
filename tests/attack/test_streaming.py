"""A small share of the attack on streaming."""

from __future__ import annotations

import pytest

from attack.streaming import differences


@pytest.mark.parametrize("family", ["qwen3", "glm-4.6", "deepseek-v3.1", "mistral-small-3.2", "gpt-oss", "minimax-m2"])
def test_streamed_turn_equals_message_of_whole_turn(family: str) -> None:
    assert differences(family, 150, seed=1) == {"messages": 150, "differences": 0}
