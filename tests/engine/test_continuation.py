"""Assembling an interrupted turn: every token once, in order, with its logprob and its version."""

from __future__ import annotations

import base64
from array import array
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.engine import FinishReason, Generation, RoutedExperts, SpecInfo, VersionSpan
from strands_sglang.engine.continuation import Continuation, NextStep
from strands_sglang.errors import CountMismatchError


def leg(
    ids: list[int],
    version: str = "v1",
    reason: FinishReason = FinishReason.ABORT,
    experts: RoutedExperts | None = None,
    spec: SpecInfo | None = None,
    prompt: int = 1,
) -> Generation:
    return Generation(
        token_ids=array("i", ids),
        logprobs=array("d", [-float(i) for i in ids]),
        finish_reason=reason,
        versions=(VersionSpan(version, 0, len(ids)),) if ids else (),
        prompt_tokens=prompt,
        routed_experts=experts,
        spec=spec,
    )


parts = st.lists(st.tuples(st.lists(st.integers(0, 99), max_size=4), st.sampled_from("abc")), max_size=8)


@given(parts, st.lists(st.integers(0, 99), max_size=4), st.sampled_from("abc"), st.booleans())
def test_every_token_once_with_its_version(
    cut: list[tuple[list[int], str]], rest: list[int], last_version: str, in_two_calls: bool
) -> None:
    continuation = Continuation({"max_new_tokens": 1000, "min_new_tokens": 5})
    for ids, version in cut:
        assert continuation.add(leg(ids, version)) is (NextStep.CONTINUE if ids else NextStep.NO_PROGRESS)
    used = sum(len(ids) for ids, _ in cut)
    if in_two_calls:
        empty = sum(not ids for ids, _ in cut)
        continuation = Continuation({"max_new_tokens": 1000, "min_new_tokens": 5}, kept=continuation.partial)
        assert empty or used or continuation.partial is None
    sent, sampling, _ = continuation.rest([7], None)
    assert list(sent) == [7, *(token for tokens, _ in cut for token in tokens)]
    assert sampling == {"max_new_tokens": 1000 - used, "min_new_tokens": max(0, 5 - used)}
    assert continuation.add(leg(rest, last_version, FinishReason.STOP)) is NextStep.WHOLE
    generation = continuation.turn()
    expected = [(i, v) for ids, v in [*cut, (rest, last_version)] for i in ids]
    assert list(generation.token_ids) == [i for i, _ in expected]
    assert list(generation.logprobs) == [-float(i) for i, _ in expected]
    assert generation.versions_per_token() == [v for _, v in expected]
    spans = generation.versions
    assert all(a.version != b.version for a, b in pairwise(spans))
    assert generation.prompt_tokens == 1 and generation.discarded_tokens == 0
    assert generation.continuations == sum(1 for ids, _ in cut if ids)
    if not in_two_calls:
        assert generation.requests == len(cut) + 1


@given(parts)
def test_part_that_cannot_be_continued_is_discarded_and_counted(cut: list[tuple[list[int], str]]) -> None:
    continuation = Continuation({"max_new_tokens": 1000, "stop": ["x"]})
    for ids, version in cut:
        assert continuation.add(leg(ids, version)) is (NextStep.RESTART if ids else NextStep.NO_PROGRESS)
    assert continuation.partial is None and list(continuation.rest([7], None)[0]) == [7]
    continuation.add(leg([1, 2], "z", FinishReason.STOP))
    generation = continuation.turn()
    assert list(generation.token_ids) == [1, 2]
    assert generation.discarded_tokens == sum(len(ids) for ids, _ in cut)
    assert (generation.requests, generation.continuations) == (len(cut) + 1, 0)


def test_kept_part_is_unchanged_until_more_is_sampled() -> None:
    kept = leg([1, 2])
    continuation = Continuation({"max_new_tokens": 9}, kept=kept)
    assert continuation.add(leg([])) is NextStep.NO_PROGRESS and continuation.partial is kept
    assert continuation.add(leg([3])) is NextStep.CONTINUE
    partial = continuation.partial
    assert partial is not None and list(partial.token_ids) == [1, 2, 3] and partial.continuations == 1


def test_turn_interrupted_at_budget_ends_by_length() -> None:
    continuation = Continuation({"max_new_tokens": 3}, kept=leg([1]))
    assert not continuation.spent and continuation.add(leg([2, 3])) is NextStep.SPENT
    generation = continuation.turn()
    assert (generation.finish_reason, generation.finish_detail) == (FinishReason.LENGTH, 3)
    assert list(generation.token_ids) == [1, 2, 3] and generation.continuations == 1
    assert Continuation({"max_new_tokens": 3}, kept=generation).spent


def test_text_of_last_part_is_not_used() -> None:
    first, last = leg([1]), leg([2], reason=FinishReason.STOP)
    first.text, last.text = "a", "b"
    continuation = Continuation({"max_new_tokens": 5}, kept=first)
    continuation.add(last)
    assert continuation.turn().text is None


def test_routed_experts_join_where_they_meet() -> None:
    def rows(first: int, last: int) -> RoutedExperts:
        data = base64.b64encode(np.array([[i, i] for i in range(first, last)], "<i4").tobytes()).decode()
        return RoutedExperts((data,), (last - first,), first)

    continuation = Continuation({"max_new_tokens": 9})
    continuation.add(leg([1, 2], experts=rows(0, 4)))  # 3 + 2 - 1 rows
    assert continuation.rest([7, 8, 9], 0)[2] == continuation.experts_end == 4
    continuation.add(leg([3, 4], reason=FinishReason.STOP, experts=rows(4, 6)))
    experts = continuation.turn().routed_experts
    assert experts is not None
    assert experts.decode(1, 2)[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_routed_experts_that_do_not_meet_are_refused() -> None:
    continuation = Continuation({"max_new_tokens": 9})
    continuation.add(leg([1, 2], experts=RoutedExperts(("",), (2,), 0)))
    continuation.add(leg([3], reason=FinishReason.STOP, experts=RoutedExperts(("",), (2,), 5)))
    with pytest.raises(CountMismatchError, match="continue at 5"):
        continuation.turn()


def test_spec_counts_are_summed() -> None:
    continuation = Continuation({"max_new_tokens": 9})
    continuation.add(leg([1], spec=SpecInfo(1, 2, 3)))
    continuation.add(leg([2], reason=FinishReason.STOP, spec=SpecInfo(10, 20, 30)))
    assert continuation.turn().spec == SpecInfo(11, 22, 33)
