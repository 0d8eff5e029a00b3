"""The audit of conversations takes little of a run's CPU time."""

from __future__ import annotations

from audit import measure
from families import tokenizer


def test_the_audit_takes_at_most_three_parts_in_a_hundred() -> None:
    figures = measure(tokenizer("qwen2.5"), episodes=300)
    assert figures["audits"] >= 16 and figures["turns"] >= 300 * 8, figures
    assert figures["share"] <= 0.03, figures
