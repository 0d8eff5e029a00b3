"""The reply that stays in the conversation is trained; a discarded one never is."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strands import Agent
from strands.hooks import AfterModelCallEvent, MessageAddedEvent
from strands.middleware import InvokeModelStage

from strands_sglang import SGLangModel
from strands_sglang.provider.reply_tracking import TURN_KEY, turns_named_in
from strands_sglang.tokens import TokenTree
from support.provider.agents import acting, agent_on, outline, said, scripted_model
from support.scripted_engine import CHECKED, Reply, assert_exact, tool_call

pytestmark = pytest.mark.usefixtures("exact")


def retry_once() -> Callable[[AfterModelCallEvent], None]:
    """Return a hook that discards the first reply."""
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
async def test_a_copy_continues_from_the_kept_reply_not_its_duplicate(stored: str) -> None:
    """A hook retries and the same text is sampled; then a second agent continues a copy of the history."""
    model, _ = scripted_model(["Hi.", "Hi.", "A goes on.", "B goes on."], "qwen2.5")
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


async def test_text_of_a_discarded_reply_in_another_history_is_not_trained() -> None:
    """Another agent has the same text in its history: rendered, not sampled, and so not trained."""
    model, _ = scripted_model(["Hi.", "Yes.", "more"], "qwen2.5")
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


async def test_agents_with_equal_conversations_continue_their_own() -> None:
    """No state, no call ids, the same text: the metadata of the messages identifies the turns."""
    model, _ = scripted_model(lambda prompt: "Hi.", "qwen2.5")
    agents = [agent_on(model) for _ in range(4)]
    for agent in agents:
        await agent.invoke_async("Hello")
        agent._model_state.clear()
    for agent in reversed(agents):
        await agent.invoke_async("Hello")

    assert [turn.parent for turn in model.current_episode.tree] == [None] * 4 + [3, 2, 1, 0]


async def test_agents_that_share_a_state_and_retry_concurrently() -> None:
    """As with nodes of a graph: the state names the agent that was written into it last."""

    async def pause() -> None:
        await asyncio.sleep(0.002)

    model, _ = scripted_model(lambda prompt: Reply("Hi.", before=pause), "qwen2.5")
    agents = [agent_on(model, hooks=[retry_once()]) for _ in range(6)]
    state: dict[str, Any] = {}
    await asyncio.gather(*(agent.invoke_async("Hello", invocation_state=state) for agent in agents))

    tree = model.current_episode.tree
    assert len(tree) == 12 and sum(turn.rejected for turn in tree) == 6
    kept = sorted(message["metadata"]["metrics"]["sglang"]["turn"] for one in agents for message in one.messages[1:])  # type: ignore[typeddict-item]
    assert sorted(trained(tree)) == kept


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_hook_that_raises_leaves_no_turn_that_is_trained(streaming: bool) -> None:
    def fail(event: AfterModelCallEvent) -> None:
        if len(engine.calls) == 1:
            raise ValueError("the hook failed")

    agent, engine, tree = acting(["Hello there.", "Hello again."], hooks=[fail], streaming=streaming)
    with pytest.raises(ValueError, match="the hook failed"):
        await agent.invoke_async("hi")
    assert said(agent) == ["user: hi"]
    assert [turn.rejected for turn in tree] == [True]
    assert tree.trajectories() == [] and not any(agent.model.token_manager.loss_mask)

    await agent.invoke_async("again")
    assert [(turn.parent, turn.rejected) for turn in tree] == [(None, True), (None, False)]
    assert trained(tree) == [1]


async def test_a_reply_rebuilt_by_a_middleware_with_equal_text_is_kept() -> None:
    async def fresh(context: Any, following: Any) -> AsyncGenerator[Any, None]:
        async for event in following(context):
            if "stop" in event:
                reason, message, usage, _ = event["stop"]
                event["stop"] = (reason, {"role": "assistant", "content": message["content"]}, usage, {"latencyMs": 0})
            yield event

    agent, _, tree = acting(["Hello there.", "Hello again."])
    agent.add_middleware(InvokeModelStage, fresh)
    await agent.invoke_async("hi")
    await agent.invoke_async("again")
    assert trained(tree) == [0, 1]


async def test_a_rejected_reply_is_not_a_caller_and_blocks_nothing() -> None:
    """The calls of a discarded reply have ids too; only the calls of the kept one are run."""
    agent, _, tree = acting([tool_call("calculator", expression="1+1")] * 2 + ["two"], hooks=[retry_once()])
    await agent.invoke_async("1+1?")
    assert [(turn.parent, turn.rejected) for turn in tree] == [(None, True), (None, False), (1, False)]
    assert [turn.forked_from for turn in tree] == [None] * 3


async def test_calls_without_an_agent_are_kept_from_the_start() -> None:
    """Their replies are not tracked: there is no agent and no loop."""
    model, _ = scripted_model(["Hi."], "qwen2.5")
    async for _ in model.stream([{"role": "user", "content": [{"text": "q"}]}], model_state={}):
        pass
    assert trained(model.current_episode.tree) == [0]


def leave_by_cancel(agent: Agent) -> None:
    agent.cancel()


def leave_by_task(agent: Agent) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


def leave_by_error(agent: Agent) -> None:
    raise ConnectionError("the reader left")


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("leave", [leave_by_cancel, leave_by_task, leave_by_error])
async def test_a_reply_that_was_not_received_is_not_trained(
    leave: Callable[[Agent], None], streaming: bool, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader leaves at each event, and after the last one; its generators may be closed much later, or never."""
    if not known:
        monkeypatch.setattr("strands_sglang.model.calling_agent", lambda *_: None)
    kept, open_streams = [], []
    for at in range(1, 20):
        agent, _, tree = acting(["Hello there friend."], streaming=streaming)

        async def read(agent: Any, at: int) -> int:
            events = agent.stream_async("hi")
            open_streams.append(events)
            seen = 0
            async for event in events:
                seen += "event" in event
                if seen == at and "event" in event:
                    leave(agent)
                    await asyncio.sleep(0)
            return seen

        seen, ends = at, (asyncio.CancelledError, ConnectionError)
        with contextlib.suppress(*ends):
            seen = await asyncio.ensure_future(read(agent, at))
        received = [block["text"] for one in agent.messages if one["role"] == "assistant" for block in one["content"]]
        was_added = "Hello there friend." in received
        # Without metadata, which are the last event, an unknown agent's message names no turn: that is not trained.
        assert bool(trained(tree)) == was_added or (was_added and not known and leave is leave_by_cancel), at
        kept.append(bool(trained(tree)))
        if seen < at:
            break
    assert not kept[0] and kept[-1]  # it was never received, and received whole
    for events in open_streams:
        with contextlib.suppress(Exception):
            await events.aclose()


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_reply_is_not_kept_if_its_agent_is_cancelled_before_it_is_added(streaming: bool) -> None:
    """All events were received, and a hook waits before the message is added."""

    async def wait(event: AfterModelCallEvent) -> None:
        committed.set()
        await asyncio.Event().wait()

    committed = asyncio.Event()
    agent, _, tree = acting(["Hello there."], hooks=[wait], streaming=streaming)
    work = asyncio.ensure_future(agent.invoke_async("hi"))
    await committed.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert [turn.rejected for turn in tree] == [True] and tree.trajectories() == []


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_reply_to_a_caller_without_an_agent_is_kept_once_all_of_it_was_received(streaming: bool) -> None:
    """As a gateway calls the model: whether its client got the reply is known when all events were taken."""
    model, engine = scripted_model(lambda prompt: "Hello there.", "qwen2.5", streaming=streaming)
    messages: Any = [{"role": "user", "content": [{"text": "q"}]}]
    whole = [event async for event in model.stream(messages, model_state={})]
    assert trained(model.current_episode.tree) == [0]
    open_streams: list[Any] = []
    for left in range(len(whole)):
        with model.episode() as episode:
            open_streams.append(model.stream(messages, model_state={}))
            for _ in range(left + 1):
                await anext(open_streams[-1])
            assert trained(episode.tree) == [], left
    for events in open_streams:
        await events.aclose()
    CHECKED.add(id(engine))


async def test_a_long_lived_agent_gets_one_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, engine, _ = acting(lambda prompt: "Hi.")
    episodes = []
    for _ in range(3):
        with agent.model.episode() as episode:
            episodes.append(episode)
            agent.messages.clear()
            await agent.invoke_async("Hello")
        assert trained(episode.tree) == [0]
    assert len(agent.hooks._registered_callbacks[MessageAddedEvent]) == 1
    assert isinstance(agent.model, SGLangModel) and len(engine.calls) == 3
    assert_exact(engine, *episodes)


def named(turn: int, tree: str = "t") -> dict[str, Any]:
    """Return a reply that names a turn."""
    metrics = {TURN_KEY: {"tree": tree, "turn": turn}}
    return {"role": "assistant", "content": [{"text": "x"}], "metadata": {"metrics": metrics}}


class Holder:
    """Has messages, as an agent does."""

    def __init__(self) -> None:
        self.messages: list[Any] = []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=30))
def test_turns_named_in_messages_are_those_of_the_whole_list(edits: list[tuple[int, int]]) -> None:
    agent = Holder()
    for number, (kind, at) in enumerate(edits):
        message = named(number, "t" if at % 3 else "other") if at % 2 else {"role": "user", "content": []}
        if kind == 0 and agent.messages:
            del agent.messages[at % len(agent.messages)]
        elif kind == 1 and agent.messages:
            agent.messages[at % len(agent.messages)] = message
        elif kind == 2:
            agent.messages = [*agent.messages[at:], message]
        else:
            agent.messages.append(message)
        fresh = Holder()
        fresh.messages = agent.messages
        assert turns_named_in(agent, "t") == turns_named_in(fresh, "t")


def test_the_newest_message_may_get_its_metadata_later() -> None:
    agent = Holder()
    agent.messages.append({"role": "assistant", "content": []})
    assert turns_named_in(agent, "t") == {}
    agent.messages[-1].update(named(4))
    assert list(turns_named_in(agent, "t")) == [4] and list(turns_named_in(agent, "u")) == []
