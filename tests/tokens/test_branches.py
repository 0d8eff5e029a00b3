"""Where branches end, when turns are rejected or stand aside."""

from __future__ import annotations

from strands_sglang.tokens import TokenTree, Turn, TurnPurpose
from tokens.growing import forked, grow


def names(turns: dict[str, Turn], chosen: list[Turn]) -> list[str]:
    return [name for turn in chosen for name, one in turns.items() if one is turn]


def test_branches_of_the_episode() -> None:
    tree, turns = forked()
    assert names(turns, tree.branches()) == ["d", "e", "f"]
    assert names(turns, tree.branches(rejected=True)) == ["retry", "d", "e", "f"]
    assert names(turns, tree.branches(purpose=TurnPurpose.SIDE)) == ["side"]
    assert names(turns, tree.branches(purpose=None)) == ["d", "side", "e", "f"]
    assert names(turns, tree.leaves()) == ["retry", "d", "side", "e", "f"]


def test_a_rejected_end_uncovers_the_turn_before_it() -> None:
    tree, turns = forked()
    tree.reject(turns["d"])
    assert names(turns, tree.branches()) == ["c", "e", "f"]
    tree.reject(turns["c"])
    assert names(turns, tree.branches()) == ["b", "e", "f"]
    tree.reject(turns["b"])
    assert names(turns, tree.branches()) == ["e", "f"]


def test_a_kept_turn_behind_a_rejected_one_is_an_end() -> None:
    tree, turns = forked()
    tree.reject(turns["c"])
    assert names(turns, tree.branches()) == ["d", "e", "f"]


def test_a_side_turn_does_not_hide_the_turn_it_hangs_on() -> None:
    tree = TokenTree()
    a = grow(tree, None, [1], [2])
    grow(tree, a, [3], [4], purpose=TurnPurpose.SIDE)
    assert tree.branches() == [a]


def test_nothing() -> None:
    assert TokenTree().branches() == [] and TokenTree().leaves() == [] and TokenTree().trajectories() == []
