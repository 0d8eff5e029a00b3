"""Turns hang together: who came before whom, whose they are, and that copies are whole."""

from __future__ import annotations

import copy
import pickle
from array import array
from typing import Any

import pytest

from strands_sglang.errors import TreeError
from strands_sglang.tokens import Join, TokenTree
from tokens.growing import forked, grow


def test_reading() -> None:
    tree, turns = forked()
    a, b, c, d = (turns[name] for name in "abcd")
    assert len(tree) == 8 and tree.turns == tuple(tree) and all(tree[turn.id] is turn for turn in tree)
    assert tree.path(d) == [a, b, c, d]
    assert tree.children(b) == [turns["retry"], c, turns["side"]] and tree.children(d) == []
    assert tree.ids(d).tolist() == [1, 2, 3, 10, 11, 4, 12, 13, 14, 5, 21, 99, 6, 7, 22, 23]
    assert tree.ids(b).tolist() == [1, 2, 3, 10, 11, 4, 12, 13, 14]


def test_ids_are_a_copy() -> None:
    tree, turns = forked()
    for turn in (turns["d"], turns["b"]):
        before = tree.ids(turn)
        tree.ids(turn)[0] = 77
        assert tree.ids(turn) == before


@pytest.mark.parametrize("id", [-1, 8, "0", None, 0.0])
def test_turns_that_are_not_there(id: Any) -> None:
    tree, _ = forked()
    with pytest.raises(TreeError):
        tree[id]


def test_turns_of_another_tree() -> None:
    tree, _ = forked()
    _, others = forked()
    stranger = others["b"]
    for reading in (tree.path, tree.ids, tree.children, tree.reject, tree.trajectory):
        with pytest.raises(TreeError, match="not a turn of this tree"):
            reading(stranger)
    with pytest.raises(TreeError):
        tree.prepare(stranger, context=[1], join=Join.PROVED)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda tree: pickle.loads(pickle.dumps(tree))])
def test_copies_are_whole_and_apart(copied: Any) -> None:
    tree, turns = forked()
    twin = copied(tree)
    assert tree._flat and not twin._flat  # what can be laid out again does not travel
    assert twin.id == tree.id and twin.to_dict() == tree.to_dict()
    assert twin.ids(twin[turns["d"].id]) == tree.ids(turns["d"])
    before = tree.to_dict()
    grow(twin, twin[turns["d"].id], [1], [2])
    twin.reject(twin[0])
    assert len(twin) == 9 and tree.to_dict() == before and tree.children(turns["d"]) == []


def test_a_tree_may_be_copied_together_with_what_was_prepared_for_it() -> None:
    tree, turns = forked()
    prepared = tree.prepare(turns["d"], context=[1], join=Join.PROVED)
    twin, again = pickle.loads(pickle.dumps((tree, prepared)))
    assert twin.ids(twin.commit(again, [2], [-1.0])) == tree.ids(turns["d"]) + array("i", [1, 2])
    assert len(tree) == 8


def test_names() -> None:
    assert TokenTree("episode-1").id == "episode-1" and TokenTree().id != TokenTree().id


def test_branches_beyond_those_kept_flat() -> None:
    tree = TokenTree()
    roots = [grow(tree, None, [n], [n, n]) for n in range(30)]
    tips = [grow(tree, root, [100], [200]) for root in roots]
    for n, tip in enumerate(tips):
        assert tree.ids(tip).tolist() == [n, n, n, 100, 200]
        assert tree.ids(grow(tree, tip, [7], [8])).tolist() == [n, n, n, 100, 200, 7, 8]
    assert len(tree._flat) <= 8
