"""Other models for tests: a provider whose answers follow from the conversation, and agents that talk to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from strands import Agent
from strands.agent.conversation_manager import NullConversationManager
from strands.models import Model

from support.rollout.scripts import RAN, asked

Answer = Callable[[list[Any], int], Any]
"""The messages, and how often this model was asked before, to a text, an error to raise, or stream events."""


def spoken(text: str, stop: str = "end_turn") -> list[Any]:
    """Return the stream events of a text that arrives in pieces."""
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
    return [
        {"messageStart": {"role": "assistant"}},
        {"contentBlockStart": {"start": {}}},
        *({"contentBlockDelta": {"delta": {"text": piece}}} for piece in pieces),
        {"contentBlockStop": {}},
        {"messageStop": {"stopReason": stop}},
        {"metadata": {"usage": {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}, "metrics": {"latencyMs": 5}}},
    ]


class Speaker(Model):
    """A provider that is not ours. Every answer has another text, as one that samples."""

    def __init__(self, answer: Answer | None = None, **config: Any) -> None:
        self.answer = answer or (lambda messages, before: f"answer {before} to {last_text(messages)}")
        self.config = {"model_id": "speaker", **config}
        self.asked: list[list[Any]] = []

    def update_config(self, **config: Any) -> None:
        self.config |= config

    def get_config(self) -> Any:
        return self.config

    async def stream(
        self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        self.asked.append(messages)
        RAN("asked")
        answer = self.answer(messages, len(self.asked) - 1)
        if isinstance(answer, BaseException):
            raise answer
        for event in spoken(answer) if isinstance(answer, str) else answer:
            await asyncio.sleep(0)
            yield event

    async def structured_output(
        self, output_model: Any, prompt: Any, system_prompt: Any = None, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        self.asked.append(prompt)
        yield {"messageStart": {"role": "assistant"}}
        yield {"output": output_model.model_validate_json(self.answer(prompt, len(self.asked) - 1))}


def last_text(messages: list[Any]) -> str:
    return next((block["text"] for block in reversed(messages[-1]["content"]) if "text" in block), "")


def quiet(model: Any, **settings: Any) -> Agent:
    return Agent(model=model, callback_handler=None, conversation_manager=NullConversationManager(), **settings)


def taking_turns(agent: Agent, user: Agent, said: str) -> Callable[[], Awaitable[str]]:
    """Return what lets both speak three times each; its result is the agent's last reply."""

    async def talk() -> str:
        text = said
        for _ in range(3):
            reply = str(await agent.invoke_async(text)).strip()
            text = str(await user.invoke_async(f"They said {reply!r}.")).strip()
        return reply

    return talk


def build_with_user(task: Any, model: Any, models: Any) -> Any:
    """The policy and a simulated user take turns."""
    agent, user = quiet(model, name="policy"), quiet(models["user"], name="user", system_prompt="You are a customer.")
    return taking_turns(agent, user, str(task.prompt)), agent


def echo(prompt: str, before: int) -> str:
    return f"policy {len(asked(prompt))}"
