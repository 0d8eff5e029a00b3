"""What a process knows about a template at run time."""

from __future__ import annotations

import contextlib
import inspect
import logging
import sys
from collections.abc import Callable

import pytest

from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.conversation import Preamble
from strands_sglang.chat.conversation_shape import ConversationShape, Step
from strands_sglang.chat.soundness import FailureReason, RuntimeSoundness, StandIn, runtime_soundness, sound_bridge
from support.examples import long_families
from support.families import FAMILIES, tokenizer

CALL = (("f", "1"),)


WITHOUT_TOOLS = {"gemma-3", "phi-4-mini", "smollm2", "smollm3"}
REWRITES = {"deepseek-v3.2"}


@pytest.mark.parametrize("given", [(), (False,), (False, True)])
@pytest.mark.parametrize("family", long_families(FAMILIES, "smollm3", "minimax-m2"))
def test_first_tool_results_are_proved_also_after_answers_that_were_not_sampled(
    family: str, given: tuple[bool, ...]
) -> None:
    """Holds for 26 of 31 families. `given`: answers in the opening, with or without reasoning."""
    bridge, _ = sound_bridge(tokenizer(family))
    reasons = bridge.template.writes_reasoning
    shape = ConversationShape(CALL, reasons, not reasons, exchanges=bool(given), given=given)
    found = RuntimeSoundness("").result(bridge, Step.TOOL, shape, tools=True)
    assert found.proved == (family not in WITHOUT_TOOLS | REWRITES), found.detail


def test_step_is_checked_in_its_conversation() -> None:
    """This template writes a second series of calls differently; the first one is exact."""
    tok = tokenizer("deepseek-v3")
    bridge, sound = sound_bridge(tok)
    found = RuntimeSoundness("")
    first, second = (
        ConversationShape(calls=CALL, no_reasoning=True),
        ConversationShape(calls=CALL, no_reasoning=True, tool_rounds=True),
    )
    assert found.result(bridge, Step.TOOL, first, tools=True).proved
    assert not found.result(bridge, Step.TOOL, second, tools=True).proved
    assert "tool" in sound.refused


def test_available_tools_affect_the_check() -> None:
    tok = tokenizer("deepseek-v4")
    bridge, sound = sound_bridge(tok, arguments={"enable_thinking": True})
    found, shape = RuntimeSoundness(""), ConversationShape(reasoning=True)
    assert found.result(bridge, Step.USER, shape, tools=True).proved
    assert not found.result(bridge, Step.USER, shape, tools=False).proved
    assert "user without tools" in sound.refused


def deep(call: Callable[[], object], left: int) -> object:
    return call() if left <= 0 else deep(call, left - 1)


@pytest.mark.parametrize("what", ["boundary", "result", "inspections", "depends_on_position"])
def test_what_is_found_where_the_stack_ends_is_not_kept(what: str) -> None:
    """The loop of the SDK calls itself at every turn, so a template may be met first where little stack is left."""
    shape = ConversationShape(CALL, no_reasoning=True, exchanges=True, earlier_rounds=True, given=(False,))

    def find(bridge: Bridge, found: RuntimeSoundness) -> object:
        if what == "boundary":
            return bridge.boundary(shape, "tool")
        if what == "result":
            return found.result(bridge, Step.TOOL, shape, tools=True)
        if what == "inspections":
            return found.inspections(bridge)
        return found.depends_on_position(bridge, Step.TOOL, shape, tools=True, proved=True)

    expected = find(sound_bridge(tokenizer("qwen2.5"))[0], RuntimeSoundness(""))
    # A bridge of its own: an argument that the template does not read.
    bridge, found = sound_bridge(tokenizer("qwen2.5"), arguments={"of": what})[0], RuntimeSoundness("")
    used = len(inspect.stack())
    for left in range(5, 400, 5):  # wherever it is that the stack ends
        with contextlib.suppress(RecursionError):
            deep(lambda: find(bridge, found), sys.getrecursionlimit() - used - left)
    assert find(bridge, found) == expected


@pytest.mark.parametrize("family", ["deepseek-r1", "deepseek-v3.1", "qwen2.5"])
def test_unsupported_reasoning_is_a_rewrite(family: str) -> None:
    tok = tokenizer(family)
    bridge, _ = sound_bridge(tok)
    verdict = RuntimeSoundness("").result(bridge, Step.USER, ConversationShape(reasoning=True), tools=False)
    assert verdict.failure is FailureReason.REWRITES and "reasoning" in verdict.detail


def test_withdrawn_result_is_final_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    tok = tokenizer("qwen2.5")
    bridge, _ = sound_bridge(tok)
    found, shape = RuntimeSoundness(""), ConversationShape(no_reasoning=True)
    assert found.result(bridge, Step.USER, shape, tools=True).proved
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found.withdraw(Step.USER, shape, "a ⟦x⟧→⟦y⟧")
    assert not found.result(bridge, Step.USER, shape, tools=True).proved
    assert found.result(bridge, Step.TOOL, ConversationShape(calls=CALL, no_reasoning=True), tools=True).proved
    assert len(found.withdrawn) == 1
    assert sum("no longer counts as proved" in message for message in caplog.messages) == 1


def test_stand_in_is_cached_per_preamble_and_kind() -> None:
    found, shape = RuntimeSoundness(""), ConversationShape(no_reasoning=True)
    one, other = Preamble(None, (), "a"), Preamble("Be kind.", (), "b")
    assert found.stand_in(one, Step.USER, shape) is None
    found.learn(one, Step.USER, shape, StandIn.WITHOUT_PREAMBLE)
    assert found.stand_in(one, Step.USER, shape) is StandIn.WITHOUT_PREAMBLE
    assert found.stand_in(one, Step.USER, ConversationShape(no_reasoning=True, exchanges=True)) is None
    assert found.stand_in(other, Step.USER, shape) is None


def test_cached_preambles_are_limited() -> None:
    found, shape = RuntimeSoundness(""), ConversationShape()
    for number in range(1100):
        found.learn(Preamble(None, (), str(number)), Step.USER, shape, StandIn.WITHOUT_PREAMBLE)
    assert found.stand_in(Preamble(None, (), "0"), Step.USER, shape) is None
    assert found.stand_in(Preamble(None, (), "1099"), Step.USER, shape) is StandIn.WITHOUT_PREAMBLE


def test_one_runtime_per_digest() -> None:
    assert runtime_soundness("a digest of this test") is runtime_soundness("a digest of this test")
