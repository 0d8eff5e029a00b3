"""A branch laid flat says of every token what it is, and trains each sampled token once."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.errors import CountMismatchError, RecordError
from strands_sglang.tokens import Origin, TokenTree, Trajectory
from support.token_trees import forked, grow

C, S, X = int(Origin.CONTEXT), int(Origin.SAMPLED), int(Origin.CLOSING)


def test_every_token_of_a_branch() -> None:
    tree, turns = forked()
    flat = tree.trajectory(turns["d"])
    flat.validate()
    assert flat.token_ids.tolist() == [1, 2, 3, 10, 11, 4, 12, 13, 14, 5, 21, 99, 6, 7, 22, 23]
    assert flat.origins.tolist() == [C, C, C, S, S, C, S, S, S, C, S, X, C, C, S, S]
    assert flat.loss_mask.tolist() == [0, 0, 0, 1, 1, 0, 1, 1, 1, 0, 1, 0, 0, 0, 1, 1]
    assert flat.turns.tolist() == [0] * 5 + [1] * 4 + [2] * 2 + [3] * 5
    assert flat.version_names == ("v1", "v2", None)
    assert flat.versions.tolist() == [-1, -1, -1, 0, 0, -1, 0, 1, 1, -1, 2, -1, -1, -1, 2, 2]
    assert flat.logprobs.tolist()[3:9] == [-1.0, -1.1, 0.0, -1.2, -1.3, -1.4]
    assert (flat.branch, flat.tree, flat.turn_ids) == (turns["d"].id, "t", (0, 1, 3, 4))
    assert (len(flat), flat.prompt_length, flat.response_length, flat.num_turns) == (16, 3, 13, 4)
    types = {name: str(getattr(flat, name).dtype) for name in ("token_ids", "loss_mask", "logprobs", "versions")}
    assert types == {"token_ids": "int32", "loss_mask": "int8", "logprobs": "float64", "versions": "int32"}
    assert (str(flat.turns.dtype), str(flat.origins.dtype)) == ("int32", "int8")


def test_branch_without_sampled_tokens() -> None:
    tree = TokenTree()
    flat = tree.trajectory(grow(tree, None, [1, 2], []))
    flat.validate()
    assert (flat.prompt_length, flat.response_length, flat.version_names) == (2, 0, ())
    empty = tree.trajectory(grow(tree, None, [], []))
    empty.validate()
    assert (len(empty), empty.prompt_length) == (0, 0)


def flat_d() -> Trajectory:
    tree, turns = forked()
    return tree.trajectory(turns["d"])


def put(name: str, at: int, value: float) -> Callable[[Trajectory], None]:
    return lambda flat: getattr(flat, name).__setitem__(at, value)


BROKEN: dict[str, Callable[[Trajectory], None]] = {
    "length": lambda flat: setattr(flat, "turns", flat.turns[1:]),
    "shape": lambda flat: setattr(flat, "logprobs", flat.logprobs.reshape(1, -1)),
    "negative id": put("token_ids", 0, -5),
    "loss on context": put("loss_mask", 0, 1),
    "loss on closing": put("loss_mask", 11, 1),
    "mask of 2": put("loss_mask", 3, 2),
    "unknown origin": put("origins", 0, 3),
    "nan": put("logprobs", 3, float("nan")),
    "logprob on context": put("logprobs", 0, -1.0),
    "no version": put("versions", 3, -1),
    "version of context": put("versions", 0, 0),
    "version without a name": put("versions", 3, 3),
    "turn outside": put("turns", 15, 4),
    "turn below 0": put("turns", 0, -1),
    "turns out of order": put("turns", 8, 3),
    "branch": lambda flat: setattr(flat, "branch", 3),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_validate_finds(broken: str) -> None:
    flat = flat_d()
    flat.validate()
    BROKEN[broken](flat)
    with pytest.raises(CountMismatchError):
        flat.validate()
    with pytest.raises(RecordError):
        Trajectory.from_dict(flat.to_dict())


def test_equal_by_value() -> None:
    assert flat_d() == flat_d() and flat_d() != "a trajectory"
    for name in ("token_ids", "loss_mask", "logprobs", "versions", "turns", "origins"):
        other = flat_d()
        getattr(other, name)[3] += 1
        assert flat_d() != other
    other = flat_d()
    other.tree = "u"
    assert flat_d() != other
    assert pickle.loads(pickle.dumps(flat_d())) == flat_d()


@given(st.lists(st.floats(max_value=1e-3, allow_nan=False, allow_infinity=False), max_size=5))
def test_round_trip_is_exact(logprobs: list[float]) -> None:
    tree = TokenTree()
    turn = tree.commit(tree.prepare(None, context=[1]), [2] * len(logprobs), logprobs)
    flat = tree.trajectory(turn)
    for through in (json.loads(json.dumps(flat.to_dict())), orjson.loads(orjson.dumps(flat.to_dict()))):
        back = Trajectory.from_dict(through)
        assert back == flat and back.logprobs.tobytes() == flat.logprobs.tobytes()
        assert all(getattr(back, name).dtype == getattr(flat, name).dtype for name in ("token_ids", "loss_mask"))


def test_invalid_records_are_refused() -> None:
    data = flat_d().to_dict()
    wrong: list[object] = [None, {}, {**data, "format": 2}, {**data, "loss_mask": [300] * 16}, {**data, "turns": None}]
    wrong += [{key: value for key, value in data.items() if key != name} for name in set(data) - {"agent", "main"}]
    for one in wrong:
        with pytest.raises(RecordError):
            Trajectory.from_dict(one)  # type: ignore[arg-type]
