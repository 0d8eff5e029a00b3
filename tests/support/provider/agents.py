"""What the tests of the provider share: models on a scripted engine, agents, and short names for what they did."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from strands import Agent, ToolContext, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.hooks import AfterModelCallEvent, HookRegistry

from strands_sglang import SGLangModel
from strands_sglang.chat.messages import template_messages, template_tools
from strands_sglang.tokens import TokenTree, Turn
from support.families import tokenizer
from support.scripted_engine import Script, ScriptedEngine


@tool
async def calculator(expression: str) -> str:
    """Work an expression out.

    Args:
        expression: What to work out.
    """
    return str(eval(expression, {"__builtins__": {}}))


@tool
def lookup(word: str) -> str:
    """Look a word up.

    Args:
        word: The word.
    """
    return f"{word} is a word"


@tool(context=True)
async def ask(question: str, tool_context: ToolContext) -> str:
    """Ask a human.

    Args:
        question: What to ask.
        tool_context: Given by the SDK.
    """
    return str(tool_context.interrupt("human", reason=question))


MADE: list[tuple[SGLangModel, ScriptedEngine]] = []
"""The models of the test that runs, for the fixture that checks them after it."""


def scripted_model(
    script: Script, family: str = "qwen3", *, end: str = "<|im_end|>", **config: Any
) -> tuple[SGLangModel, ScriptedEngine]:
    """Return a model and the scripted engine behind it."""
    engine = ScriptedEngine(tokenizer(family), script, end)
    model = SGLangModel(tokenizer=engine.tokenizer, client=engine, **config)
    MADE.append((model, engine))
    return model, engine


def agent_on(model: SGLangModel, **settings: Any) -> Agent:
    """Return a quiet agent that keeps its history as it is, with a calculator."""
    settings.setdefault("tools", [calculator])
    settings.setdefault("conversation_manager", NullConversationManager())
    return Agent(model=model, callback_handler=None, **settings)


def acting(script: Script, family: str = "qwen2.5", **settings: Any) -> tuple[Any, ScriptedEngine, TokenTree]:
    """Return a quiet agent (see `agent_on`) on a model of its own, the scripted engine, and the tree of its episode."""
    config = {key: settings.pop(key) for key in [*settings] if key not in signature(Agent).parameters}
    model, engine = scripted_model(script, family, **config)
    return agent_on(model, **settings), engine, model.current_episode.tree


def outline(tree: TokenTree) -> list[tuple[int | None, str]]:
    """Return parent and join of every turn."""
    return [(turn.parent, turn.join.value) for turn in tree]


def closing(turn: Turn, engine: ScriptedEngine) -> str:
    """Return the text of what closes the turn before."""
    return engine.decode(turn.closing)


def context(turn: Turn, engine: ScriptedEngine) -> str:
    """Return the text of what was appended for a turn."""
    return engine.decode(turn.context)


def sampled(turn: Turn, engine: ScriptedEngine) -> str:
    """Return the text of what a turn sampled."""
    return engine.decode(turn.sampled)


def said(agent: Agent) -> list[str]:
    """Return what an agent's messages say, block by block."""
    told = []
    for message in agent.messages:
        for block in message["content"]:
            if "text" in block:
                told.append(f"{message['role']}: {block['text']}")
            elif "toolUse" in block:
                told.append(f"call {block['toolUse']['name']}")
            elif "toolResult" in block:
                result = block["toolResult"]
                text = "".join(item.get("text", "") for item in result["content"])
                told.append(f"{result['status']}: {text}")
            elif "reasoningContent" in block:
                told.append("thought")
    return told


@dataclass
class Asked:
    """A hook that keeps the messages of every model call as they were when it was made."""

    messages: list[list[Any]] = field(default_factory=list)

    def register_hooks(self, registry: HookRegistry, **_: Any) -> None:
        registry.add_callback(AfterModelCallEvent, self._keep)

    def _keep(self, event: AfterModelCallEvent) -> None:
        self.messages.append(copy.deepcopy(event.agent.messages))


def official(
    agent: Agent,
    engine: ScriptedEngine,
    count: int | None = None,
    *,
    messages: Sequence[Any] | None = None,
    **arguments: Any,
) -> list[int]:
    """Return the ids of one rendering of an agent's messages (the first `count`) by transformers, prompt included."""
    known = agent.messages[:count] if messages is None else messages
    rendered = template_messages([dict(message) for message in known])
    if agent.system_prompt is not None:
        rendered.insert(0, {"role": "system", "content": agent.system_prompt})
    tools = template_tools(agent.tool_registry.get_all_tool_specs())
    text = engine.tokenizer.apply_chat_template(
        rendered, tools=tools, add_generation_prompt=True, tokenize=False, **arguments
    )
    return engine.encode(text)
