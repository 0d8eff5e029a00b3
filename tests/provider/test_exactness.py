"""A prompt with join `proved` equals one rendering by transformers, also with templates that inspect texts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from strands.hooks import BeforeModelCallEvent

from attack.awkward import AWKWARD
from attack.random_conversations import OPENINGS
from strands_sglang.chat.messages import template_messages, template_tools
from strands_sglang.errors import BridgeRefusedError
from strands_sglang.tokens import Join
from support.provider.agents import acting, calculator, lookup
from support.scripted_engine import ScriptedEngine, tool_call

DEEPSEEK = "<｜end▁of▁sentence｜>"
THREE = ["One.", "Two.", "Three."]


async def ask(
    family: str, replies: list[str], *questions: str, **settings: Any
) -> tuple[ScriptedEngine, list[tuple[Join, bool]]]:
    """Return the engine, and for each turn its join and whether its prompt equals one rendering by transformers."""
    agent, engine, tree = acting(replies, family, **{"tools": [], **settings})
    template, expected = agent.model.planner.bridge.template.at(agent.model.current_episode.time), list[list[int]]()

    def note(event: BeforeModelCallEvent) -> None:
        messages = template_messages(event.agent.messages)
        if agent.system_prompt is not None:
            messages.insert(0, {"role": "system", "content": agent.system_prompt})
        tools = template_tools(agent.tool_registry.get_all_tool_specs())
        expected.append(engine.encode(template.official(template.fitted(messages), tools=tools)))

    agent.add_hook(note, BeforeModelCallEvent)
    for question in questions:
        await agent.invoke_async(question)
    calls = zip(tree, engine.calls, expected, strict=True)
    return engine, [(turn.join, call.ids == ids) for turn, call, ids in calls]


def exact(turns: list[tuple[Join, bool]]) -> bool:
    return all(same for join, same in turns if join in (Join.ROOT, Join.PROVED, Join.FORKED))


@pytest.mark.parametrize("opening", OPENINGS)
async def test_steps_after_answers_that_nobody_sampled_are_proved(opening: str) -> None:
    """Such as examples, without the reasoning that sampled turns have."""
    said = [tool_call("calculator", expression=f"{number}+1") for number in range(3)]
    replies = [f"<think>\nhm\n</think>\n\n{text}" for text in (*said, "Done.")]
    messages = copy.deepcopy(list(OPENINGS[opening]))
    _, turns = await ask("qwen3", replies, "a?", tools=[calculator], messages=messages)
    assert turns == [(Join.ROOT, True), *[(Join.PROVED, True)] * len(said)]


async def test_a_flag_in_the_system_prompt_is_part_of_every_prompt() -> None:
    _, turns = await ask("smollm3", THREE, "a?", "b?", "c?", system_prompt="Be brief. /no_think")
    assert exact(turns)
    assert turns[0] == (Join.ROOT, True)


async def test_a_template_that_depends_on_the_number_of_tools_is_exact() -> None:
    source = AWKWARD["a reminder where there are several tools"]
    for tools in ([calculator], [calculator, lookup]):
        _, turns = await ask("qwen2.5", THREE, "a?", "b?", "c?", tools=tools, chat_template=source)
        assert exact(turns)


async def test_a_flag_in_the_first_question_is_exact() -> None:
    source = AWKWARD["a word in the first user message changes all turns"]
    for first in ("a?", "a? /no_think", "b?"):
        _, turns = await ask("qwen2.5", THREE, first, "b?", "c?", chat_template=source)
        assert exact(turns) and [join for join, _ in turns] == [Join.ROOT, Join.PROVED, Join.PROVED]


async def test_a_template_may_rewrite_history_without_tools() -> None:
    replies = ["hm one</think>One.", "hm two</think>Two.", "x</think>Three."]
    _, turns = await ask("deepseek-v4", replies, "a?", "b?", "c?", end=DEEPSEEK, enable_thinking=True)
    assert exact(turns) and turns[1][0] is Join.KEPT


@pytest.mark.parametrize("policy", ["fork", "refuse"])
@pytest.mark.parametrize(
    ("family", "reply", "options"),
    [
        ("deepseek-r1", "<think>\nSECRET\n</think>\n\nOne.", {"end": DEEPSEEK}),
        ("deepseek-v3.1", "SECRET</think>One.", {"end": DEEPSEEK, "chat_template_kwargs": {"thinking": True}}),
        ("qwen3", "<think>\nSECRET\n</think>\n\nOne.", {}),
    ],
)
async def test_a_template_that_drops_reasoning_forks_or_refuses(
    policy: str, family: str, reply: str, options: dict[str, Any]
) -> None:
    settings = {"on_template_rewrite": policy, "tool_parser": "none", **options}
    if policy == "refuse":
        with pytest.raises(BridgeRefusedError) as caught:
            await ask(family, [reply] * 2, "a?", "b?", **settings)
        assert caught.value.step == "user"
        return
    engine, turns = await ask(family, [reply] * 2, "a?", "b?", **settings)
    assert turns[1] == (Join.FORKED, True)
    assert "SECRET" not in engine.prompts[1]


async def test_a_template_with_another_prompt_than_history_is_kept() -> None:
    _, turns = await ask("deepseek-v3.2", THREE, "a?", "b?", end=DEEPSEEK, system_prompt="Be kind.")
    assert turns[0] == (Join.ROOT, True) and turns[1][0] is Join.KEPT


async def test_a_template_that_moves_the_system_prompt_is_kept() -> None:
    _, turns = await ask("mistral-nemo", THREE, "a?", "b?", end="</s>", system_prompt="Be kind.")
    assert turns[1][0] is Join.KEPT
    _, turns = await ask("mistral-nemo", THREE, "a?", "b?", end="</s>")
    assert exact(turns)
