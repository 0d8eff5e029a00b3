"""Kept sets: flat arrays that fit their tokens, over joins, parts, trees and trajectories."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.errors import CountMismatchError, RecordError, TreeError
from strands_sglang.tokens import Join, KeptSets, Origin, TokenTree, Trajectory

sets = st.lists(
    st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True), st.integers(0, 3)), max_size=5
)


def made(drawn: list[tuple[list[int], int]]) -> tuple[list[int], KeptSets]:
    """Return sampled tokens and their sets."""
    sampled = [ids[at % len(ids)] for ids, at in drawn]
    return sampled, KeptSets.of([ids for ids, _ in drawn], [-at / 8 for _, at in drawn])


@given(sets, sets)
def test_joining_and_parts(one: list[tuple[list[int], int]], other: list[tuple[list[int], int]]) -> None:
    (sampled, first), (more, second) = made(one), made(other)
    whole = first.joined(second)
    whole.check_members(sampled + more)
    assert [whole.at(number).tolist() for number in range(len(whole))] == [ids for ids, _ in one + other]
    assert whole.part(0, len(first)) == first and whole.part(len(first), len(whole)) == second
    assert KeptSets.from_dict(whole.to_dict()) == whole


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 2), sets, st.booleans()), min_size=1, max_size=5))
def test_trees_and_trajectories(steps: list[tuple[int, int, list[tuple[list[int], int]], bool]]) -> None:
    tree, known = TokenTree("t"), list[bool]()
    for parent, context, drawn, truncated in steps:
        sampled, kept = made(drawn)
        after = tree[parent] if 0 <= parent < len(tree) else None
        join = Join.ROOT if after is None else Join.PROVED
        prepared = tree.prepare(after, context=[1] * context, join=join)
        tree.commit(prepared, sampled, [-0.5] * len(sampled), kept=kept if truncated else None)
        known.append(truncated)
    for one in (tree, TokenTree.from_dict(tree.to_dict())):
        for turn in one:
            trajectory = one.trajectory(turn)
            trajectory.validate()
            path = one.path(turn)
            complete = any(known[own.id] for own in path) and all(known[own.id] or not own.sampled for own in path)
            assert (trajectory.kept is not None) == complete
            assert Trajectory.from_dict(trajectory.to_dict()) == trajectory
            if trajectory.kept is not None:
                for place, origin in enumerate(trajectory.origins):
                    assert (origin == Origin.SAMPLED) == bool(len(trajectory.kept.at(place)))


def test_what_does_not_fit_is_refused() -> None:
    kept = KeptSets.of([[1, 2], [3]], [-0.1, 0.0])
    for sampled, problem in (([1], "1 sampled tokens but 2"), ([1, 4], r"token 1 \(4\) is not in its kept set")):
        with pytest.raises(CountMismatchError, match=problem):
            kept.check_members(sampled)
        tree = TokenTree()
        with pytest.raises(CountMismatchError, match=problem):
            tree.commit(tree.prepare(None, context=[5]), sampled, [-0.1] * len(sampled), kept=kept)
        assert not tree
    with pytest.raises(CountMismatchError, match="behaviour logprobs"):
        KeptSets.of([[1]], [])
    with pytest.raises(TreeError):
        KeptSets.of([[-1]], [0.0])
    with pytest.raises(CountMismatchError, match="must run from 0"):
        KeptSets.from_dict({"token_ids": [1], "offsets": [0, 2], "logprobs": [0.0]})


def test_a_changed_record_is_refused() -> None:
    tree = TokenTree()
    tree.commit(tree.prepare(None, context=[5]), [1], [-0.1], kept=KeptSets.of([[1, 2]], [-0.05]))
    record = tree.to_dict()
    record["turns"][0]["kept"]["token_ids"] = [3, 2]
    with pytest.raises(RecordError, match="not in its kept set"):
        TokenTree.from_dict(record)
