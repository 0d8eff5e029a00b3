"""A turn is prepared, then committed whole, or not at all."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from strands_sglang.engine import FinishReason
from strands_sglang.errors import CountMismatchError, StrandsSGLangError, TreeError
from strands_sglang.tokens import Join, PreparedTurn, TokenTree, Turn, TurnPurpose, TurnStatus, VersionSpan
from support.token_trees import forked, grow


def test_committed_fields_are_kept() -> None:
    tree, _ = forked()
    detail = {"rid": "r", "nested": {"list": [1, None]}, "pair": (1, 2)}
    prepared = tree.prepare(
        None, context=[1], join=Join.FORKED, forked_from=1, caller=(2, None), purpose=TurnPurpose.SIDE
    )
    turn = tree.commit(prepared, [2], [-0.25], [VersionSpan("v", 0, 1)], finish_reason=FinishReason.STOP, detail=detail)
    detail["nested"]["list"].append(5)  # type: ignore[index]
    assert turn.detail == {"rid": "r", "nested": {"list": [1, None]}, "pair": [1, 2]}
    assert (turn.finish_reason, type(turn.finish_reason), turn.versions) == ("stop", str, (VersionSpan("v", 0, 1),))
    assert (turn.join, turn.forked_from, turn.caller, turn.purpose) == (Join.FORKED, 1, (2, None), TurnPurpose.SIDE)
    assert turn.status is TurnStatus.KEPT


def test_prompt_and_callers_arrays_are_independent() -> None:
    tree = TokenTree()
    context, sampled, logprobs = array("i", [1, 2]), array("i", [3]), array("d", [-1.0])
    prepared = tree.prepare(None, context=context)
    view = np.asarray(prepared.ids)  # as an encoder may still hold it
    turn = tree.commit(prepared, sampled, logprobs)
    context[0] = sampled[0] = prepared.ids[0] = prepared.context[0] = 99
    logprobs[0] = 0.0
    assert (turn.context.tolist(), turn.sampled.tolist()) == ([1, 2], [3])
    assert tree.ids(turn).tolist() == [1, 2, 3] and turn.logprobs.tolist() == [-1.0] and len(view) == 2
    assert tree.ids(grow(tree, turn, [4], [5])).tolist() == [1, 2, 3, 4, 5]


PLACES: list[dict[str, Any]] = [
    *({"parent": None, "closing": [9]}, {"parent": None, "join": Join.PROVED}, {"parent": None, "join": Join.KEPT}),
    *({"parent": 0, "join": Join.ROOT}, {"parent": 0}, {"parent": None, "forked_from": 8}),
    *({"parent": None, "forked_from": -1}, {"parent": None, "caller": (8, None)}, {"parent": None, "caller": (0,)}),
    *({"parent": None, "caller": (0, 5)}, {"parent": None, "context": [-1]}),
    {"parent": 0, "closing": [2**31], "join": Join.PROVED},
    {"parent": None, "join": "sideways"},
    {"parent": None, "purpose": "none"},
]


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_invalid_turns_cannot_be_prepared(place: dict[str, Any]) -> None:
    tree, _ = forked()
    before = tree.to_dict()
    parent = place["parent"]
    with pytest.raises(TreeError):
        tree.prepare(**{"context": [1], **place, "parent": None if parent is None else tree[parent]})
    assert tree.to_dict() == before


def tampered(change: Callable[[PreparedTurn], None]) -> Callable[[TokenTree, PreparedTurn], None]:
    def commit(tree: TokenTree, prepared: PreparedTurn) -> None:
        change(prepared)
        tree.commit(prepared, [1], [-1.0])

    return commit


def replaced(name: str, value: Any) -> Callable[[TokenTree, PreparedTurn], None]:
    return tampered(lambda prepared: setattr(prepared, name, value))


FAILURES: dict[str, tuple[type[StrandsSGLangError], Callable[[TokenTree, PreparedTurn], object]]] = {
    "fewer logprobs": (CountMismatchError, lambda t, p: t.commit(p, [1, 2], [-1.0])),
    "more logprobs": (CountMismatchError, lambda t, p: t.commit(p, [], [-1.0])),
    "spans too short": (CountMismatchError, lambda t, p: t.commit(p, [1, 2], [-1.0, -1.0], [VersionSpan("a", 0, 1)])),
    "spans of nothing": (CountMismatchError, lambda t, p: t.commit(p, [], [], [VersionSpan("a", 0, 1)])),
    "prompt count": (CountMismatchError, lambda t, p: t.commit(p, [1], [-1.0], prompt_tokens=len(p.ids) + 1)),
    "prompt count 0": (CountMismatchError, lambda t, p: t.commit(p, [1], [-1.0], prompt_tokens=0)),
    "negative id": (TreeError, lambda t, p: t.commit(p, [-1], [-1.0])),
    "large id": (TreeError, lambda t, p: t.commit(p, [2**31], [-1.0])),
    "no number": (TreeError, lambda t, p: t.commit(p, [1], [None])),  # type: ignore[list-item]
    "nan": (TreeError, lambda t, p: t.commit(p, [1], [float("nan")])),
    "detail": (TreeError, lambda t, p: t.commit(p, [1], [-1.0], detail={"client": object()})),
    "detail keys": (TreeError, lambda t, p: t.commit(p, [1], [-1.0], detail={"a": {1: 2}})),
    "another tree": (TreeError, lambda t, p: TokenTree(t.id).commit(p, [1], [-1.0])),
    "prompt changed": (TreeError, tampered(lambda p: p.ids.__setitem__(0, 77))),
    "prompt's end changed": (TreeError, tampered(lambda p: p.ids.__setitem__(-1, 77))),
    "prompt longer": (TreeError, tampered(lambda p: p.ids.append(5))),
    "prompt shorter": (TreeError, tampered(lambda p: p.ids.__delitem__(0))),
    "context changed": (TreeError, tampered(lambda p: p.context.append(5))),
    "closing changed": (TreeError, tampered(lambda p: p.closing.append(5))),
    "prompt replaced": (TreeError, replaced("ids", np.arange(4))),
    "parent replaced": (TreeError, replaced("parent", None)),
    "join replaced": (TreeError, replaced("join", Join.ROOT)),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_failed_commit_does_not_change_tree(failure: str) -> None:
    error, commit = FAILURES[failure]
    tree, turns = forked()
    prepared = tree.prepare(turns["c"], context=[5, 6], closing=[99], join=Join.PROVED)
    before, ids = tree.to_dict(), [tree.ids(turn) for turn in tree]
    with pytest.raises(error):
        commit(tree, prepared)
    assert tree.to_dict() == before and [tree.ids(turn) for turn in tree] == ids
    assert prepared.turn is None and tree.children(turns["c"]) == [turns["d"]]


def test_prepared_turn_commits_once() -> None:
    tree, turns = forked()
    prepared = tree.prepare(turns["d"], context=[1], join=Join.PROVED)
    tree.commit(prepared, [1], [-1.0])
    before = tree.to_dict()
    with pytest.raises(TreeError, match="already committed, as turn 8"):
        tree.commit(prepared, [1], [-1.0])
    assert tree.to_dict() == before


def test_reject_is_idempotent() -> None:
    tree, turns = forked()
    tree.reject(turns["d"])
    before = tree.to_dict()
    tree.reject(turns["d"])
    assert tree.to_dict() == before and turns["d"].rejected
    again = TokenTree.from_dict(tree.to_dict())
    for one in (tree, again, pickle.loads(pickle.dumps(tree))):
        assert one.rejected == {turn.id for turn in one if turn.rejected} and turns["d"].id in one.rejected
        one.restore(one[turns["d"].id])
        assert one.rejected == {turn.id for turn in one if turn.rejected} and turns["d"].id not in one.rejected


def test_commits_from_several_threads() -> None:
    tree = TokenTree()
    root = grow(tree, None, [0], [0])
    failures: list[BaseException] = []

    def work(name: int) -> None:
        try:
            tip = root
            for step in range(100):
                tip = grow(tree, tip, [name], [step])
            expected = [0, 0, *(token for step in range(100) for token in (name, step))]
            assert tree.ids(tip).tolist() == expected
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(tree) == 801 and len(tree.leaves()) == 8 and [turn.id for turn in tree] == list(range(801))


@pytest.mark.soak
def test_step_on_long_branch_is_fast() -> None:
    tree = TokenTree()
    tip = grow(tree, None, range(128 * 1024), [1])
    context, sampled, logprobs = array("i", range(50)), array("i", range(50)), array("d", [-1.0] * 50)
    costs = []
    for _ in range(40):
        start = time.process_time()
        prepared = tree.prepare(tip, context=context, join=Join.PROVED)
        tip = tree.commit(prepared, sampled, logprobs, prompt_tokens=len(prepared.ids))
        costs.append(time.process_time() - start)
    assert min(costs) < 0.002


def test_ten_thousand_turns() -> None:
    tree = TokenTree()
    tip = grow(tree, None, [1], [2])
    for _ in range(9_999):
        tip = grow(tree, tip, [1], [2])
    fork = grow(tree, tree[5_000], [3], [4])
    assert tree.ids(tip).tolist() == [1, 2] * 10_000
    assert tree.ids(fork).tolist() == [1, 2] * 5_001 + [3, 4]
    assert tree.branches() == [tip, fork]
    long, short = tree.trajectories()
    assert (int(long.loss_mask.sum()), int(short.loss_mask.sum())) == (10_000, 1)
    twin = pickle.loads(pickle.dumps(tree))
    assert twin.to_dict() == tree.to_dict() == TokenTree.from_dict(tree.to_dict()).to_dict()


def test_ids_are_a_copy() -> None:
    tree, turns = forked()
    for turn in (turns["d"], turns["b"]):
        before = tree.ids(turn)
        tree.ids(turn)[0] = 77
        assert tree.ids(turn) == before


@pytest.mark.parametrize("id", [-1, 8, "0", None, 0.0])
def test_unknown_turns_are_refused(id: Any) -> None:
    tree, _ = forked()
    with pytest.raises(TreeError):
        tree[id]


def test_turns_of_other_tree_are_refused() -> None:
    tree, _ = forked()
    _, others = forked()
    stranger = others["b"]
    for reading in (tree.path, tree.ids, tree.children, tree.reject, tree.trajectory):
        with pytest.raises(TreeError, match="not a turn of this tree"):
            reading(stranger)
    with pytest.raises(TreeError):
        tree.prepare(stranger, context=[1], join=Join.PROVED)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda tree: pickle.loads(pickle.dumps(tree))])
def test_copies_are_complete_and_independent(copied: Any) -> None:
    tree, turns = forked()
    twin = copied(tree)
    assert tree._flat and not twin._flat  # what can be laid out again does not travel
    assert twin.id == tree.id and twin.to_dict() == tree.to_dict()
    assert twin.ids(twin[turns["d"].id]) == tree.ids(turns["d"])
    before = tree.to_dict()
    grow(twin, twin[turns["d"].id], [1], [2])
    twin.reject(twin[0])
    assert len(twin) == 9 and tree.to_dict() == before and tree.children(turns["d"]) == []


def test_branches_that_are_not_kept_flat() -> None:
    tree = TokenTree()
    roots = [grow(tree, None, [n], [n, n]) for n in range(30)]
    tips = [grow(tree, root, [100], [200]) for root in roots]
    for n, tip in enumerate(tips):
        assert tree.ids(tip).tolist() == [n, n, n, 100, 200]
        assert tree.ids(grow(tree, tip, [7], [8])).tolist() == [n, n, n, 100, 200, 7, 8]
    assert len(tree._flat) <= 8


def names(turns: dict[str, Turn], chosen: list[Turn]) -> list[str]:
    return [name for turn in chosen for name, one in turns.items() if one is turn]


def test_branches_of_the_episode() -> None:
    tree, turns = forked()
    assert names(turns, tree.branches()) == ["d", "e", "f"]
    assert names(turns, tree.branches(rejected=True)) == ["retry", "d", "e", "f"]
    assert names(turns, tree.branches(purpose=TurnPurpose.SIDE)) == ["side"]
    assert names(turns, tree.branches(purpose=None)) == ["d", "side", "e", "f"]
    assert names(turns, tree.leaves()) == ["retry", "d", "side", "e", "f"]


def test_empty_tree() -> None:
    assert TokenTree().branches() == [] and TokenTree().leaves() == [] and TokenTree().trajectories() == []
