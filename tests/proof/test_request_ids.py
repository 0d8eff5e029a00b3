"""One answer of the engine cannot be two turns."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.episodes import plain_episode
from proof.forger import Book
from strands_sglang.engine.request import GenerateRequest
from strands_sglang.ledger.event import EventKind
from strands_sglang.proof.certificate import Certificate
from strands_sglang.proof.finding import FindingKind
from strands_sglang.proof.verify import verify_events


def with_ids(name: Any) -> Certificate:
    """Prove two episodes whose calls have the request ids that `name` gives them, by episode and place."""
    raws: list[bytes] = []
    for sample in range(2):
        plain_episode(raws.append, task="t", sample=sample)
    book = Book(raws).copy()
    numbers = {"t/0": 0, "t/1": 0}
    for line in book.lines:
        if line.event.kind is EventKind.CALL:
            line.event.data["detail"]["rid"] = name(line.event.episode, numbers[line.event.episode])
            numbers[line.event.episode] += 1
    assert min(numbers.values()) >= 2
    return verify_events(book.forged())


def new_id(attempt: int = 0) -> str:
    return GenerateRequest([1]).rid(attempt)


def test_each_call_has_an_id_of_its_own() -> None:
    assert with_ids(lambda episode, number: new_id()).proved


def test_an_answer_in_two_episodes() -> None:
    ids = {number: new_id() for number in range(9)}
    certificate = with_ids(lambda episode, number: ids[number] if number == 0 else new_id())
    [finding] = certificate.findings
    assert finding.kind is FindingKind.DUPLICATE and finding.episode == "t/1"
    assert finding.message == (
        f"the same answer of the engine is a turn of episode t/0 and one of this: request {ids[0][:32]}"
    )
    assert not certificate.proved


def test_an_answer_twice_in_an_episode_and_under_another_attempt() -> None:
    request = GenerateRequest([1])
    certificate = with_ids(lambda episode, number: request.rid(number) if episode == "t/0" and number < 2 else new_id())
    [finding] = certificate.findings
    assert finding.episode == "t/0" and "two turns of this episode" in finding.message


@pytest.mark.parametrize("id", ["session-7", "", None, 5, "0" * 32, ["x"]], ids=repr)
def test_ids_of_other_makers_are_not_looked_at(id: Any) -> None:
    assert with_ids(lambda episode, number: id).proved
