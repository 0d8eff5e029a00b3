"""An episode that was set aside, shown with the turn it was cut in: `with_half`.

What slime keeps of it meanwhile should be what was sampled, to the last token. The episode itself goes on from its
record, in which a turn that was cut is no turn yet.

Invariant: only what slime is shown changes; nothing of it is trained.
"""

from __future__ import annotations

from dataclasses import replace

from strands_sglang.rollout.episode import Episode
from strands_sglang.tokens import Join, TokenTree


def with_half(episode: Episode) -> Episode:
    """Return an episode whose last turn is the one it was cut in; the same when it was cut in none of the agent's."""
    half = next((half for half in episode.halves if not half.within), None)
    if half is None:
        return episode
    tree = TokenTree.from_dict(episode.tree.to_dict())
    known = [turn for turn in tree.turns if turn.end < len(half.prompt) and tree.ids(turn) == half.prompt[: turn.end]]
    parent = max(known, key=lambda turn: turn.end, default=None)
    prepared = tree.prepare(
        parent,
        context=half.prompt[0 if parent is None else parent.end :],
        join=Join.ROOT if parent is None else Join.KEPT,
    )
    sampled = half.sampled
    tree.commit(prepared, sampled.token_ids, sampled.logprobs, sampled.versions, finish=sampled.finish_reason.value)
    return replace(episode, source=tree)
