"""A small share of the attack with control-token text."""

from __future__ import annotations

import pytest

from attack.control import attack, cutting


@pytest.mark.parametrize("family", ["minimax-m2", "qwen3-coder", "nemotron-3-nano", "phi-4-mini"])
def test_no_control_token_comes_from_data(family: str) -> None:
    """Text that the template completes, keys and roles that it puts in brackets."""
    counted = attack(family, quick=True, seed=1)
    assert counted["texts"] > 1000 and counted["control_tokens"] == 0


def test_no_control_token_comes_from_data_that_a_template_truncates() -> None:
    counted = cutting(quick=True, seed=1)
    assert counted["texts"] > 80 and counted["control_tokens"] == 0
