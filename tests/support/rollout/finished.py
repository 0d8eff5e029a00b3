"""Making finished episodes with real trees, for the tests of this folder."""

from __future__ import annotations

from typing import Any

from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode, EpisodeMetrics, Failure
from strands_sglang.runs.reward import Reward
from strands_sglang.runs.task import Task
from strands_sglang.tokens import Join, TokenTree, VersionSpan


def grown(id: str, turns: int = 2, version: str | None = "v1") -> TokenTree:
    """Return a tree of one branch; each turn has 3 tokens of context and samples 4, of which the engine cached 2."""
    tree = TokenTree(id)
    last = None
    for number in range(turns):
        join = Join.ROOT if last is None else Join.PROVED
        prepared = tree.prepare(last, context=[1, 2, number], join=join)
        spans = [VersionSpan(version, 0, 4)]
        last = tree.commit(
            prepared, [10, 11, 12, number], [-0.5] * 4, spans, finish_reason="stop", detail={"cached_tokens": 2}
        )
    return tree


def finished(
    task: str | Task = "task",
    sample: int = 0,
    reward: Any = None,
    *,
    ended: EndReason = EndReason.ANSWERED,
    turns: int = 2,
    version: str | None = "v1",
    failure: Failure | None = None,
    text: str = "the answer is 4",
    **used: Any,
) -> Episode:
    """Return an episode that ended."""
    asked = Task("what is 2 + 2?", answer="4", id=task) if isinstance(task, str) else task
    id = f"{asked.id}/{sample}"
    tree = grown(id, turns, version)
    metrics = EpisodeMetrics(**used)
    metrics.count(tree)
    if failure is None and ended.failed:
        failure = Failure("ValueError", "it broke", "Traceback ...")
    return Episode(
        id, asked, sample, ended, tree, reward_detail=Reward.of(reward), metrics=metrics, failure=failure, text=text
    )
