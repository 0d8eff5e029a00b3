"""Which branches a tree has to offer: where they end, and which of their turns count.

Invariant: every turn that counts lies on at least one branch, and every branch ends with a turn that counts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from strands_sglang.tokens.turn import Turn, TurnPurpose


def counted_turns(turns: Sequence[Turn], purpose: TurnPurpose | None, rejected: bool) -> set[int]:
    """Return the ids of the turns that count.

    Args:
        turns: All turns of a tree, in the order of their ids.
        purpose: The purpose that counts; None: every one.
        rejected: Whether turns whose output was thrown away count too.
    """
    return {
        turn.id for turn in turns if (purpose is None or turn.purpose == purpose) and (rejected or not turn.rejected)
    }


def branch_ends(turns: Sequence[Turn], counted: Collection[int]) -> list[Turn]:
    """Return the turns that count and have no turn that counts anywhere behind them, in the order of their ids."""
    passed: set[int] = set()
    ends = []
    for turn in reversed(turns):  # children come after their parents, so each is seen before its parent
        if turn.id in counted and turn.id not in passed:
            ends.append(turn)
        if turn.parent is not None and (turn.id in counted or turn.id in passed):
            passed.add(turn.parent)
    return ends[::-1]
