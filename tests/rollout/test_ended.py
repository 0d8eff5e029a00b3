"""Why episodes end."""

from __future__ import annotations

from strands_sglang.rollout.ended import Ended


def test_an_end_is_complete_or_cut_or_failed() -> None:
    assert {ended for ended in Ended if ended.complete} == {Ended.ANSWERED, Ended.STOPPED}
    assert {ended for ended in Ended if ended.failed} == {Ended.ENGINE, Ended.AGENT}
    assert not any(ended.complete and ended.failed for ended in Ended)


def test_ends_are_written_as_words() -> None:
    assert [Ended(ended.value) for ended in Ended] == list(Ended)
    assert Ended("turn_limit") is Ended.TURN_LIMIT
    assert all(ended.value == ended.name.lower() for ended in Ended)
