"""Kept sets of truncated sampling: requested, read, joined over continuations, and never missing in silence."""

from __future__ import annotations

from array import array
from typing import Any

import orjson
import pytest

from strands_sglang.engine import FinishReason, Generation
from strands_sglang.engine.continuation import Continuation, NextStep
from strands_sglang.engine.request import GenerateRequest
from strands_sglang.engine.response import parse
from strands_sglang.errors import CountMismatchError, MalformedResponseError
from strands_sglang.tokens import KeptSets, VersionSpan


def answer(**meta: Any) -> dict[str, Any]:
    """Return an answer of two tokens."""
    known = {
        "finish_reason": {"type": "stop"},
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "output_token_logprobs": [-0.5, 1, None, -0.25, 2, None],
        "weight_version": "1",
    }
    return {"output_ids": [1, 2], "meta_info": {**known, **meta}}


SETS = {"output_token_sampling_mask": [[1, 5], [2]], "output_token_sampling_logprobs": [-0.1, 0.0]}


def test_sets_are_requested() -> None:
    body = orjson.loads(GenerateRequest([1, 2, 3], kept_sets=True).body(0))
    assert body["return_sampling_mask"] is True and body["sampling_logprobs_mode"] == "selected"
    assert "return_sampling_mask" not in orjson.loads(GenerateRequest([1, 2, 3]).body(0))


def test_sets_are_read() -> None:
    turn = parse(answer(**SETS, output_token_sampling_mask_length=2), 3, kept_sets=True)
    assert turn.kept == KeptSets.of([[1, 5], [2]], [-0.1, 0.0])
    assert turn.logprobs.tolist() == [-0.5, -0.25], "the logprobs over the whole vocabulary stay as they are"
    assert not turn.meta.keys() & SETS.keys()
    assert parse(answer(**SETS), 3).kept is None


@pytest.mark.parametrize(
    ("meta", "error", "problem"),
    [
        ({}, CountMismatchError, "no kept sets"),
        ({**SETS, "output_token_sampling_mask": [[1, 5]]}, MalformedResponseError, "kept sets"),
        ({**SETS, "output_token_sampling_mask": [[1, 5], [3]]}, CountMismatchError, "not in its kept set"),
        ({**SETS, "output_token_sampling_mask": [[1, 5], [2.5]]}, MalformedResponseError, "kept"),
        ({**SETS, "output_token_sampling_logprobs": [-0.1, 7.0]}, MalformedResponseError, "logprobs must be"),
        ({**SETS, "output_token_sampling_logprobs": None}, CountMismatchError, "no kept sets"),
    ],
)
def test_what_does_not_fit_is_refused(meta: dict[str, Any], error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        parse(answer(**meta), 3, kept_sets=True)


def part(ids: list[int], kept: KeptSets | None, finish: FinishReason) -> Generation:
    return Generation(
        array("i", ids), array("d", [-0.5] * len(ids)), finish, versions=(VersionSpan("1", 0, len(ids)),), kept=kept
    )


def test_parts_of_a_turn_are_joined() -> None:
    first, second = KeptSets.of([[1, 5]], [-0.1]), KeptSets.of([[2], [3, 4]], [0.0, -0.7])
    continuation = Continuation({"max_new_tokens": 9})
    assert continuation.add(part([1], first, FinishReason.ABORT)) is NextStep.CONTINUE
    assert continuation.add(part([2, 4], second, FinishReason.STOP)) is NextStep.WHOLE
    assert continuation.turn().kept == first.joined(second)
    mixed = Continuation({"max_new_tokens": 9})
    mixed.add(part([1], None, FinishReason.ABORT))
    mixed.add(part([2, 4], second, FinishReason.STOP))
    assert mixed.turn().kept is None, "sets of a part of a turn are no sets of the turn"
