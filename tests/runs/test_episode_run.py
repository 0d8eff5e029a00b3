"""EpisodeRun: each episode runs in its own scope."""

from __future__ import annotations

import asyncio
from typing import Any

from strands_sglang import SGLangModel
from strands_sglang.runs import EndReason, Limits, Task
from strands_sglang.runs.agent_runner import EpisodeRun
from strands_sglang.runs.recording.recorder import EpisodeRecorder, within
from strands_sglang.runs.recording.tool_recorder import current_tool_recorder
from strands_sglang.tokens import Join
from support.rollout.agent_kinds import plain
from support.rollout.scripts import PromptEngine, steps

LIMITS = Limits()


def episode_run_on(engine: PromptEngine, id: str = "t/0") -> EpisodeRun:
    return EpisodeRun(id, Task("go", id=id.partition("/")[0]), EpisodeRecorder(engine, id))


async def run_episode(episode_run: EpisodeRun, build: Any, model: SGLangModel, limits: Limits = LIMITS) -> Any:
    return await asyncio.ensure_future(episode_run.run(build, model, limits, frozenset()))


async def test_each_episode_runs_in_its_own_scope() -> None:
    engine = PromptEngine(steps(2))
    model = SGLangModel(tokenizer=engine.tokenizer, client=engine)
    own = model.current_episode
    seen: dict[str, Any] = {}

    async def build(task: Task, given: SGLangModel) -> Any:
        seen[task.id] = (given.current_episode, current_tool_recorder.get())
        await asyncio.sleep(0.01)
        return plain(given)

    episode_runs = [episode_run_on(engine, f"t{number}/0") for number in range(5)]
    outcomes = await asyncio.gather(*(run_episode(episode_run, build, model) for episode_run in episode_runs))
    assert [outcome.end_reason for outcome in outcomes] == [EndReason.ANSWERED] * 5
    assert model.current_episode is own and len(own.tree) == 0
    assert current_tool_recorder.get() is None and within.get() == ()
    for episode_run in episode_runs:
        episode, tool_recorder = seen[episode_run.task.id]
        assert episode is episode_run.tokens and tool_recorder.recorder is episode_run.recorder
        assert len(episode_run.tree) == 3 and episode_run.tree is episode_run.tokens.tree
        assert len(episode_run.messages) == 6


async def test_turns_committed_too_late_are_not_in_the_tree() -> None:
    engine = PromptEngine(steps(2))
    model = SGLangModel(tokenizer=engine.tokenizer, client=engine)
    episode_run = episode_run_on(engine)
    await run_episode(episode_run, lambda task, model: plain(model), model)
    whole = episode_run.tree.to_dict()
    episode_run.recorder.close()
    tree = episode_run.tokens.tree
    late = tree.prepare(None, context=[1, 2], join=Join.ROOT)
    tree.reject(tree.commit(late, [3], [-0.5], [], finish_reason="stop", detail={}))
    assert len(tree) == 4 and episode_run.tree.to_dict() == whole


async def test_build_that_raises() -> None:
    engine = PromptEngine(steps(2))
    model = SGLangModel(tokenizer=engine.tokenizer, client=engine)
    episode_run = episode_run_on(engine)
    outcome = await run_episode(episode_run, lambda task, model: 1 / 0, model)
    assert outcome.end_reason is EndReason.AGENT_ERROR and outcome.failure.kind == "ZeroDivisionError"
    assert episode_run.agent is None and episode_run.messages == [] and len(episode_run.tree) == 0
