"""A prompt with join `proved` equals one rendering by transformers, also with templates that inspect texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from strands_sglang import SGLangModel
from strands_sglang.chat.messages import template_messages, template_tools
from strands_sglang.errors import BridgeRefusedError
from strands_sglang.tokens import Join
from support.families import tokenizer
from support.scripted_engine import ScriptedEngine

DEEPSEEK = "<｜end▁of▁sentence｜>"


@tool
def echo(text: str) -> str:
    """Say it again.

    Args:
        text: What.
    """
    return text


@tool
def look_up(word: str) -> str:
    """Look a word up.

    Args:
        word: Which.
    """
    return word


class Talk:
    """An agent on a scripted engine, and transformers' rendering at each of its calls."""

    def __init__(
        self,
        family: str,
        replies: Sequence[str],
        end: str = "<|im_end|>",
        *,
        system: str | None = None,
        tools: Sequence[Any] = (),
        **options: Any,
    ) -> None:
        tok = tokenizer(family)
        self.engine = ScriptedEngine(tok, list(replies), end=end)
        self.model = SGLangModel(tokenizer=tok, client=self.engine, **options)
        self.agent = Agent(
            model=self.model,
            tools=list(tools),
            system_prompt=system,
            callback_handler=None,
            conversation_manager=NullConversationManager(),
        )
        self.official: list[list[int]] = []

    async def ask(self, *questions: str) -> list[tuple[Join, bool]]:
        """Return, for each turn, its join and whether the prompt equals one rendering."""
        template = self.model.planner.bridge.template
        from strands.hooks import BeforeModelCallEvent

        def note(event: Any) -> None:
            messages = template_messages(event.agent.messages)
            if self.agent.system_prompt is not None:
                messages.insert(0, {"role": "system", "content": self.agent.system_prompt})
            tools = template_tools(self.agent.tool_registry.get_all_tool_specs())
            self.official.append(self.engine.encode(template.official(template.fitted(messages), tools=tools)))

        self.agent.add_hook(note, BeforeModelCallEvent)
        for question in questions:
            await self.agent.invoke_async(question)
        turns = self.model.current_episode.tree.turns
        return [
            (turn.join, call.ids == official)
            for turn, call, official in zip(turns, self.engine.calls, self.official, strict=True)
        ]


def exact(turns: list[tuple[Join, bool]]) -> bool:
    return all(same for join, same in turns if join in (Join.ROOT, Join.PROVED, Join.FORKED))


async def test_a_flag_in_the_system_prompt_is_part_of_every_prompt() -> None:
    talk = Talk("smollm3", ["One.", "Two.", "Three."], system="Be brief. /no_think")
    turns = await talk.ask("a?", "b?", "c?")
    assert exact(turns)
    assert turns[0] == (Join.ROOT, True)


async def test_a_template_that_depends_on_the_number_of_tools_is_exact() -> None:
    from attack.awkward import AWKWARD

    source = AWKWARD["a reminder where there are several tools"]
    for tools in ([echo], [echo, look_up]):
        talk = Talk("qwen2.5", ["One.", "Two.", "Three."], tools=tools, chat_template=source)
        assert exact(await talk.ask("a?", "b?", "c?"))


async def test_a_flag_in_the_first_question_is_exact() -> None:
    from attack.awkward import AWKWARD

    source = AWKWARD["a word in the first user message changes all turns"]
    for first in ("a?", "a? /no_think", "b?"):
        talk = Talk("qwen2.5", ["One.", "Two.", "Three."], chat_template=source)
        turns = await talk.ask(first, "b?", "c?")
        assert exact(turns) and [join for join, _ in turns] == [Join.ROOT, Join.PROVED, Join.PROVED]


async def test_a_template_may_rewrite_history_without_tools() -> None:
    replies = ["hm one</think>One.", "hm two</think>Two.", "x</think>Three."]
    talk = Talk("deepseek-v4", replies, DEEPSEEK, enable_thinking=True)
    turns = await talk.ask("a?", "b?", "c?")
    assert exact(turns) and turns[1][0] is Join.KEPT


@pytest.mark.parametrize("policy", ["fork", "refuse"])
@pytest.mark.parametrize(
    ("family", "reply", "end", "options"),
    [
        ("deepseek-r1", "<think>\nSECRET\n</think>\n\nOne.", DEEPSEEK, {}),
        ("deepseek-v3.1", "SECRET</think>One.", DEEPSEEK, {"chat_template_kwargs": {"thinking": True}}),
        ("qwen3", "<think>\nSECRET\n</think>\n\nOne.", "<|im_end|>", {}),
    ],
)
async def test_a_template_that_drops_reasoning_forks_or_refuses(
    policy: str, family: str, reply: str, end: str, options: dict[str, Any]
) -> None:
    talk = Talk(family, [reply] * 2, end, on_template_rewrite=policy, tool_parser="none", **options)
    if policy == "refuse":
        with pytest.raises(BridgeRefusedError):
            await talk.ask("a?", "b?")
        return
    turns = await talk.ask("a?", "b?")
    assert turns[1] == (Join.FORKED, True)
    assert "SECRET" not in talk.engine.prompts[1]


async def test_a_template_with_another_prompt_than_history_is_kept() -> None:
    talk = Talk("deepseek-v3.2", ["One.", "Two."], DEEPSEEK, system="Be kind.")
    turns = await talk.ask("a?", "b?")
    assert turns[0] == (Join.ROOT, True) and turns[1][0] is Join.KEPT


async def test_a_template_that_moves_the_system_prompt_is_kept() -> None:
    talk = Talk("mistral-nemo", ["One.", "Two."], "</s>", system="Be kind.")
    assert (await talk.ask("a?", "b?"))[1][0] is Join.KEPT
    talk = Talk("mistral-nemo", ["One.", "Two."], "</s>")
    turns = await talk.ask("a?", "b?")
    assert exact(turns)
