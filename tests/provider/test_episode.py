"""Episodes: separate trees, reproducible call ids, and the caller of a conversation."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from strands_sglang import EpisodeTokens
from strands_sglang.engine import RoutedExperts
from strands_sglang.errors import CountMismatchError
from support.provider.agents import acting, agent_on, outline, scripted_model
from support.scripted_engine import Reply, assert_exact, tool_call

pytestmark = pytest.mark.usefixtures("exact")

SUM = tool_call("calculator", expression="1+1")


def mint(episode: EpisodeTokens, count: int, taken: Sequence[str] = ()) -> list[str]:
    with episode.minting(count, taken) as ids:
        return ids


def test_call_ids_are_nine_letters_and_digits_and_unique() -> None:
    ids = mint(EpisodeTokens(), 500)
    assert len(set(ids)) == 500
    assert all(re.fullmatch(r"[0-9A-Za-z]{9}", one) for one in ids)


def test_episodes_with_the_same_id_get_the_same_call_ids() -> None:
    one, other = EpisodeTokens("task"), EpisodeTokens("task")
    assert mint(one, 2) + mint(one, 1) == mint(other, 3)
    assert mint(EpisodeTokens("another"), 3) != mint(EpisodeTokens("task"), 3)


def test_call_ids_in_the_conversation_are_not_used_again() -> None:
    known = mint(EpisodeTokens("task"), 2)
    assert not set(mint(EpisodeTokens("task"), 2, known)) & set(known)
    assert mint(EpisodeTokens("task"), 0, known) == []


def test_call_ids_from_many_threads_are_unique() -> None:
    episode, ids = EpisodeTokens(), []
    together = threading.Barrier(8)

    def take() -> None:
        together.wait()
        for _ in range(50):
            ids.extend(mint(episode, 2))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == len(set(ids)) == 800


def test_call_ids_are_numbered_in_the_order_of_commits() -> None:
    """A second turn gets its ids after the first is committed: resumed turns are committed in the same order."""
    episode, order = EpisodeTokens("task"), []
    inside, waiting = threading.Event(), threading.Event()

    def second() -> None:
        inside.wait()
        waiting.set()
        with episode.minting(1) as ids:
            order.append(("second", ids))

    thread = threading.Thread(target=second)
    thread.start()
    with episode.minting(1) as ids:
        inside.set()
        waiting.wait()
        thread.join(0.2)
        order.append(("first", ids))
    thread.join()
    a, b = mint(EpisodeTokens("task"), 2)
    assert order == [("first", [a]), ("second", [b])]


def test_a_turn_that_is_not_committed_uses_no_call_ids() -> None:
    episode = EpisodeTokens("task")
    with pytest.raises(ValueError, match="no turn"), episode.minting(3):
        raise ValueError("no turn")
    assert mint(episode, 2) == mint(EpisodeTokens("task"), 2)


async def test_the_episode_id_is_used_everywhere() -> None:
    model, engine = scripted_model(["one"], "qwen2.5")
    with model.episode("task-7") as episode:
        await agent_on(model).invoke_async("go")
    assert episode.id == episode.tree.id == "task-7"
    assert engine.calls[0].asked["routing_key"] == "task-7"
    assert episode.trajectories()[0].tree == "task-7"
    assert len(model.current_episode.tree) == 0
    assert_exact(engine, episode)


async def test_resetting_the_token_manager_resets_the_episode() -> None:
    """`token_manager.reset()` of the published package starts a new tree; the index must not refer to the old one."""
    model, engine = scripted_model(["one", "two", "three"], "qwen2.5")
    agent = agent_on(model)
    await agent.invoke_async("first")
    before = model.current_episode.tree
    model.token_manager.reset()
    assert model.token_manager.token_ids == []
    await agent.invoke_async("second")

    assert outline(model.current_episode.tree) == [(None, "root")]
    assert model.current_episode.id != before.id
    await agent.invoke_async("third")
    assert outline(model.current_episode.tree) == [(None, "root"), (0, "proved")]
    assert_exact(engine, model.current_episode, trees=[before])


async def test_a_reset_during_a_call_leaves_the_new_tree_empty() -> None:
    started, go = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        started.set()
        await go.wait()

    model, engine = scripted_model([Reply("late", before=wait)], "qwen2.5")
    old = model.current_episode.tree
    running = asyncio.create_task(agent_on(model).invoke_async("go"))
    await started.wait()
    model.reset()
    go.set()
    await running
    episode = model.current_episode
    assert (len(old), len(episode.tree), episode.sampled_tokens) == (1, 0, 0)
    assert_exact(engine, episode, trees=[old])


async def test_a_reset_during_encoding_does_not_mix_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, engine = scripted_model(["A1", "B1", "A2"], "qwen2.5")
    bridge, gate = model._runner.planner.bridge, threading.Event()
    encode = bridge.encode

    def held(piece: Any) -> Any:
        if len(piece.context) > 40_000:
            gate.wait(30)
        return encode(piece)

    monkeypatch.setattr(bridge, "encode", held)
    agent, old = agent_on(model), model.current_episode.tree
    await agent.invoke_async("ask A")
    running = asyncio.create_task(agent.invoke_async("more " * 12_000))
    await asyncio.sleep(0.2)
    model.reset()
    await agent_on(model).invoke_async("ask B")
    gate.set()
    await running
    assert outline(old) == [(None, "root"), (0, "proved")]
    assert outline(model.current_episode.tree) == [(None, "root")]
    assert_exact(engine, model.current_episode, trees=[old])


async def test_sampled_tokens_include_side_and_rejected_turns() -> None:
    model, engine = scripted_model(["one", "a summary"], "qwen2.5")
    await agent_on(model).invoke_async("go")
    async for _ in model.stream([{"role": "user", "content": [{"text": "sum up"}]}]):
        pass
    episode = model.current_episode
    assert episode.sampled_tokens == sum(len(turn.sampled) for turn in episode.tree)
    assert [turn.purpose.value for turn in episode.tree] == ["episode", "side"]
    assert_exact(engine, episode)


@pytest.mark.parametrize("state", [None, {}])
async def test_calls_without_an_agent_state_are_side_turns(state: dict[str, Any] | None) -> None:
    """Only an agent's loop passes a state; code that replaces the loop must pass one too."""
    model, _ = scripted_model(["one", "two"], "qwen2.5")
    messages: list[Any] = [{"role": "user", "content": [{"text": "go"}]}]
    async for _ in model.stream(messages, model_state=state):
        pass
    messages += [{"role": "assistant", "content": [{"text": "one"}]}, {"role": "user", "content": [{"text": "on"}]}]
    async for _ in model.stream(messages, model_state=state):
        pass
    assert outline(model.current_episode.tree) == [(None, "root"), (0, "proved")]
    assert {turn.purpose.value for turn in model.current_episode.tree} == {"side" if state is None else "episode"}


async def test_experts_that_do_not_fit_the_branch_raise() -> None:
    model, _ = scripted_model([SUM, "two"], "qwen2.5")
    await agent_on(model).invoke_async("1+1?")
    episode = model.current_episode
    first, second = episode.tree
    assert episode.routed_experts(first) is None
    episode.keep_experts(first, RoutedExperts(("",), (first.end - 1,)))
    episode.keep_experts(second, RoutedExperts(("",), (second.end - first.end,), first.end - 2))
    with pytest.raises(CountMismatchError):
        episode.routed_experts(second)
    episode.keep_experts(second, RoutedExperts(("",), (second.end - first.end - 1,), first.end - 1))
    with pytest.raises(CountMismatchError, match=f"branch of {second.end} tokens"):
        episode.routed_experts(second)
    episode.keep_experts(second, RoutedExperts(("",), (second.end - first.end,), first.end - 1))
    joined = episode.routed_experts(second)
    assert joined is not None and len(joined) == second.end - 1


async def test_the_question_identifies_the_calling_tool_call() -> None:
    calls = "\n".join(tool_call("calculator", expression=str(number)) for number in (1, 2, 1))

    agent, _, _ = acting([calls])
    await agent.invoke_async("go", limits={"turns": 1})
    episode = agent.model.current_episode
    uses = [block["toolUse"]["toolUseId"] for block in agent.messages[1]["content"]]

    # In the task of the turn itself only the text identifies the call.
    assert episode.caller("2") == (0, uses[1])
    assert episode.caller("1") == (0, None)
    assert episode.caller("something else") is None

    async def within() -> list[Any]:
        return [episode.caller("2"), episode.caller("something else"), episode.caller("something else", side=True)]

    assert await asyncio.create_task(within()) == [(0, uses[1]), (0, None), None]
    own = episode.index.get(0)
    assert episode.caller("2", own) is None
    with agent.model.episode() as other:
        assert other.caller("2") is None
