"""A small share of the attacks, in seconds; `scripts/attack` runs all of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from attack import agent_shapes, control, random_conversations, tampered_records, trainer_forms
from attack.awkward import AWKWARD
from attack.budgets import budgets, in_a_run
from attack.reply_tracking import attack_reply_tracking, quiet
from attack.streaming import differences
from support.examples import long_families, size
from support.families import FAMILIES, tokenizer
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


@pytest.mark.parametrize("family", ["minimax-m2", "qwen3-coder", "nemotron-3-nano", "phi-4-mini"])
def test_no_control_token_comes_from_data(family: str) -> None:
    """Text that the template completes, keys and roles that it puts in brackets."""
    counted = control.attack(family, quick=True, seed=1)
    assert counted["texts"] > 1000 and counted["control_tokens"] == 0


def test_no_control_token_comes_from_data_that_a_template_truncates() -> None:
    counted = control.cutting(quick=True, seed=1)
    assert counted["texts"] > 80 and counted["control_tokens"] == 0


@pytest.mark.parametrize("family", ["qwen3", "glm-4.6", "deepseek-v3.1", "mistral-small-3.2", "gpt-oss", "minimax-m2"])
def test_streamed_turn_equals_message_of_whole_turn(family: str) -> None:
    assert differences(family, 150, seed=1) == {"messages": 150, "differences": 0}


def test_changed_records_are_found() -> None:
    found = tampered_records.attack_records(2, seed=1)
    assert found["changes"] > 2 * len(tampered_records.CHANGES) and found["changes_missed"] == 0, found


def test_trainers_get_each_token_once_with_its_logprob() -> None:
    found = trainer_forms.attack_trainer_forms(60, seed=1)
    assert found["forms"] - found["refused"] > 800 and found["form_faults"] == 0, found["examples"]


def test_agents_of_all_shapes_are_proved() -> None:
    found = agent_shapes.attack_shapes(20, seed=1)
    assert found["turns"] > 100 and found["shape_faults"] == 0, found["examples"]
    assert {kind.partition(":")[0] for kind in found["kinds"]} == set(agent_shapes.SHAPES), found["kinds"]


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_templates(name: str) -> None:
    subject = random_conversations.Subject(name, tokenizer("qwen2.5"), AWKWARD[name])
    found = random_conversations.attack(subject, size(1, 3), seed=3, turns=8)
    assert not found.counts["differences"], found.examples


@pytest.mark.parametrize("family", long_families(FAMILIES))
def test_families(family: str) -> None:
    subject = random_conversations.Subject(family, tokenizer(family))
    found = random_conversations.attack(subject, 2, seed=4, turns=8)
    assert not found.counts["differences"], found.examples
