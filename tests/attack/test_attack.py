"""A small share of the attacks, in seconds; `scripts/attack` plays all of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from attack.budgets import budgets, in_a_run
from attack.lineage import lineage, quiet
from rollout.scripts import assert_proved


def test_no_reply_that_was_thrown_away_is_trained_and_none_that_was_kept_is_lost() -> None:
    found = lineage(20, seed=100)
    assert found["calls"] > 200
    assert (found["rejected_trained"], found["kept_lost"]) == (0, 0), found
    assert (found["behind_rejected"], found["prompts_differ"]) == (0, 0), found


def test_sixteen_agents_at_once_do_not_exceed_a_bound() -> None:
    assert budgets(4, seed=100) == {"budget_exceeded": 0}


def test_the_ledger_of_agents_that_were_stopped_at_a_bound_is_proved(tmp_path: Path) -> None:
    with quiet():
        for seed in range(200, 206):
            assert not asyncio.run(in_a_run(seed, tmp_path / str(seed)))
            assert_proved(tmp_path / str(seed))
