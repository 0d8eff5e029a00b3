"""Conversations that are easily confused: checks which replies are trained.

`attack_reply_tracking` runs episodes of several agents on one model with few different replies, so that conversations
collide, and does to them everything that a framework or a user can do: hooks that retry, keep a discarded reply, or
raise; middleware that calls the model twice; copies with and without model state; histories that are cut, trimmed,
summarized or edited; concurrent calls. The code that keeps or discards a reply records the outcome, which is then
compared with what is trained.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.hooks import AfterModelCallEvent, AfterToolCallEvent, BeforeModelCallEvent, MessageAddedEvent
from strands.middleware import InvokeModelStage

from strands_sglang import SGLangModel, fast_agents
from strands_sglang.chat.messages import template_messages, template_tools
from strands_sglang.engine import Generation
from strands_sglang.errors import EngineError
from strands_sglang.provider.episode import EpisodeTokens
from support.families import tokenizer
from support.scripted_engine import Reply, ScriptedEngine, assert_exact, tool_call

FAMILY = "qwen2.5"
WORDS = ["Hi.", "Yes.", "Hi."]
QUESTIONS = ["Hello", "Go", "Hello"]

last_call: ContextVar[int] = ContextVar("attack_last_call", default=-1)
"""Number of the engine call that was answered last in this context."""
current_request: ContextVar[Any] = ContextVar("attack_asking", default=None)
"""Messages, system prompt and tools of the call that is being made."""


class InjectedError(Exception):
    """Raised by hooks and middleware of the attack."""


class NumberedEngine(ScriptedEngine):
    """An engine that numbers its answers, so that replies with equal text can be distinguished."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.requests: list[tuple[list[int], Any]] = []
        """Ids of every answered prompt, and the request."""

    def decode(self, ids: Iterable[int]) -> str:
        return ""  # the answers do not depend on it, and it is slow

    def encode(self, text: str) -> list[int]:
        return list(_encoded(text))

    def _generation(self, call: Any, reply: Reply) -> Generation:
        number = len(self.requests)
        self.requests.append((call.ids, current_request.get()))
        last_call.set(number)
        return replace(super()._generation(call, reply), rid=str(number))


@lru_cache(maxsize=4096)
def _encoded(text: str) -> tuple[int, ...]:
    return tuple(tokenizer(FAMILY).encode(text, add_special_tokens=False))


class Relay:
    """The engine of models that many episodes share: forwards to the engine of the current episode."""

    engine: NumberedEngine

    async def generate(self, *args: Any, **settings: Any) -> Generation:
        return await self.engine.generate(*args, **settings)

    def stream(self, *args: Any, **settings: Any) -> AsyncGenerator[Any, None]:
        return self.engine.stream(*args, **settings)


@lru_cache(maxsize=8)
def _model(streaming: bool, trims: str) -> tuple[SGLangModel, Relay]:
    relay = Relay()
    return SGLangModel(tokenizer=tokenizer(FAMILY), client=relay, streaming=streaming, on_trim=trims), relay


@dataclass
class ReplyOutcomes:
    """The outcome of every reply, by the number of its engine call."""

    kept: set[int] = field(default_factory=set)
    """Replies that stayed in a conversation."""
    actions: Counter[str] = field(default_factory=Counter)
    """How often each action was applied to the agents."""


@tool
async def calculator(expression: str) -> str:
    """Work it out.

    Args:
        expression: What to work out.
    """
    await asyncio.sleep(0)
    if expression == "boom":
        raise ValueError("boom")
    return expression


class Stage:
    """The agents of one episode, and the actions on them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.outcomes = ReplyOutcomes()
        self.engine = NumberedEngine(tokenizer(FAMILY), self.answer)
        self.trims = self.rng.choice(["fork", "fork", "keep"])
        self.model, relay = _model(self.rng.random() < 0.3, self.trims)
        relay.engine = self.engine
        self.agents: list[Agent] = []
        self.shared: dict[str, Any] = {}
        self.patience = 4

    def answer(self, prompt: str) -> Reply | Exception:
        rng = self.rng
        if rng.random() < 0.03:
            return EngineError("the engine is down")
        slow = rng.random() * 0.002
        before = None if rng.random() < 0.5 else lambda: asyncio.sleep(slow)
        if rng.random() < 0.5:
            return Reply(rng.choice(WORDS), before=before)
        names = rng.choice([["calculator"], ["calculator"], ["calculator", "calculator"], ["delegate"]])
        if self.patience <= 0:
            names = ["calculator"]
        self.patience -= "delegate" in names
        expressions = {"calculator": ["1", "2", "boom"], "delegate": QUESTIONS}
        calls = [tool_call(name, expression=rng.choice(expressions[name])) for name in names]
        return Reply(rng.choice(["", "Well.\n"]) + "\n".join(calls), before=before)

    def count(self, what: str) -> None:
        self.outcomes.actions[what] += 1

    # Agents

    def agent(self, messages: list[Any] | None = None, system: str | None = None) -> Agent:
        @tool
        async def delegate(expression: str) -> str:
            """Ask another agent.

            Args:
                expression: What to ask.
            """
            other = self.agent()
            self.count("sub-agent")
            return str(await other.invoke_async(expression, limits={"turns": 2}))

        agent = Agent(
            model=self.model,
            tools=[calculator, delegate],
            messages=messages or [],
            system_prompt=system,
            callback_handler=None,
            conversation_manager=NullConversationManager(),
        )
        agent.add_hook(self.before_call, BeforeModelCallEvent)
        agent.add_hook(self.decide, AfterModelCallEvent)
        if self.rng.random() < 0.2:
            agent.add_hook(self.edit_result, AfterToolCallEvent)
        if self.rng.random() < 0.1:
            agent.add_hook(self.raise_after, MessageAddedEvent)
        if self.rng.random() < 0.2:
            agent.add_middleware(InvokeModelStage, self.call_twice)
        return agent

    def before_call(self, event: BeforeModelCallEvent) -> None:
        agent: Any = event.agent
        history = copy.deepcopy([{"role": one["role"], "content": one["content"]} for one in agent.messages])
        current_request.set(
            (history, agent.system_prompt, [dict(spec) for spec in agent.tool_registry.get_all_tool_specs()])
        )

    def decide(self, event: AfterModelCallEvent) -> None:
        """Keep a reply, or discard it in one of several ways."""
        response, messages = event.stop_response, event.agent.messages
        if response is None:
            return
        number, fate = last_call.get(), self.rng.random()
        if fate < 0.12:
            self.count("retried")
            event.retry = True
        elif fate < 0.16:
            self.count("steered")
            messages.append({"role": "user", "content": [{"text": self.rng.choice(QUESTIONS)}]})
            event.retry = True
        elif fate < 0.19 and not any("toolUse" in block for block in response.message["content"]):
            self.count("kept by hand")
            messages.append(response.message)
            messages.append({"role": "user", "content": [{"text": "Go"}]})
            self.outcomes.kept.add(number)
            event.retry = True
        elif fate < 0.24:
            self.count("raised")
            raise InjectedError("a hook")
        else:
            self.outcomes.kept.add(number)

    def edit_result(self, event: AfterToolCallEvent) -> None:
        if self.rng.random() < 0.3:
            self.count("result edited")
            event.result["content"] = [{"text": self.rng.choice(["1", "edited"])}]

    def raise_after(self, event: MessageAddedEvent) -> None:
        if event.message["role"] == "assistant" and self.rng.random() < 0.1:
            self.count("raised after the reply")
            raise InjectedError("another hook")

    async def call_twice(self, context: Any, following: Callable[[Any], Any]) -> AsyncGenerator[Any, None]:
        """Sometimes call the model twice and take either reply, or fail after both."""
        first = [event async for event in following(context)]
        if self.rng.random() < 0.5:
            number = last_call.get()
            second = [event async for event in following(context)]
            if self.rng.random() < 0.5:
                self.count("took the second")
                first = second
            else:
                self.count("took the first")
                last_call.set(number)
        if self.rng.random() < 0.1:
            self.count("middleware raised")
            raise InjectedError("a middleware")
        for event in first:
            yield event

    # Actions

    async def act(self) -> None:
        rng = self.rng
        if not self.agents or rng.random() < 0.25:
            self.agents.append(self.agent(system=rng.choice([None, None, "Be kind."])))
        else:
            rng.choice(
                [self.copy, self.copy, self.cut, self.trim, self.summarize, self.edit, self.forget, self.do_nothing]
            )()
        several = rng.sample(self.agents, min(len(self.agents), rng.choice([1, 1, 2, 3])))
        if len({id(one) for one in several}) > 1 and rng.random() < 0.2:
            self.count("shared state")
            await asyncio.gather(*(self.call(one, self.shared) for one in several))
        else:
            await asyncio.gather(*(self.call(one) for one in several))

    async def call(self, agent: Agent, state: dict[str, Any] | None = None) -> None:
        rng = self.rng
        question, limits = rng.choice(QUESTIONS), {"turns": rng.choice([1, 2, 4])}
        given: dict[str, Any] = {} if state is None else {"invocation_state": state}
        leave_early = rng.random() < 0.08
        task = asyncio.ensure_future(self.listen(agent, question, limits, given, leave_early))
        if rng.random() < 0.08:
            await asyncio.sleep(rng.random() * 0.004)
            self.count("cancelled")
            task.cancel()
        try:
            await task
        except (asyncio.CancelledError, Exception) as error:
            self.count(type(error).__name__)

    async def listen(self, agent: Agent, question: str, limits: Any, given: dict[str, Any], leave_early: bool) -> None:
        stream = agent.stream_async(question, limits=limits, **given)
        async for event in stream:
            if leave_early and "data" in event:
                self.count("left")
                await stream.aclose()  # type: ignore[attr-defined]
                return

    def copy(self) -> None:
        source = self.rng.choice(self.agents)
        messages: Any = drop_open_calls(copy.deepcopy(source.messages))
        if self.rng.random() < 0.3:  # as another program would store them
            messages = [{"role": one["role"], "content": one["content"]} for one in messages]
        copied = self.agent(messages, source.system_prompt)
        if self.rng.random() < 0.4:
            copied._model_state = copy.deepcopy(source._model_state)
        self.agents.append(copied)
        self.count("copied")

    def cut(self) -> None:
        messages = self.rng.choice(self.agents).messages
        if messages:
            del messages[self.rng.randrange(len(messages)) :]
            drop_open_calls(messages)
            self.count("cut")

    def trim(self) -> None:
        """Drop the oldest messages, up to a question."""
        messages: Any = self.rng.choice(self.agents).messages
        places = [at for at, one in enumerate(messages) if at and one["role"] == "user" and "text" in one["content"][0]]
        if places:
            del messages[: self.rng.choice(places)]
            self.count("trimmed")

    def summarize(self) -> None:
        messages: Any = self.rng.choice(self.agents).messages
        places = [at for at, one in enumerate(messages) if at and one["role"] == "user" and "text" in one["content"][0]]
        if places:
            summary = {"role": "user", "content": [{"text": self.rng.choice(["Hello", "So far so good."])}]}
            messages[: self.rng.choice(places)] = [summary]
            self.count("summarized")

    def edit(self) -> None:
        agent = self.rng.choice(self.agents)
        blocks: list[Any] = [block for one in agent.messages for block in one["content"] if "text" in block]
        if blocks:
            self.rng.choice(blocks)["text"] = self.rng.choice([*WORDS, "Hello", "edited"])
            self.count("edited")

    def forget(self) -> None:
        self.rng.choice(self.agents)._model_state.clear()
        self.count("forgot")

    def do_nothing(self) -> None:
        """Change nothing."""


def drop_open_calls(messages: list[Any]) -> list[Any]:
    """Drop calls at the end that have no result."""
    while messages and messages[-1]["role"] == "assistant" and any("toolUse" in one for one in messages[-1]["content"]):
        messages.pop()
    return messages


def check_training(stage: Stage, episode: EpisodeTokens) -> Counter[str]:
    """Compare what is trained with the outcome of every reply."""
    assert_exact(stage.engine, episode)
    tree, found = episode.tree, Counter[str]()
    number = {turn.id: int(turn.detail["rid"]) for turn in tree}
    trained = {
        number[one.turn_ids[int(one.turns[at])]] for one in tree.trajectories() for at in one.loss_mask.nonzero()[0]
    }
    found["rejected_trained"] = len(trained - stage.outcomes.kept)
    found["kept_lost"] = len(stage.outcomes.kept - trained)
    found["after_rejected"] = sum(
        turn.parent is not None and number[turn.parent] not in stage.outcomes.kept
        for turn in tree
        if number[turn.id] in stage.outcomes.kept
    )
    found["prompts_differ"] = 0 if stage.trims == "keep" else sum(_differs(one, stage) for one in stage.engine.requests)
    return found


def _differs(requests: tuple[list[int], Any], stage: Stage) -> bool:
    """Return whether a prompt differs from one rendering of the messages."""
    ids, (messages, system, specs) = requests
    rendered = template_messages(messages)
    if system is not None:
        rendered.insert(0, {"role": "system", "content": system})
    text = stage.engine.tokenizer.apply_chat_template(
        rendered, tools=template_tools(specs), add_generation_prompt=True, tokenize=False
    )
    return stage.engine.encode(text) != ids


async def play(seed: int) -> tuple[Stage, Counter[str]]:
    """Run one episode; return it, and the counts of errors."""
    stage = Stage(seed)
    with stage.model.episode(f"episode-{seed}") as episode:
        for _ in range(stage.rng.randint(4, 10)):
            await stage.act()
    return stage, check_training(stage, episode)


@contextmanager
def quiet() -> Iterator[None]:
    """Disable logging and tracing."""
    logging.disable(logging.CRITICAL)
    try:
        with fast_agents():
            yield
    finally:
        logging.disable(logging.NOTSET)


def attack_reply_tracking(episodes: int, seed: int = 0) -> dict[str, Any]:
    """Run episodes; return how many discarded replies were trained, and how many kept replies were not.

    Args:
        episodes: How many.
        seed: Seed of the first; each has its own, so that a failing one can be repeated alone.

    Returns:
        Counts: `episodes`, `calls`, `rejected_trained`, `kept_lost`, `after_rejected` (kept turns whose parent is
        not), `prompts_differ` (from one rendering of the messages); `failed`: seeds of the episodes where any of these
        is not 0; `actions`: the actions on the agents.
    """
    counts, actions, failed, calls = Counter[str](), Counter[str](), [], 0
    with quiet():
        for number in range(seed, seed + episodes):
            stage, found = asyncio.run(play(number))
            calls += len(stage.engine.calls)
            counts.update(found)
            actions.update(stage.outcomes.actions)
            if any(found.values()):
                failed.append(number)
    wrong = {name: counts[name] for name in ("rejected_trained", "kept_lost", "after_rejected", "prompts_differ")}
    return {"episodes": episodes, "calls": calls, **wrong, "failed": failed, "actions": dict(actions)}
