"""A small share of the attacks, in seconds; `scripts/attack` runs all of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from attack.budgets import budgets, in_a_run
from attack.reply_tracking import attack_reply_tracking, quiet
from support.rollout.scripts import assert_proved


def test_discarded_replies_are_not_trained_and_kept_replies_are_not_lost() -> None:
    found = attack_reply_tracking(20, seed=100)
    assert found["calls"] > 200
    assert (found["rejected_trained"], found["kept_lost"]) == (0, 0), found
    assert (found["after_rejected"], found["prompts_differ"]) == (0, 0), found


def test_sixteen_concurrent_agents_do_not_exceed_a_limit() -> None:
    assert budgets(4, seed=100) == {"budget_exceeded": 0}


def test_ledger_of_agents_stopped_at_a_limit_is_proved(tmp_path: Path) -> None:
    with quiet():
        for seed in range(200, 206):
            assert not asyncio.run(in_a_run(seed, tmp_path / str(seed)))
            assert_proved(tmp_path / str(seed))
