"""Every export has the agent of a branch and whether it is the main one; rows without a score are not trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strands import Agent, tool
from strands.multiagent import GraphBuilder

from strands_sglang import SGLangModel
from strands_sglang.ledger.reader import Ledger
from strands_sglang.runs import Episode, Task
from strands_sglang.tokens import Trajectory
from strands_sglang.trainers.exports import padded_batch, read_jsonl, write_jsonl
from strands_sglang.trainers.rows import Branches, branches_of, plain_rows
from strands_sglang.trainers.trl.batch import AGENT, Completion, batch_of
from support.rollout.scripts import PromptEngine, run, steps
from support.scripted_engine import tool_call
from support.trainers.skyrl_mirror import adapter as skyrl
from support.trainers.verl_mirror import adapter as verl


def agent(model: SGLangModel, name: str, **settings: Any) -> Agent:
    return Agent(model=model, name=name, callback_handler=None, **settings)


def graph(task: Task, model: SGLangModel) -> Any:
    builder = GraphBuilder()
    builder.add_node(agent(model, "some agent", system_prompt="You draft."), "draft")
    builder.add_node(agent(model, "another agent", system_prompt="You review."), "review")
    builder.add_edge("draft", "review")
    return builder.build()


def boss(task: Task, model: SGLangModel) -> Any:
    @tool
    async def helper(question: str) -> str:
        """Help."""
        return str(await agent(model, "helper", system_prompt="You help.").invoke_async(question))

    return agent(model, "boss", tools=[helper])


def script_with_helper(prompt: str, before: int) -> str:
    if "You help." in prompt:
        return "helped"
    return "the end" if "helped" in prompt else tool_call("helper", question="how?")


async def of(build: Any, script: Any, folder: Path, **settings: Any) -> Episode:
    (episode,) = await run(build, [Task("go", id="t")], PromptEngine(script), folder, **settings)
    assert episode.failure is None, episode.failure
    return episode


async def test_agent_names_of_graph_nodes(tmp_path: Path) -> None:
    episode = await of(graph, steps(0), tmp_path, reward=lambda episode: 1.0)
    assert [(one.agent, one.main) for one in episode.trajectories] == [("draft", False), ("review", True)]
    roles = [message["role"] for message in episode.messages]
    assert roles == ["user", "assistant"] * 2 and episode.text == "the end"
    # The same from disk, and in every form.
    again = Ledger(tmp_path).episode("t/0")
    assert [(one.agent, one.main) for one in again.trajectories()] == [("draft", False), ("review", True)]
    for source in ([episode], tmp_path):
        assert [(one.agent, one.main) for one in branches_of(source)] == [("draft", False), ("review", True)]
        write_jsonl(source, tmp_path / "rows.jsonl")
        assert [(one.agent, one.main) for one in read_jsonl(tmp_path / "rows.jsonl")] == [
            ("draft", False),
            ("review", True),
        ]
        batch = padded_batch(source, pad_token_id=0)
        assert dict(zip(batch.agents, batch["main"].tolist(), strict=True)) == {"draft": False, "review": True}
        assert batch["loss_mask"].any(axis=1).all()
    flat = episode.trajectories[0]
    assert Trajectory.from_dict(flat.to_dict()).agent == "draft"
    old = {name: value for name, value in flat.to_dict().items() if name not in ("agent", "main")}
    assert Trajectory.from_dict(old) == flat and Trajectory.from_dict(old).agent is None


async def test_agent_name_of_a_sub_agent(tmp_path: Path) -> None:
    episode = await of(boss, script_with_helper, tmp_path, reward=lambda episode: 1.0)
    assert sorted((str(one.agent), one.main) for one in episode.trajectories) == [("boss", True), ("helper", False)]
    assert [message["role"] for message in episode.messages] == ["user", "assistant", "user", "assistant"]
    plain = plain_rows(episode, pad_id=0, scored=True, branches=Branches.ALL)
    assert [(one.agent, one.main) for one in plain] == [("helper", False), ("boss", True)]
    numbered = replace(plain[0], versions=["1"] * len(plain[0].versions))
    fields = verl.output_fields(numbered, episode, prompt_length=4000, response_length=4000, logprobs=True, steps=0)
    assert (fields["extra_fields"]["strands_agent"], fields["extra_fields"]["strands_main"]) == ("helper", False)
    output = skyrl.generator_output([(episode, plain)], skyrl.OutputOptions(step_wise=True), trajectory_ids=["x"])
    assert [(one["agent"], one["main"]) for one in output["env_metrics"]] == [("helper", 0.0), ("boss", 1.0)]
    assert batch_of([Completion.of(episode)], pad=0, longest=None)[AGENT] == ["boss"]


async def test_agent_names_in_tables(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from strands_sglang.ledger.table import to_arrow, trajectories_of, write_parquet

    episode = await of(boss, script_with_helper, tmp_path, reward=lambda episode: 1.0)
    for table in (to_arrow([episode]), to_arrow(tmp_path)):
        rows = sorted((one["agent"], one["main"]) for one in table.select(["agent", "main"]).to_pylist())
        assert rows == [("boss", True), ("helper", False)]
    write_parquet(tmp_path, tmp_path / "rows.parquet")
    assert sorted((str(one.agent), one.main) for one in trajectories_of(tmp_path / "rows.parquet")) == rows


async def test_rows_without_a_score_are_not_trained(tmp_path: Path) -> None:
    def reward(episode: Any) -> float | None:
        return 1.0 if episode.task.id == "a" else None

    tasks = [Task("go", id="a"), Task("go", id="b")]
    whole = await run(lambda task, model: agent(model, "one"), tasks, PromptEngine(steps(0)), tmp_path, reward=reward)
    for source in (whole, tmp_path, list(branches_of(whole))):
        batch = padded_batch(source, pad_token_id=0)
        scored = np.isfinite(batch["rewards"])
        assert sorted(scored.tolist()) == [False, True]
        assert np.array_equal(batch["loss_mask"].any(axis=1), scored)
        assert padded_batch(source, pad_token_id=0, train_unscored=True)["loss_mask"].any(axis=1).all()
