"""What is said of a step depends on the conversation it is taken in; the first refusal counts."""

from __future__ import annotations

import gc
import weakref
from typing import Any, cast

import pytest

from families import tokenizer
from strands_sglang.chat.proved import sound_bridge, soundness
from strands_sglang.chat.shape import Shape, Step
from strands_sglang.chat.verdict import Soundness, Trouble, Verdict

GOOD = Verdict()
BAD = Verdict(Trouble.REWRITES, "there")


def sound(*bad: tuple[Step, bool], reasoning: bool = True, parallel: Verdict = GOOD) -> Soundness:
    verdicts = {(step, kind): BAD if (step, kind) in bad else GOOD for step in Step for kind in (False, reasoning)}
    return Soundness("0", verdicts, parallel, reasoning)


def test_turns_with_and_without_reasoning_count_where_there_are_such() -> None:
    found = sound((Step.TOOL, False))
    assert found.verdict(Step.TOOL, Shape(reasoning=True)).proved
    assert not found.verdict(Step.TOOL, Shape(bare=True)).proved
    assert not found.verdict(Step.TOOL, Shape(reasoning=True, bare=True)).proved
    assert not found.verdict(Step.TOOL, Shape()).proved, "nothing is known of the turns: the plain kind counts"
    assert found.proved == ["tool", "user", "user after tool", "answer after tool", "parallel tools"]
    assert found.refused == {"tool without reasoning": "there"}


def test_reasoning_that_the_template_does_not_write_is_none() -> None:
    found = sound((Step.USER, False), reasoning=False)
    assert not found.verdict(Step.USER, Shape(reasoning=True)).proved
    assert found.refused == {"user": "there"}


def test_a_user_message_behind_a_run_of_calls_needs_the_answer_too() -> None:
    found = sound((Step.ANSWER, True))
    assert found.verdict(Step.USER, Shape(reasoning=True)).proved
    assert not found.verdict(Step.USER, Shape(reasoning=True, run=True)).proved
    assert found.verdict(Step.TOOL, Shape(reasoning=True, run=True)).proved


def test_several_calls_are_a_question_of_their_own() -> None:
    found = sound(parallel=BAD)
    assert found.verdict(Step.TOOL, Shape(calls=(("f", "1"),))).proved
    assert found.verdict(Step.TOOL, Shape(calls=(("f", "1"), ("f", "2")))) is BAD
    assert found.refused == {"parallel tools": "there"}


@pytest.mark.parametrize(
    ("trouble", "advice"),
    [
        (None, "Tool results are appended exactly."),
        (Trouble.LACKS, "The template knows no tools"),
        (Trouble.REWRITES, "Tool results cannot be proved"),
        (Trouble.TOKENS, "Tool results cannot be proved"),
    ],
)
def test_advice(trouble: Trouble | None, advice: str) -> None:
    verdicts = {(step, False): Verdict(trouble, "w") for step in Step}
    assert Soundness("0", verdicts, GOOD, False).advice.startswith(advice)


# --- proved once -----------------------------------------------------------------------------------------------------


def test_a_bridge_is_proved_once_for_each_tokenizer_template_and_arguments() -> None:
    tok = tokenizer("smollm2")
    assert sound_bridge(tok) is sound_bridge(tok) and soundness(tok) is sound_bridge(tok)[1]
    other = sound_bridge(tok, chat_template="{{ messages[-1].content }}<|im_end|>")
    assert other is not sound_bridge(tok) and other[1].digest != soundness(tok).digest
    assert soundness(tok, arguments={"x": 1}).digest != soundness(tok).digest


def test_what_is_proved_does_not_keep_a_tokenizer_alive() -> None:
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
def test_a_template_that_is_told_to_keep_reasoning_keeps_it(family: str, arguments: dict[str, bool], step: str) -> None:
    assert step in soundness(tokenizer(family)).refused
    assert step in soundness(tokenizer(family), arguments=arguments).proved
