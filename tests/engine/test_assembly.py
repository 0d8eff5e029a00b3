"""Joining the parts of an interrupted turn: every token once, in order, with its logprob and its version."""

from __future__ import annotations

import base64
from array import array
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.engine.assembly import Assembly
from strands_sglang.engine.generation import FinishReason, Generation, SpecInfo, VersionSpan
from strands_sglang.engine.request import GenerateRequest
from strands_sglang.engine.routed_experts import RoutedExperts
from strands_sglang.errors import CountMismatchError


def leg(
    ids: list[int],
    version: str = "v1",
    reason: FinishReason = FinishReason.ABORT,
    experts: RoutedExperts | None = None,
    spec: SpecInfo | None = None,
    prompt: int = 1,
) -> Generation:
    """What one request sampled, as its answer is parsed."""
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


@given(parts, st.lists(st.integers(0, 99), max_size=4), st.sampled_from("abc"))
def test_every_token_once_with_its_version(
    cut: list[tuple[list[int], str]], rest: list[int], last_version: str
) -> None:
    request = GenerateRequest([7], {"max_new_tokens": 1000})
    assembly = Assembly(request)
    for ids, version in cut:
        assert assembly.interrupt(leg(ids, version)) is bool(ids)
    generation = assembly.finish(leg(rest, last_version, FinishReason.STOP))
    expected = [(i, v) for ids, v in [*cut, (rest, last_version)] for i in ids]
    assert list(generation.token_ids) == [i for i, _ in expected]
    assert list(generation.logprobs) == [-float(i) for i, _ in expected]
    assert generation.versions_per_token() == [v for _, v in expected]
    spans = generation.versions
    assert all(a.version != b.version for a, b in pairwise(spans))
    assert generation.prompt_tokens == 1
    assert generation.continuations == sum(1 for ids, _ in cut if ids)
    assert request.prompt_tokens == 1 + sum(len(ids) for ids, _ in cut)


@given(parts)
def test_what_cannot_be_continued_is_discarded_and_counted(cut: list[tuple[list[int], str]]) -> None:
    request = GenerateRequest([7], {"max_new_tokens": 1000, "stop": ["x"]})
    assembly = Assembly(request)
    for ids, version in cut:
        assert assembly.interrupt(leg(ids, version)) is False
    generation = assembly.finish(leg([1, 2], "z", FinishReason.STOP))
    assert list(generation.token_ids) == [1, 2]
    assert generation.discarded_tokens == sum(len(ids) for ids, _ in cut)
    assert request.prompt_tokens == 1


def test_a_turn_cut_exactly_at_its_budget_ends_by_length() -> None:
    assembly = Assembly(GenerateRequest([7], {"max_new_tokens": 2}))
    assert assembly.interrupt(leg([1, 2])) and assembly.spent
    generation = assembly.finish_spent()
    assert (generation.finish_reason, list(generation.token_ids)) == (FinishReason.LENGTH, [1, 2])


def test_routed_experts_join_where_they_meet() -> None:
    def rows(first: int, last: int) -> RoutedExperts:
        data = base64.b64encode(np.array([[i, i] for i in range(first, last)], "<i4").tobytes()).decode()
        return RoutedExperts((data,), (last - first,), first)

    request = GenerateRequest([7, 8, 9], {"max_new_tokens": 9}, routed_experts_start=0)
    assembly = Assembly(request)
    assembly.interrupt(leg([1, 2], experts=rows(0, 4)))  # 3 + 2 - 1 rows
    assert request.experts_start == 4
    generation = assembly.finish(leg([3, 4], reason=FinishReason.STOP, experts=rows(4, 6)))
    assert generation.routed_experts is not None
    assert generation.routed_experts.decode(1, 2)[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_routed_experts_that_do_not_meet_are_refused() -> None:
    assembly = Assembly(GenerateRequest([7], {"max_new_tokens": 9}, routed_experts_start=0))
    assembly.interrupt(leg([1, 2], experts=RoutedExperts(("",), (2,), 0)))
    with pytest.raises(CountMismatchError, match="go on at 5"):
        assembly.finish(leg([3], reason=FinishReason.STOP, experts=RoutedExperts(("",), (2,), 5)))


def test_spec_counts_are_summed() -> None:
    assembly = Assembly(GenerateRequest([7], {"max_new_tokens": 9}))
    assembly.interrupt(leg([1], spec=SpecInfo(1, 2, 3)))
    generation = assembly.finish(leg([2], reason=FinishReason.STOP, spec=SpecInfo(10, 20, 30)))
    assert generation.spec == SpecInfo(11, 22, 33)
