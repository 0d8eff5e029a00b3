"""What our own layer costs a turn does not grow with the conversation."""

from __future__ import annotations

import pytest

from support.families import tokenizer
from turn import measure


@pytest.mark.soak
def test_a_late_turn_costs_little_more_than_an_early_one() -> None:
    # Two things grow: the messages are compared with those on record, and the ids are copied. Measured: 1.2 to 1.6.
    figures = measure(tokenizer("qwen3"), turns=128)
    assert figures["tokens"] > 60_000
    assert figures["ratio"] <= 2.0, figures
