"""Metrics of turns and episodes."""

from __future__ import annotations

import orjson

from strands_sglang.runs.episode import EpisodeMetrics, TurnCounts
from strands_sglang.tokens import Join, TokenTree
from support.rollout.finished import grown
from support.token_trees import forked


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
