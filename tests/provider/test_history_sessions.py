"""Row 13 of "Every way history changes": sessions and snapshots, on the same model and on another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from strands import Agent
from strands.session import FileSessionManager

from strands_sglang import SGLangModel
from support.provider.agents import acting, agent_on, official, outline, scripted_model
from support.scripted_engine import assert_exact, thought, tool_call

pytestmark = pytest.mark.usefixtures("exact")

SUM = tool_call("calculator", expression="1+1")


def in_session(model: SGLangModel, folder: Path, **settings: Any) -> Agent:
    session = FileSessionManager(session_id="s", storage_dir=str(folder))
    return agent_on(model, agent_id="a", session_manager=session, **settings)


async def test_row_13_a_session_restored_on_the_same_model_continues(tmp_path: Path) -> None:
    model, engine = scripted_model([SUM, "two", "three"], "qwen2.5")
    await in_session(model, tmp_path).invoke_async("1+1?")
    restored = in_session(model, tmp_path)
    await restored.invoke_async("and 1?")

    assert outline(model.current_episode.tree) == [(None, "root"), (0, "proved"), (1, "proved")]
    assert engine.calls[2].ids == official(restored, engine, 5)
    # Where a turn is recorded comes back with the session, and never reaches the model.
    kept: list[Any] = [message["metadata"] for message in restored.messages if "metadata" in message]
    places = [metadata["metrics"]["sglang"] for metadata in kept]
    assert [place["turn"] for place in places] == [0, 1, 2]


async def test_row_13_a_session_restored_on_a_new_model_starts_a_branch(tmp_path: Path) -> None:
    model, _ = scripted_model([thought("hm", SUM), thought("so", "two")])
    await in_session(model, tmp_path).invoke_async("1+1?")
    other, engine = scripted_model([thought("well", "three")])
    restored = in_session(other, tmp_path)
    await restored.invoke_async("and 1?")

    tree = other.current_episode.tree
    assert outline(tree) == [(None, "root")]
    assert tree[0].forked_from is None
    assert engine.calls[0].ids == official(restored, engine, 5)


async def test_row_13_a_session_restored_in_an_episode_of_the_same_name_gets_new_call_ids(tmp_path: Path) -> None:
    model, before = scripted_model([SUM, "two"], "qwen2.5")
    with model.episode("task") as episode:
        await in_session(model, tmp_path).invoke_async("1+1?")
    assert_exact(before, episode)
    other, engine = scripted_model([SUM, "two"], "qwen2.5")
    with other.episode("task") as episode:
        restored = in_session(other, tmp_path)
        await restored.invoke_async("again?")

    uses = [
        block["toolUse"]["toolUseId"]
        for message in restored.messages
        for block in message["content"]
        if "toolUse" in block
    ]
    assert len(uses) == len(set(uses)) == 2
    assert_exact(engine, episode)


async def test_row_13_a_session_restored_after_a_reset_starts_a_branch(tmp_path: Path) -> None:
    model, engine = scripted_model([SUM, "two", "three"], "qwen2.5")
    await in_session(model, tmp_path).invoke_async("1+1?")
    before = model.current_episode.tree
    model.reset()
    await in_session(model, tmp_path).invoke_async("and 1?")

    assert outline(before) == [(None, "root"), (0, "proved")]
    assert outline(model.current_episode.tree) == [(None, "root")]
    assert_exact(engine, model.current_episode, trees=[before])


async def test_row_13_a_snapshot_is_loaded_twice() -> None:
    model, _ = scripted_model(["one", "two", "two", "three", "three", "four"], "qwen2.5")
    agent = agent_on(model)
    await agent.invoke_async("first")
    snapshot = agent.take_snapshot(preset="session", include=["model_state"])
    copy = agent_on(model)
    copy.load_snapshot(snapshot)
    # The same text on both sides, even the same last turn in the state.
    for one in (agent, copy, agent, copy):
        await one.invoke_async("next")
    agent.load_snapshot(snapshot)
    await agent.invoke_async("once more")

    tree = model.current_episode.tree
    assert [turn.parent for turn in tree] == [None, 0, 0, 1, 2, 0]
    assert [turn.forked_from for turn in tree] == [None] * 6
    assert [one.turn_ids for one in tree.trajectories()] == [(0, 1, 3), (0, 2, 4), (0, 5)]


async def test_row_13_a_snapshot_restores_messages_but_not_the_state() -> None:
    agent, _, tree = acting(["one", "two", "three"])
    await agent.invoke_async("first")
    snapshot = agent.take_snapshot(include=["messages"])
    await agent.invoke_async("second")
    agent.load_snapshot(snapshot)
    await agent.invoke_async("third")
    assert [(turn.parent, turn.forked_from) for turn in tree] == [(None, None), (0, None), (0, 1)]
