"""Lays a trainer's values over the turns of a branch: `values_by_turn` makes lines of `trainer.jsonl`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from strands_sglang.ledger.trainer_values import TrainerValues, Values
from strands_sglang.tokens import Turn


def values_by_turn(
    episode: str, path: Sequence[Turn], first: int, values: Mapping[str, Any]
) -> Iterator[TrainerValues]:
    """Yield the lines of some turns of a branch; sampled tokens that the trainer has no value for have None.

    Args:
        first: Position in the branch of the token that each of the values begins with.
        values: By name, one number for each token from there on.
    """
    for turn in path:
        places = range(turn.sampled_start - first, turn.end - first)
        for name, given in values.items():
            shown = [float(given[at]) if 0 <= at < len(given) else None for at in places]
            if shown:
                same: Values = shown[0] if shown[0] is not None and len(set(shown)) == 1 else shown
                yield TrainerValues(episode, turn.id, name, same)
