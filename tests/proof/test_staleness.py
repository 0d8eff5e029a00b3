"""Decisions about the age of tokens: what follows from the events is proved, anything else is found."""

from __future__ import annotations

from typing import Any

import pytest

from strands_sglang.ledger.event import EventKind
from strands_sglang.proof.certificate import Certificate
from strands_sglang.proof.finding import FindingKind
from support.ledger.episodes import Recorder
from support.proof.in_memory import verify_events

GOOD: dict[str, Any] = {
    "limit": 1, "action": "mask", "order": "number", "current": "5", "ages": [["3", 2], ["5", 0], [None, None]],
    "age": 4, "decision": "masked", "time": 1.0,
}  # fmt: skip


def verified(data: dict[str, Any], *, end_reason: str = "answered", after: EventKind | None = None) -> Certificate:
    """Verify an episode of two turns, of the weights 3 and 5, and of none, with a decision behind its end."""
    events: list[bytes] = []
    recorder = Recorder(events.append)
    first = recorder.call(None, context=[1, 2], sampled=[3, 4, 5], versions=[("3", 0, 2), ("5", 2, 3)])
    recorder.call(first, context=[6], sampled=[7, 8], versions=[(None, 0, 2)])
    recorder.end(end_reason)
    recorder.append(EventKind.STALENESS, data)
    if after is EventKind.RESUME:
        recorder.resume(events.append)
        recorder.end()
    return verify_events(events)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"order": "given", "current": "now", "ages": [["3", 2], ["5", 1], [None, None]]},
        {"action": "drop", "decision": "dropped"},
        {"action": "retry", "decision": "retried"},
        {"action": "retry", "decision": "dropped"},  # as often as the rule allows
        {"limit": 4, "action": "drop", "decision": "kept"},
        {"limit": 2, "decision": "kept"},  # another episode of its group is older
        {"current": None, "ages": [["3", None], ["5", None], [None, None]], "age": None, "decision": "kept"},
    ],
)
def test_decision_that_follows_is_proved(changed: dict[str, Any]) -> None:
    data = {**GOOD, **changed}
    certificate = verified(data)
    dropped = data["decision"] in ("dropped", "retried")
    assert set(certificate.found) <= ({FindingKind.NOTHING_TRAINED} if dropped else set()), certificate.text()
    stale = 5 if dropped else 2 if data["decision"] == "masked" else 0
    assert (certificate.tokens.stale, certificate.tokens.trained) == (stale, 5 - stale)
    assert certificate.staleness == {data["decision"]: 1} and certificate.to_dict()["tokens"]["stale"] == stale


@pytest.mark.parametrize(
    ("changed", "kind", "words"),
    [
        ({"ages": [["3", 2], ["5", 0]]}, FindingKind.STALENESS, "sampled by the weights None, whose age is not stated"),
        ({"ages": [["3", 1], ["5", 0], [None, None]]}, FindingKind.STALENESS, "the age of the weights '3' is 1, but 2"),
        ({"ages": [["3", None], ["5", 0], [None, None]]}, FindingKind.STALENESS, "is None, but 2 follows from '5'"),
        (
            {"ages": [["3", 2], ["5", 0], [None, None], ["default", None]]},
            FindingKind.STALENESS,
            "the age of the weights 'default' is None, but 5 follows from '5'",
        ),
        ({"current": "6"}, FindingKind.STALENESS, "the age of the weights '3' is 2, but 3 follows from '6'"),
        ({"age": 1}, FindingKind.STALENESS, "the age of the group is 1, but the episode has a token of age 2"),
        ({"age": None}, FindingKind.STALENESS, "the age of the group is None, but"),
        ({"decision": "kept"}, FindingKind.STALENESS, "with a token of age 2 and a limit of 1, it cannot be 'kept'"),
        ({"limit": 2}, FindingKind.STALENESS, "with a token of age 2 and a limit of 2, it cannot be 'masked'"),
        ({"decision": "dropped"}, FindingKind.STALENESS, "it cannot be 'dropped'"),
        ({"action": "drop", "decision": "kept"}, FindingKind.STALENESS, "with a token of age 4 and a limit of 1"),
        ({"action": "drop", "limit": 4, "decision": "dropped"}, FindingKind.STALENESS, "it cannot be 'dropped'"),
        ({"limit": -1}, FindingKind.FORM, "limit and age must be ints of at least 0, got -1"),
        ({"age": "4"}, FindingKind.FORM, "limit and age must be ints"),
        ({"ages": [["3", 2.5]]}, FindingKind.FORM, "ages must be a list of a version and its age each"),
        ({"ages": None}, FindingKind.FORM, "ages must be a list"),
        ({"ages": [["3", 2], ["3", 0], ["5", 0], [None, None]]}, FindingKind.FORM, "its age each, none twice"),
        (
            {"ages": [["3", 2], ["5", 0], [None, None], ["v4", None]]},
            FindingKind.STALENESS,
            "numbers, but 'v4' is none",
        ),
        ({"current": "9" * 5000}, FindingKind.STALENESS, "versions are ordered as numbers, but '999"),
        ({"action": "burn"}, FindingKind.FORM, "action, decision or current is wrong: 'burn'"),
        ({"decision": None}, FindingKind.FORM, "action, decision or current is wrong"),
    ],
)
def test_any_other_decision_is_found(changed: dict[str, Any], kind: FindingKind, words: str) -> None:
    certificate = verified({**GOOD, **changed})
    assert any(one.kind is kind and words in one.message for one in certificate.findings), certificate.text()


def test_decision_before_the_end_is_found() -> None:
    events: list[bytes] = []
    recorder = Recorder(events.append)
    recorder.append(EventKind.STALENESS, GOOD)
    assert verify_events(events).found[FindingKind.ORDER] == 1


@pytest.mark.parametrize("reason", ["not_needed", "agent_error"])
def test_stopped_episode_has_a_decision_until_it_is_resumed(reason: str) -> None:
    data = {**GOOD, "action": "drop", "decision": "dropped"}
    stopped = verified(data, end_reason=reason)
    assert stopped.tokens.unfinished == 5 and not stopped.tokens.stale
    resumed = verified(data, end_reason=reason, after=EventKind.RESUME)
    assert resumed.proved and resumed.tokens.trained == 5 and not resumed.staleness, resumed.text()
