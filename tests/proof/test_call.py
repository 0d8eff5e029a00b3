"""Partial calls must begin the turns that continue them, and an engine response must not be recorded as two turns."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runs.test_pause import InterruptingEngine, run_to_end
from strands_sglang.engine.request import GenerateRequest
from strands_sglang.ledger.event import EventKind
from strands_sglang.proof.call import KeptFacts
from strands_sglang.proof.certificate import Certificate
from strands_sglang.proof.finding import FindingKind, Verdict
from support.ledger.episodes import plain_episode
from support.proof.in_memory import verify_events
from support.proof.tampering import LedgerEditor
from support.rollout.agent_kinds import Kind, plain
from support.rollout.scripts import raw, record_of, steps


async def suspended_episode(folder: Path) -> list[bytes]:
    """Return the events of an episode that was suspended twice in one turn and once in another."""
    kind = Kind("steps", lambda task, model: plain(model), steps(2))
    engine = InterruptingEngine(kind.engine(), {1: 4, 2: 3, 4: 2}.get)
    _, times = await run_to_end(engine, kind, folder)
    assert times == 3
    return raw(record_of(folder).events)


async def test_unchanged_partial_calls_are_proved(tmp_path: Path) -> None:
    raws = await suspended_episode(tmp_path)
    certificate = verify_events(raws)
    assert certificate.verdict is Verdict.PROVED, certificate.text()
    assert sum(line.event.kind is EventKind.PARTIAL_CALL for line in LedgerEditor(raws).events) == 3


@pytest.mark.parametrize("what", ["token", "logprob", "version", "longer", "empty", "not a number"])
@pytest.mark.parametrize("which", [0, 1, 2])
async def test_changed_partial_call_is_found(tmp_path: Path, what: str, which: int) -> None:
    editor = LedgerEditor(await suspended_episode(tmp_path))
    event = editor.of(EventKind.PARTIAL_CALL)[which].event
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
    certificate = verify_events(editor.forged())
    assert certificate.verdict is Verdict.BROKEN, certificate.text()
    assert FindingKind.SAMPLED in certificate.found or FindingKind.FORM in certificate.found


async def test_turn_that_declares_discarded_tokens_is_proved(tmp_path: Path) -> None:
    """A turn that restarts instead of continuing has other tokens and declares how many were discarded."""
    editor = LedgerEditor(await suspended_episode(tmp_path))
    last = editor.of(EventKind.PARTIAL_CALL)[-1].event
    last.arrays["sampled"][0] += 1
    assert verify_events(editor.forged()).verdict is Verdict.BROKEN
    call = next(
        line.event
        for line in editor.of(EventKind.CALL)
        if line.event.data["prompt_digest"] == last.data["prompt_digest"]
    )
    call.data["detail"]["discarded_tokens"] = len(last.arrays["sampled"])
    assert verify_events(editor.forged()).verdict is Verdict.PROVED


def with_ids(name: Any) -> Certificate:
    """Verify two episodes whose calls have the request ids that `name` returns for an episode and call number."""
    raws: list[bytes] = []
    for sample in range(2):
        plain_episode(raws.append, task="t", sample=sample)
    editor = LedgerEditor(raws).copy()
    numbers = {"t/0": 0, "t/1": 0}
    for line in editor.events:
        if line.event.kind is EventKind.CALL:
            line.event.data["detail"]["rid"] = name(line.event.episode, numbers[line.event.episode])
            numbers[line.event.episode] += 1
    assert min(numbers.values()) >= 2
    return verify_events(editor.forged())


def new_id(attempt: int = 0) -> str:
    return GenerateRequest([1]).rid(attempt)


def test_distinct_request_ids_are_proved() -> None:
    assert with_ids(lambda episode, number: new_id()).proved


def test_response_in_two_episodes_is_found() -> None:
    ids = {number: new_id() for number in range(9)}
    certificate = with_ids(lambda episode, number: ids[number] if number == 0 else new_id())
    [finding] = certificate.findings
    assert finding.kind is FindingKind.DUPLICATE and finding.episode == "t/1"
    assert finding.message == (
        f"one engine response is recorded as a turn of episode t/0 and one of this episode: request {ids[0][:32]}"
    )
    assert not certificate.proved


def test_response_in_two_turns_with_another_attempt_is_found() -> None:
    request = GenerateRequest([1])
    certificate = with_ids(lambda episode, number: request.rid(number) if episode == "t/0" and number < 2 else new_id())
    [finding] = certificate.findings
    assert finding.episode == "t/0" and "two turns of this episode" in finding.message


@pytest.mark.parametrize("id", ["session-7", "", None, 5, "0" * 32, ["x"]], ids=repr)
def test_request_ids_in_other_formats_are_ignored(id: Any) -> None:
    assert with_ids(lambda episode, number: id).proved


def facts(kept: list[float], logprobs: list[float], temperature: float | None) -> tuple[int, str] | None:
    """Return what is wrong with tokens that each have another one in their kept set."""
    count = len(kept)
    ids, offsets = (
        np.array([[at, 99] for at in range(count)], np.int32).ravel(),
        np.arange(count + 1, dtype=np.int32) * 2,
    )
    sets = KeptFacts(ids, offsets, np.array(kept))
    return sets.problem(np.arange(count, dtype=np.int32), np.array(logprobs), temperature)


@pytest.mark.parametrize(("temperature", "compared"), [(1.0, True), (1, True), (0, True), (1.5, False), (None, False)])
def test_logprobs_are_compared_where_the_engine_reports_both_after_temperature(
    temperature: float | None, compared: bool
) -> None:
    """With SGLANG_RETURN_ORIGINAL_LOGPROB, the logprob over everything is that of temperature 1."""
    logits, hot = np.array([4.0, 3.0, 0.0, 0.0]), 1.5
    original = logits[0] - np.log(np.exp(logits).sum())
    over_set = logits[0] / hot - np.log(np.exp(logits[:2] / hot).sum())
    assert over_set < original, "the engine is right, and so is the order"
    assert (facts([over_set], [original], temperature) is not None) is compared
    scaled = logits[0] / hot - np.log(np.exp(logits / hot).sum())
    assert facts([over_set], [scaled], temperature) is None


def test_logprobs_of_half_precision_are_not_reported() -> None:
    assert facts([-8.01], [-8.0], 1.0) is None
    assert facts([-8.1], [-8.0], 1.0) is not None
    assert facts([-0.01], [-0.001], 1.0) is not None


def test_kept_set_with_an_id_below_zero_is_reported() -> None:
    ids, offsets = np.array([5, 6, 7, -3], np.int32), np.array([0, 2, 4], np.int32)
    found = KeptFacts(ids, offsets, np.array([-0.1, -0.1])).problem(np.array([5, 7], np.int32), np.array([-0.5, -0.5]))
    assert found == (1, "its kept set has -3, which is not a token id")
