"""A share of `scripts/attack`: random conversations on awkward templates, and on every family."""

from __future__ import annotations

import pytest

from attack.awkward import AWKWARD
from attack.random_conversations import Subject, attack
from support.examples import long_families
from support.families import FAMILIES, tokenizer


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_templates(name: str) -> None:
    found = attack(Subject(name, tokenizer("qwen2.5"), AWKWARD[name]), 3, seed=3, turns=8)
    assert not found.counts["differences"] or found.withdrawn, found.examples


@pytest.mark.parametrize("family", long_families(FAMILIES))
def test_families(family: str) -> None:
    found = attack(Subject(family, tokenizer(family)), 2, seed=4, turns=8)
    assert not found.counts["differences"], found.examples
