"""The audit of conversations takes little of a run's CPU time."""

from __future__ import annotations

import copy

import pytest

from audit import measure
from support.families import tokenizer


@pytest.mark.soak
def test_the_audit_takes_at_most_three_parts_in_a_hundred() -> None:
    new = copy.deepcopy(tokenizer("qwen2.5"))
    new.chat_template += "{# a template that no other test has used #}"  # so that first episodes are audited here
    figures = measure(new, episodes=300)
    assert figures["audits"] >= 16 and figures["turns"] >= 300 * 8, figures
    assert figures["share"] <= 0.03, figures
