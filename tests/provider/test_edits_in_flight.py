"""A conversation is edited while its turn is sampled, or between turns: what is recorded is what the model saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import product
from typing import Any

import pytest
from strands.hooks import AfterModelCallEvent, AfterToolCallEvent, BeforeModelCallEvent, MessageAddedEvent

from strands_sglang import SGLangModel, fast_agents
from strands_sglang._strands_compat.streams import whole_answer
from strands_sglang.chat.messages import template_messages, template_tools
from strands_sglang.tokens import Join, TokenTree
from support.examples import size
from support.families import tokenizer
from support.provider.agents import acting, calculator, scripted_model
from support.scripted_engine import Reply, ScriptedEngine, tool_call

pytestmark = pytest.mark.usefixtures("exact")

FAMILY = "qwen2.5"
CALLS = [tool_call("calculator", expression=f"{number}+1", digits=0) for number in range(3)]
HOOKS = {
    "before model": BeforeModelCallEvent,
    "after model": AfterModelCallEvent,
    "after tool": AfterToolCallEvent,
    "message added": MessageAddedEvent,
}
MOMENTS = ("in flight", *HOOKS)


def _blocks(messages: list[Any], kind: str) -> Iterator[Any]:
    return (block[kind] for message in messages for block in message["content"] if kind in block)


def text(messages: list[Any]) -> None:
    messages[0]["content"][0]["text"] += " EDITED"


def another_message(messages: list[Any]) -> None:
    messages[0] = {"role": "user", "content": [{"text": "EDITED"}]}


def another_block(messages: list[Any]) -> None:
    del messages[0]["content"][0]
    messages[0]["content"].append({"text": "EDITED"})


def more_blocks(messages: list[Any]) -> None:
    messages[-1]["content"].append({"text": "EDITED"})


def more_messages(messages: list[Any]) -> None:
    messages.append({"role": "user", "content": [{"text": "EDITED"}]})


def result(messages: list[Any]) -> None:
    for found in _blocks(messages, "toolResult"):
        found["content"][0]["text"] = "EDITED"


def failed(messages: list[Any]) -> None:
    for found in _blocks(messages, "toolResult"):
        found["status"], found["content"] = "error", []


def argument(messages: list[Any]) -> None:
    for found in _blocks(messages, "toolUse"):
        found["input"]["expression"] = "EDITED"


def type_of_an_argument(messages: list[Any]) -> None:
    for found in _blocks(messages, "toolUse"):
        found["input"]["digits"] = False


def another_argument(messages: list[Any]) -> None:
    for found in _blocks(messages, "toolUse"):
        found["input"] = {"more": ["EDITED"], **found["input"]}


EDITS = (
    *(text, another_message, another_block, more_blocks, more_messages),
    *(result, failed, argument, type_of_an_argument, another_argument),
)


class Editing:
    """Edits a list of messages once: the first or the second time that a moment comes."""

    def __init__(self, moment: str, edit: Callable[[list[Any]], None], at: int) -> None:
        self.moment, self.edit, self.at, self.times = moment, edit, at, 0
        self.messages: list[Any] = []
        self.expected: list[str] = []
        """One rendering by transformers for each call, of the messages as they were when it was made."""

    def come(self, moment: str) -> None:
        self.times += moment == self.moment
        if moment == self.moment and self.times == self.at:
            self.edit(self.messages)

    def expect(self, *_: Any) -> None:
        tools, messages = template_tools([calculator.tool_spec]), template_messages(self.messages)
        render = tokenizer(FAMILY).apply_chat_template
        self.expected.append(render(messages, tools=tools, add_generation_prompt=True, tokenize=False))

    def script(self) -> list[Reply]:
        async def before() -> None:
            self.come("in flight")

        return [Reply(text, before=before) for text in (*CALLS, "Done.")]

    def check(self, engine: ScriptedEngine, tree: TokenTree) -> None:
        joins = [turn.join for turn in tree]
        assert self.times > 1 and len(joins) == len(engine.prompts) == len(self.expected) == len(CALLS) + 1
        for join, prompt, expected in zip(joins, engine.prompts, self.expected, strict=True):
            assert prompt == expected or join is Join.KEPT, (self.edit.__name__, self.at, joins)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("streaming", [False, True])
async def test_without_an_agent(streaming: bool, moment: str) -> None:
    for edit, at in product(EDITS, (1, 2)):
        editing = Editing(moment, edit, at)
        model, engine = scripted_model(editing.script(), FAMILY, streaming=streaming, audit_share=0)
        await called_directly(model, editing)
        editing.check(engine, model.current_episode.tree)


async def called_directly(model: SGLangModel, editing: Editing) -> None:
    """Call a model in a loop, always with the same list."""
    state: dict[str, Any] = {}

    def add(role: Any, content: Any) -> None:
        editing.messages.append({"role": role, "content": content})
        editing.come("message added")

    add("user", [{"text": "Go."}])
    while True:
        editing.come("before model")
        editing.expect()
        stream = model.stream(editing.messages, [calculator.tool_spec], model_state=state)
        _, content, _ = await whole_answer(stream)
        add("assistant", content)
        editing.come("after model")
        called = [block["toolUse"]["toolUseId"] for block in content if "toolUse" in block]
        if not called:
            return
        results: list[Any] = [{"toolUseId": one, "status": "success", "content": [{"text": "7"}]} for one in called]
        editing.come("after tool")
        add("user", [{"toolResult": one} for one in results])


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("fast", [False, True])
async def test_of_an_agent(fast: bool, moment: str) -> None:
    for edit, at in product(EDITS, (1, 2)[: size(1, 2)]):
        editing = Editing(moment, edit, at)
        agent, engine, tree = acting(editing.script(), FAMILY, audit_share=0)
        editing.messages = agent.messages
        if moment in HOOKS:
            agent.add_hook(lambda _, come=editing.come: come(moment), HOOKS[moment])
        agent.add_hook(editing.expect, BeforeModelCallEvent, order=1000)
        with fast_agents() if fast else nullcontext():
            await agent.invoke_async("Go.")
        editing.check(engine, tree)
