"""The result of a step depends on its conversation; the first failure counts."""

from __future__ import annotations

import gc
import weakref
from typing import Any, cast

import pytest

from strands_sglang.chat.conversation_shape import ConversationShape, Step
from strands_sglang.chat.soundness import FailureReason, Soundness, StepResult, sound_bridge, soundness
from support.families import tokenizer

GOOD = StepResult()
BAD = StepResult(FailureReason.REWRITES, "there")


def sound(*bad: tuple[Step, bool], reasoning: bool = True, parallel: StepResult = GOOD) -> Soundness:
    verdicts = {(step, kind): BAD if (step, kind) in bad else GOOD for step in Step for kind in (False, reasoning)}
    return Soundness("0", verdicts, parallel, reasoning)


def test_required_checks_cover_turns_with_and_without_reasoning() -> None:
    found = sound((Step.TOOL, False))
    assert found.result(Step.TOOL, ConversationShape(reasoning=True)).proved
    assert not found.result(Step.TOOL, ConversationShape(no_reasoning=True)).proved
    assert not found.result(Step.TOOL, ConversationShape(reasoning=True, no_reasoning=True)).proved
    assert not found.result(Step.TOOL, ConversationShape()).proved, (
        "nothing is known of the turns: the plain kind counts"
    )
    assert found.proved == ["tool", "user", "user after tool", "answer after tool", "parallel tools"]
    assert found.refused == {"tool without reasoning": "there"}


def test_turns_with_unsupported_reasoning_are_not_proved() -> None:
    found = sound((Step.USER, False), reasoning=False)
    assert not found.result(Step.USER, ConversationShape(reasoning=True)).proved
    assert found.refused == {"user": "there"}


def test_user_message_after_tool_run_requires_answer_step() -> None:
    found = sound((Step.ANSWER, True))
    assert found.result(Step.USER, ConversationShape(reasoning=True)).proved
    assert not found.result(Step.USER, ConversationShape(reasoning=True, in_tool_run=True)).proved
    assert found.result(Step.TOOL, ConversationShape(reasoning=True, in_tool_run=True)).proved


def test_several_calls_are_a_separate_check() -> None:
    found = sound(parallel=BAD)
    assert found.result(Step.TOOL, ConversationShape(calls=(("f", "1"),))).proved
    assert found.result(Step.TOOL, ConversationShape(calls=(("f", "1"), ("f", "2")))) is BAD
    assert found.refused == {"parallel tools": "there"}


def test_bridge_is_checked_once_per_tokenizer_template_and_arguments() -> None:
    tok = tokenizer("smollm2")
    assert sound_bridge(tok) is sound_bridge(tok) and soundness(tok) is sound_bridge(tok)[1]
    other = sound_bridge(tok, chat_template="{{ messages[-1].content }}<|im_end|>")
    assert other is not sound_bridge(tok) and other[1].digest != soundness(tok).digest
    assert soundness(tok, arguments={"x": 1}).digest != soundness(tok).digest


def test_report_does_not_keep_tokenizer_alive() -> None:
    from transformers import PreTrainedTokenizerFast

    source, make = tokenizer("smollm2"), cast(Any, PreTrainedTokenizerFast)
    tok = make(tokenizer_object=source.backend_tokenizer, chat_template=source.chat_template)
    assert soundness(tok).proved == ["user"]
    alive = weakref.ref(tok)
    del tok
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    ("family", "arguments", "step"),
    [
        ("glm-4.7-flash", {"clear_thinking": False}, "user"),
        ("nemotron-3-nano", {"truncate_history_thinking": False}, "user"),
        ("qwen3.6", {"preserve_thinking": True}, "user"),
        ("kimi-k2-thinking", {"preserve_thinking": True}, "answer after tool"),
    ],
)
def test_template_argument_that_keeps_reasoning(family: str, arguments: dict[str, bool], step: str) -> None:
    assert step in soundness(tokenizer(family)).refused
    assert step in soundness(tokenizer(family), arguments=arguments).proved
