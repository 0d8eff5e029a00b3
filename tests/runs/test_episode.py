"""Episode: its result, its metrics, and the scope it runs in."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from strands_sglang import SGLangModel
from strands_sglang.gateway.process import Gateways
from strands_sglang.runs import Limits
from strands_sglang.runs.agent_runner import EpisodeRun
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode, EpisodeMetrics, TurnCounts
from strands_sglang.runs.recording.recorder import EpisodeRecorder, within
from strands_sglang.runs.recording.tool_recorder import current_tool_recorder
from strands_sglang.runs.reward import Reward
from strands_sglang.runs.task import Task
from strands_sglang.tokens import Join, TokenTree
from support.rollout.agent_kinds import plain
from support.rollout.finished import finished, grown
from support.rollout.scripts import PromptEngine, steps
from support.token_trees import forked


def test_remote_tree_is_fetched_once_on_first_access() -> None:
    fetched = []

    def fetch() -> TokenTree:
        fetched.append(1)
        return grown("t/0", turns=3)

    episode = Episode("t/0", Task("q", id="t"), 0, EndReason.ANSWERED, fetch)
    assert episode.reward is None and not fetched
    assert episode.tree is episode.tree
    (trajectory,) = episode.trajectories
    trajectory.validate()
    assert fetched == [1] and trajectory.num_turns == 3


def test_reward_is_the_value_of_reward_detail() -> None:
    assert finished(reward=0.5).reward == 0.5
    assert finished().reward is None
    episode = finished()
    episode.reward_detail = Reward(error="KeyError: 'x'")
    assert episode.reward is None


def test_counts_of_a_tree() -> None:
    tree = grown("t/0", turns=3)
    metrics = EpisodeMetrics(tool_calls=2, requests=4)
    metrics.count(tree)
    assert (metrics.turns, metrics.branches, metrics.tokens, metrics.sampled_tokens) == (3, 1, 21, 12)
    assert metrics.prompt_tokens == 3 + 10 + 17 and metrics.cached_tokens == 6
    assert metrics.versions == ["v1"]
    assert (metrics.tool_calls, metrics.requests) == (2, 4), "counts that do not follow from the tree are not changed"
    assert sum(count.sampled for count in map(TurnCounts.of, tree)) == metrics.sampled_tokens
    assert sum(count.prompt for count in map(TurnCounts.of, tree)) == metrics.prompt_tokens


def test_token_shared_by_branches_is_counted_once() -> None:
    tree, turns = forked()
    metrics = EpisodeMetrics()
    metrics.count(tree)
    assert metrics.turns == len(turns) and metrics.tokens == sum(len(turn) for turn in tree)
    assert metrics.branches == len(tree.trajectories())
    assert metrics.versions == ["v1", "v2", None]
    assert TurnCounts.of(turns["c"]).cached == 7 and TurnCounts.of(turns["a"]).cached is None


def test_failed_calls_are_counted() -> None:
    tree = TokenTree("t")
    tree.commit(tree.prepare(None, context=[1], join=Join.ROOT), [2], [-1.0], detail={"failed_calls": ["a", "b"]})
    metrics = EpisodeMetrics()
    metrics.count(tree)
    assert metrics.failed_calls == 2


def test_metrics_are_read_back_and_unknown_names_are_ignored() -> None:
    metrics = EpisodeMetrics(seconds=1.25, tool_timeouts=1, versions=["v1", None])
    metrics.count(grown("t/0"))
    written = orjson.loads(orjson.dumps(metrics.to_dict()))
    assert EpisodeMetrics.from_dict({**written, "from_the_future": 7}) == metrics
    assert EpisodeMetrics.from_dict({}) == EpisodeMetrics()


def test_complete_and_failed_end_reasons() -> None:
    assert {ended for ended in EndReason if ended.complete} == {EndReason.ANSWERED, EndReason.STOPPED}
    failed = {EndReason.ENGINE_ERROR, EndReason.TOOL_UNAVAILABLE, EndReason.OTHER_MODEL_ERROR, EndReason.AGENT_ERROR}
    assert {ended for ended in EndReason if ended.failed} == failed
    assert not any(ended.complete and ended.failed for ended in EndReason)


LIMITS = Limits()


def episode_run_on(engine: PromptEngine, id: str = "t/0") -> EpisodeRun:
    return EpisodeRun(id, Task("go", id=id.partition("/")[0]), EpisodeRecorder(engine, id))


async def run_episode(episode_run: EpisodeRun, build: Any, model: SGLangModel, limits: Limits = LIMITS) -> Any:
    return await asyncio.ensure_future(episode_run.run(build, model, limits, frozenset(), Gateways()))


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
