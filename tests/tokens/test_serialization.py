"""A tree comes back from its record exactly, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from strands_sglang.engine import FinishReason
from strands_sglang.errors import RecordError, TreeError
from strands_sglang.tokens import TokenTree
from strands_sglang.tokens.serialization import plain_copy
from support.token_trees import forked, grow


@pytest.mark.parametrize("through", [lambda d: json.loads(json.dumps(d)), lambda d: orjson.loads(orjson.dumps(d))])
def test_round_trip(through: Callable[[Any], Any]) -> None:
    tree, _ = forked()
    data = tree.to_dict()
    assert data["format"] == 2 and through(data) == data  # plain already: nothing changes on the way
    back = TokenTree.from_dict(through(data))
    assert back.to_dict() == data and back.id == tree.id
    for mine, other in zip(tree, back, strict=True):
        assert mine.logprobs.tobytes() == other.logprobs.tobytes() and tree.ids(mine) == back.ids(other)
        assert (mine.caller, mine.versions, mine.join, mine.status) == (
            *(other.caller, other.versions, other.join, other.status),
        )
        assert tree.children(mine) == [tree[child.id] for child in back.children(other)]
    assert back.trajectories() == tree.trajectories()
    grow(back, back[4], [1], [2])


def test_record_is_independent_of_tree() -> None:
    tree, turns = forked()
    data, text = tree.to_dict(), json.dumps(tree.to_dict())
    turns["c"].detail["rid"] = "other"
    tree.reject(turns["d"])
    assert json.dumps(data) == text


def change(number: int, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["turns"][number].update(fields)


WRONG: dict[str, Callable[[dict[str, Any]], None]] = {
    "format": lambda data: data.update(format=1),
    "no format": lambda data: data.pop("format"),
    "no id": lambda data: data.pop("id"),
    "turns": lambda data: data.update(turns={}),
    "a turn is missing": lambda data: data["turns"].pop(2),
    "turns in another order": lambda data: data["turns"].reverse(),
    "a turn is no turn": lambda data: data["turns"].append(None),
    "an unknown field": change(0, colour="red"),
    "a missing field": lambda data: data["turns"][0].pop("finish_reason"),
    "its own parent": change(1, parent=1),
    "a later parent": change(1, parent=5),
    "a parent below 0": change(1, parent=-1),
    "parent as text": change(1, parent="0"),
    "start": change(1, start=4),
    "a token more in the parent": lambda data: data["turns"][0]["context"].append(5),
    "a logprob less": lambda data: data["turns"][0]["logprobs"].pop(),
    "spans": change(1, versions=[["v1", 0, 2]]),
    "no spans": change(1, versions=[]),
    "status": change(0, status="lost"),
    "purpose": change(0, purpose="x"),
    "join": change(1, join="root"),
    "a negative id": change(0, context=[-1, 2, 3]),
    "a float id": change(0, context=[1.0, 2, 3]),
    "nan": change(0, logprobs=[float("nan"), 0.0]),
    "caller": change(7, caller=[3]),
    "caller unknown": change(7, caller=[7, None]),
    "forked from itself": change(7, forked_from=7),
    "detail": change(0, detail=[]),
    "finish_reason": change(0, finish_reason=None),
    "id as float": change(0, id=0.0),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_records_are_refused(wrong: str) -> None:
    data = forked()[0].to_dict()
    WRONG[wrong](data)
    with pytest.raises(RecordError):
        TokenTree.from_dict(data)


def test_record_must_be_a_mapping() -> None:
    with pytest.raises(RecordError):
        TokenTree.from_dict([])  # type: ignore[arg-type]


def test_plain_data() -> None:
    assert plain_copy({"a": (1, 2.5, None, True), "b": FinishReason.STOP}) == {"a": [1, 2.5, None, True], "b": "stop"}
    assert type(plain_copy(FinishReason.STOP)) is str
    for wrong in (object(), {1: 2}, {"a": {2}}, b"x"):
        with pytest.raises(TreeError):
            plain_copy(wrong)
