"""Whichever reply stands in the conversation that goes on is trained; one that was thrown away never is."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from strands.hooks import AfterModelCallEvent, MessageAddedEvent
from strands.middleware import InvokeModelStage
from strands.types.exceptions import EventLoopException

from provider.agents import agent_on, outline, said, scripted_model
from scripted_engine import Reply, assert_exact, tool_call
from strands_sglang import SGLangModel
from strands_sglang.tokens import TokenTree


def retry_once() -> Callable[[AfterModelCallEvent], None]:
    """Return a hook that throws the first reply away."""
    left = [True]

    def again(event: AfterModelCallEvent) -> None:
        event.retry = bool(left and left.pop())

    return again


def trained(tree: TokenTree) -> list[int]:
    """Return the turns that are trained, in the order of trajectories."""
    found: dict[int, None] = {}
    for one in tree.trajectories():
        found.update((one.turn_ids[int(one.turns[at])], None) for at in one.loss_mask.nonzero()[0])
    return list(found)


@pytest.mark.parametrize("stored", ["whole", "words alone"])
async def test_a_copy_goes_on_from_the_reply_that_was_kept_not_from_its_twin(stored: str) -> None:
    """A guard asks again and the same words come; then a second agent goes on from a copy of the history."""
    model, engine = scripted_model(["Hi.", "Hi.", "A goes on.", "B goes on."], "qwen2.5")
    one = agent_on(model, hooks=[retry_once()])
    await one.invoke_async("Hello")
    history: Any = copy.deepcopy(one.messages)
    if stored == "words alone":
        history = [{"role": message["role"], "content": message["content"]} for message in history]
    await one.invoke_async("Go on, A.")
    await agent_on(model, messages=history).invoke_async("Go on, B.")

    tree = model.current_episode.tree
    assert [(turn.parent, turn.rejected) for turn in tree] == [(None, True), (None, False), (1, False), (1, False)]
    assert trained(tree) == [1, 2, 3]
    assert_exact(engine, model.current_episode)


async def test_the_words_of_a_reply_that_was_thrown_away_are_somebody_else_s() -> None:
    """Another agent has the same words in its history: rendered, not sampled, and so not trained."""
    model, engine = scripted_model(["Hi.", "Yes.", "more"], "qwen2.5")
    await agent_on(model, hooks=[retry_once()]).invoke_async("Hello")
    by_hand: Any = [
        {"role": "user", "content": [{"text": "Hello"}]},
        {"role": "assistant", "content": [{"text": "Hi."}]},
    ]
    await agent_on(model, messages=by_hand).invoke_async("Go on.")

    tree = model.current_episode.tree
    assert outline(tree) == [(None, "root")] * 3
    assert [turn.rejected for turn in tree] == [True, False, False]
    assert trained(tree) == [1, 2]
    assert_exact(engine, model.current_episode)


async def test_of_equal_conversations_each_agent_goes_on_from_its_own() -> None:
    """No memory, no call ids, the same words: what the messages say of themselves tells."""
    model, engine = scripted_model(lambda prompt: "Hi.", "qwen2.5")
    agents = [agent_on(model) for _ in range(4)]
    for agent in agents:
        await agent.invoke_async("Hello")
        agent._model_state.clear()
    for agent in reversed(agents):
        await agent.invoke_async("Hello")

    assert [turn.parent for turn in model.current_episode.tree] == [None] * 4 + [3, 2, 1, 0]
    assert_exact(engine, model.current_episode)


async def test_agents_that_share_one_state_and_ask_again_at_the_same_time() -> None:
    """As the nodes of a graph do: the state names the agent that wrote itself into it last."""

    async def pause() -> None:
        await asyncio.sleep(0.002)

    model, engine = scripted_model(lambda prompt: Reply("Hi.", before=pause), "qwen2.5")
    agents = [agent_on(model, hooks=[retry_once()]) for _ in range(6)]
    state: dict[str, Any] = {}
    await asyncio.gather(*(agent.invoke_async("Hello", invocation_state=state) for agent in agents))

    tree = model.current_episode.tree
    assert len(tree) == 12 and sum(turn.rejected for turn in tree) == 6
    kept = sorted(message["metadata"]["metrics"]["sglang"]["turn"] for one in agents for message in one.messages[1:])  # type: ignore[typeddict-item]
    assert sorted(trained(tree)) == kept
    assert_exact(engine, model.current_episode)


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_hook_that_raises_leaves_no_turn_that_is_trained(streaming: bool) -> None:
    def fail(event: AfterModelCallEvent) -> None:
        if len(engine.calls) == 1:
            raise ValueError("the hook failed")

    model, engine = scripted_model(["Hello there.", "Hello again."], "qwen2.5", streaming=streaming)
    agent = agent_on(model, hooks=[fail])
    with pytest.raises(ValueError, match="the hook failed"):
        await agent.invoke_async("hi")
    tree = model.current_episode.tree
    assert said(agent) == ["user: hi"]
    assert [turn.rejected for turn in tree] == [True]
    assert tree.trajectories() == [] and not any(model.token_manager.loss_mask)

    await agent.invoke_async("again")
    assert [(turn.parent, turn.rejected) for turn in tree] == [(None, True), (None, False)]
    assert trained(tree) == [1]
    assert_exact(engine, model.current_episode)


async def test_a_middleware_that_raises_leaves_no_turn_that_is_trained() -> None:
    async def fail(context: Any, following: Any) -> AsyncGenerator[Any, None]:
        async for event in following(context):
            yield event
        raise ValueError("the middleware failed")

    model, engine = scripted_model(["Hello there."], "qwen2.5")
    agent = agent_on(model)
    agent.add_middleware(InvokeModelStage, fail)
    with pytest.raises(ValueError, match="the middleware failed"):
        await agent.invoke_async("hi")
    assert model.current_episode.trajectories() == []
    assert_exact(engine, model.current_episode)


async def test_a_hook_that_raises_behind_the_reply_does_not_take_it_back() -> None:
    def fail(event: MessageAddedEvent) -> None:
        if event.message["role"] == "assistant" and len(engine.calls) == 1:
            raise ValueError("the hook failed")

    model, engine = scripted_model(["Hello there.", "Hello again."], "qwen2.5")
    agent = agent_on(model, hooks=[fail])
    with pytest.raises(EventLoopException):
        await agent.invoke_async("hi")
    assert said(agent) == ["user: hi", "assistant: Hello there."]
    await agent.invoke_async("again")

    tree = model.current_episode.tree
    assert [(turn.parent, turn.rejected) for turn in tree] == [(None, False), (0, False)]
    assert_exact(engine, model.current_episode)


async def test_a_reply_that_a_middleware_makes_anew_with_the_same_words_stands() -> None:
    async def fresh(context: Any, following: Any) -> AsyncGenerator[Any, None]:
        async for event in following(context):
            if "stop" in event:
                reason, message, usage, _ = event["stop"]
                event["stop"] = (reason, {"role": "assistant", "content": message["content"]}, usage, {"latencyMs": 0})
            yield event

    model, engine = scripted_model(["Hello there.", "Hello again."], "qwen2.5")
    agent = agent_on(model)
    agent.add_middleware(InvokeModelStage, fresh)
    await agent.invoke_async("hi")
    await agent.invoke_async("again")
    assert trained(model.current_episode.tree) == [0, 1]
    assert_exact(engine, model.current_episode)


async def test_a_rejected_reply_is_no_caller_s_and_keeps_no_one_from_going_on() -> None:
    """The calls of a reply that was thrown away have ids too; the ones that are run are those of the kept one."""
    model, engine = scripted_model([tool_call("calculator", expression="1+1")] * 2 + ["two"], "qwen2.5")
    agent = agent_on(model, hooks=[retry_once()])
    await agent.invoke_async("1+1?")

    tree = model.current_episode.tree
    assert [(turn.parent, turn.rejected) for turn in tree] == [(None, True), (None, False), (1, False)]
    assert [turn.forked_from for turn in tree] == [None] * 3
    assert_exact(engine, model.current_episode)


async def test_calls_made_by_hand_count_from_the_beginning() -> None:
    """Nobody tells what becomes of them: no agent, no loop."""
    model, engine = scripted_model(["Hi."], "qwen2.5")
    async for _ in model.stream([{"role": "user", "content": [{"text": "q"}]}], model_state={}):
        pass
    assert trained(model.current_episode.tree) == [0]
    assert_exact(engine, model.current_episode)


async def test_an_agent_that_lives_on_is_listened_to_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, engine = scripted_model(lambda prompt: "Hi.", "qwen2.5")
    agent = agent_on(model)
    for _ in range(3):
        with model.episode() as episode:
            agent.messages.clear()
            await agent.invoke_async("Hello")
        assert trained(episode.tree) == [0]
    assert len(agent.hooks._registered_callbacks[MessageAddedEvent]) == 1
    assert isinstance(agent.model, SGLangModel) and len(engine.calls) == 3
