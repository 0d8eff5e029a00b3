"""What the model reads at a step that is not proved, and that no word of a stand-in reaches it."""

from __future__ import annotations

from typing import Any

import pytest

from attack.awkward import AWKWARD
from strands_sglang import SGLangModel
from strands_sglang.chat.messages import template_messages, template_tools
from strands_sglang.chat.soundness import RuntimeSoundness, StandIn, StepResult
from strands_sglang.tokens import Join
from support.families import tokenizer
from support.provider.agents import agent_on
from support.scripted_engine import ScriptedEngine, tool_call

PROBE_WORD = "xQz"


def model_on(name: str, replies: list[str]) -> tuple[SGLangModel, ScriptedEngine]:
    tok = tokenizer("qwen2.5")
    engine = ScriptedEngine(tok, replies)
    return SGLangModel(tokenizer=tok, client=engine, chat_template=AWKWARD[name], audit_share=0), engine


def official(agent: Any, name: str) -> str:
    """Return the rendering of an agent's conversation without its last reply."""
    specs = agent.tool_registry.get_all_tool_specs()
    return str(
        tokenizer("qwen2.5").apply_chat_template(
            template_messages(agent.messages[:-1]),
            tools=template_tools(specs),
            chat_template=AWKWARD[name],
            add_generation_prompt=True,
            tokenize=False,
        )
    )


CALLS = [tool_call("calculator", expression=f"{number}+{number}") for number in range(4)]


@pytest.mark.parametrize("name", ["results are numbered", "all arguments are repeated"])
async def test_kept_step_shows_the_real_conversation(name: str) -> None:
    model, engine = model_on(name, [*CALLS, "Done."])
    agent = agent_on(model)
    await agent.invoke_async("Go")
    assert Join.KEPT in [turn.join for turn in model.current_episode.tree]
    assert engine.prompts[-1] == official(agent, name)


async def test_template_that_repeats_an_argument_is_proved_with_the_real_calls() -> None:
    name = "an argument of the call with the id of a result is repeated"
    model, engine = model_on(name, [*CALLS, "Done."])
    agent = agent_on(model)
    await agent.invoke_async("Go")
    assert engine.prompts[-1] == official(agent, name) and "0+0" in official(agent, name)


async def test_stand_in_whose_words_show_is_not_used() -> None:
    """Even if all evidence were wrong."""
    name = "all arguments are repeated"
    model, engine = model_on(name, [*CALLS, "Done."])
    model.planner.appender.soundness = soundness = RuntimeSoundness("blind")
    soundness.stand_in = lambda *_: StandIn.WITH_PREAMBLE  # type: ignore[method-assign]
    soundness.result = lambda *_, **__: StepResult()  # type: ignore[method-assign]
    agent = agent_on(model)
    await agent.invoke_async("Go")
    assert engine.prompts[-1] == official(agent, name) and PROBE_WORD not in engine.prompts[-1]


async def test_data_with_a_word_of_a_stand_in_is_data() -> None:
    model, engine = model_on("plain", ["One xQzAnchorqZx.", *CALLS[:1], "Two."])
    agent = agent_on(model)
    for question in ("xQzAnchorqZx?", "xQzAnchorqZx xQzAnchor1qZx xQzReplyqZx"):
        await agent.invoke_async(question)
    assert [turn.join for turn in model.current_episode.tree] == [Join.ROOT, Join.PROVED, Join.PROVED]
    assert engine.prompts[-1] == official(agent, "plain")
