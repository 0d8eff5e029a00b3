"""End reasons of episodes."""

from __future__ import annotations

from strands_sglang.runs.end_reason import EndReason


def test_complete_and_failed_end_reasons() -> None:
    assert {ended for ended in EndReason if ended.complete} == {EndReason.ANSWERED, EndReason.STOPPED}
    assert {ended for ended in EndReason if ended.failed} == {EndReason.ENGINE_ERROR, EndReason.AGENT_ERROR}
    assert not any(ended.complete and ended.failed for ended in EndReason)


def test_end_reasons_are_stored_by_name() -> None:
    assert [EndReason(ended.value) for ended in EndReason] == list(EndReason)
    assert EndReason("turn_limit") is EndReason.TURN_LIMIT
    assert all(ended.value == ended.name.lower() for ended in EndReason)
