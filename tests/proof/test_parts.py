"""Turns that were cut and went on: the part is part of the turn, or the ledger is not believed."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from proof.forger import Book
from rollout.kinds import Kind, plain
from rollout.scripts import raw, record_of, steps
from rollout.test_suspend import CuttingEngine, to_its_end
from strands_sglang.ledger.event import EventKind
from strands_sglang.proof.finding import FindingKind, Verdict
from strands_sglang.proof.verify import verify_events


async def cut_twice(folder: Path) -> list[bytes]:
    """Return the events of an episode that was set aside twice in one turn, and once in another."""
    kind = Kind("steps", lambda task, model: plain(model), steps(2))
    engine = CuttingEngine(kind.engine(), {1: 4, 2: 3, 4: 2}.get)
    _, times = await to_its_end(engine, kind, folder)
    assert times == 3
    return raw(record_of(folder).events)


async def test_what_really_happened_is_proved(tmp_path: Path) -> None:
    raws = await cut_twice(tmp_path)
    certificate = verify_events(raws)
    assert certificate.verdict is Verdict.PROVED, certificate.text()
    assert sum(line.event.kind is EventKind.PART for line in Book(raws).lines) == 3


@pytest.mark.parametrize("what", ["token", "logprob", "version", "longer", "empty", "not a number"])
@pytest.mark.parametrize("which", [0, 1, 2])
async def test_a_part_that_was_changed_is_found(tmp_path: Path, what: str, which: int) -> None:
    book = Book(await cut_twice(tmp_path))
    event = book.of(EventKind.PART)[which].event
    sampled, logprobs, versions = event.arrays["sampled"], event.arrays["logprobs"], event.data["versions"]
    if what == "token":
        sampled[0] += 1
    elif what == "logprob":
        memoryview(logprobs).cast("B").cast("Q")[-1] ^= 1
    elif what == "version":
        versions[0][0] = "v9"
    elif what == "longer":
        sampled.append(5)
        logprobs.append(-1.0)
        versions[-1][2] += 1
    elif what == "empty":
        event.arrays |= {"sampled": array("i"), "logprobs": array("d")}
        event.data["versions"] = []
    else:
        logprobs[0] = float("nan")
    certificate = verify_events(book.forged())
    assert certificate.verdict is Verdict.BROKEN, certificate.text()
    assert FindingKind.SAMPLED in certificate.found or FindingKind.FORM in certificate.found


async def test_a_turn_that_says_what_it_gave_up_is_believed(tmp_path: Path) -> None:
    """Where going on would not have been exact it began anew: its words are others, and it says how many are gone."""
    book = Book(await cut_twice(tmp_path))
    last = book.of(EventKind.PART)[-1].event
    last.arrays["sampled"][0] += 1
    assert verify_events(book.forged()).verdict is Verdict.BROKEN
    call = next(line.event for line in book.of(EventKind.CALL) if line.event.data["prompt"] == last.data["prompt"])
    call.data["detail"]["discarded_tokens"] = len(last.arrays["sampled"])
    assert verify_events(book.forged()).verdict is Verdict.PROVED
