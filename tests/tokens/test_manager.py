"""The flat lists of one branch, as most people read them."""

from __future__ import annotations

import pytest

from strands_sglang.errors import TreeError
from strands_sglang.tokens import Origin, TokenManager, TokenTree
from support.token_trees import forked, grow


def test_empty_manager() -> None:
    manager = TokenManager()
    assert len(manager) == 0 and manager.leaf is None
    lists = [manager.token_ids, manager.loss_mask, manager.logprobs, manager.segments, manager.segment_info]
    assert lists == [[], [], [], [], []]
    flat = manager.trajectory()
    flat.validate()
    assert (len(flat), flat.branch, flat.tree, flat.num_turns) == (0, -1, manager.tree.id, 0)


def test_given_empty_tree_is_used() -> None:
    tree = TokenTree("mine")
    manager = TokenManager(tree)
    grow(tree, None, [1], [2])
    assert manager.tree is tree and manager.token_ids == [1, 2]


def test_one_branch_as_lists() -> None:
    tree = TokenTree()
    manager = TokenManager(tree)
    a = grow(tree, None, [1, 2, 3], [10, 11])
    grow(tree, a, [4], [12], closing=[99])
    assert manager.token_ids == [1, 2, 3, 10, 11, 99, 4, 12] and len(manager) == 8
    assert manager.loss_mask == [0, 0, 0, 1, 1, 0, 0, 1]
    assert manager.logprobs == [0.0, 0.0, 0.0, -1.0, -1.1, 0.0, 0.0, -1.2]
    assert manager.segment_info == [(False, 3), (True, 2), (False, 1), (False, 1), (True, 1)]
    assert [segment.origin for segment in manager.segments[2:4]] == [Origin.CLOSING, Origin.CONTEXT]
    assert list(manager.segments[0]) == [1, 2, 3]
    assert manager.trajectory() == tree.trajectory(tree[1])
    assert all(type(value) is int for value in manager.token_ids + manager.loss_mask)
    assert all(type(value) is float for value in manager.logprobs)


def test_follow_other_branch() -> None:
    tree, turns = forked()
    manager = TokenManager(tree)
    assert manager.leaf is turns["f"]
    manager.follow(turns["side"])
    grow(tree, None, [1], [1])
    assert manager.leaf is turns["side"] and manager.token_ids[-2:] == [30, 31]
    with pytest.raises(TreeError):
        manager.follow(forked()[1]["a"])
    assert manager.leaf is turns["side"]
    manager.follow(None)
    assert manager.token_ids == [1, 1]


def test_reset_does_not_change_old_tree() -> None:
    tree, turns = forked()
    manager = TokenManager(tree)
    manager.follow(turns["d"])
    before = tree.to_dict()
    manager.reset()
    assert manager.tree is not tree and manager.token_ids == [] and manager.leaf is None
    assert tree.to_dict() == before and manager.tree.id != tree.id
