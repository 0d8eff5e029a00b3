"""What a process finds out about a template while it is used."""

from __future__ import annotations

import logging

import pytest

from families import tokenizer
from strands_sglang.chat.findings import Findings, Trust, findings_of
from strands_sglang.chat.lineage import Preamble
from strands_sglang.chat.proved import sound_bridge
from strands_sglang.chat.shape import Shape, Step
from strands_sglang.chat.verdict import Trouble

CALL = (("f", "1"),)


def test_a_step_is_judged_in_the_conversation_it_is_taken_in() -> None:
    """A second run of calls is written otherwise by this template; the first one is exact."""
    tok = tokenizer("deepseek-v3")
    bridge, sound = sound_bridge(tok)
    found = Findings("")
    first, second = Shape(calls=CALL, bare=True), Shape(calls=CALL, bare=True, tool_rounds=True)
    assert found.verdict(bridge, Step.TOOL, first, tools=True).proved
    assert not found.verdict(bridge, Step.TOOL, second, tools=True).proved
    assert "tool" in sound.refused


def test_whether_tools_are_on_offer_counts() -> None:
    tok = tokenizer("deepseek-v4")
    bridge, sound = sound_bridge(tok, arguments={"enable_thinking": True})
    found, shape = Findings(""), Shape(reasoning=True)
    assert found.verdict(bridge, Step.USER, shape, tools=True).proved
    assert not found.verdict(bridge, Step.USER, shape, tools=False).proved
    assert "user without tools" in sound.refused


@pytest.mark.parametrize("family", ["deepseek-r1", "deepseek-v3.1", "qwen2.5"])
def test_reasoning_that_a_template_does_not_write_is_a_rewrite(family: str) -> None:
    tok = tokenizer(family)
    bridge, _ = sound_bridge(tok)
    verdict = Findings("").verdict(bridge, Step.USER, Shape(reasoning=True), tools=False)
    assert verdict.trouble is Trouble.REWRITES and "reasoning" in verdict.witness


def test_a_verdict_that_was_withdrawn_stays_so_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    tok = tokenizer("qwen2.5")
    bridge, _ = sound_bridge(tok)
    found, shape = Findings(""), Shape(bare=True)
    assert found.verdict(bridge, Step.USER, shape, tools=True).proved
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found.withdraw(Step.USER, shape, "a ⟦x⟧→⟦y⟧")
    assert not found.verdict(bridge, Step.USER, shape, tools=True).proved
    assert found.verdict(bridge, Step.TOOL, Shape(calls=CALL, bare=True), tools=True).proved
    assert (found.counts.differences, found.counts.withdrawn) == (2, 1)
    assert sum("no longer proved" in message for message in caplog.messages) == 1


def test_trust_is_for_one_preamble_and_kind() -> None:
    found, shape = Findings(""), Shape(bare=True)
    one, other = Preamble(None, (), "a"), Preamble("Be kind.", (), "b")
    assert found.trust(one, Step.USER, shape) is None
    found.learn(one, Step.USER, shape, Trust.ALONE)
    assert found.trust(one, Step.USER, shape) is Trust.ALONE
    assert found.trust(one, Step.USER, Shape(bare=True, exchanges=True)) is None
    assert found.trust(other, Step.USER, shape) is None


def test_preambles_are_forgotten_one_day() -> None:
    found, shape = Findings(""), Shape()
    for number in range(1100):
        found.learn(Preamble(None, (), str(number)), Step.USER, shape, Trust.ALONE)
    assert found.trust(Preamble(None, (), "0"), Step.USER, shape) is None
    assert found.trust(Preamble(None, (), "1099"), Step.USER, shape) is Trust.ALONE


def test_one_for_a_digest() -> None:
    assert findings_of("a digest of this test") is findings_of("a digest of this test")
