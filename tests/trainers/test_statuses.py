"""Every end reason has one status, and every adapter uses it."""

from __future__ import annotations

import pytest

from strands_sglang.runs.end_reason import EndReason
from strands_sglang.trainers.exports import padded_batch
from strands_sglang.trainers.rows import plain_rows
from strands_sglang.trainers.slime.samples import samples_of
from strands_sglang.trainers.statuses import STATUS_BY_END, TrainerStatus, is_trainable, status_of
from strands_sglang.trainers.trl.batch import Completion
from support.token_trees import forked
from support.trainers.grown_episodes import episode_of, text_of
from support.trainers.skyrl_mirror import adapter as skyrl
from support.trainers.slime_mirror import Sample, Status


def test_every_end_reason_has_a_status() -> None:
    assert set(STATUS_BY_END) == set(EndReason)
    assert set(STATUS_BY_END.values()) == set(TrainerStatus)
    assert all(STATUS_BY_END[ended] is TrainerStatus.FAILED for ended in EndReason if ended.failed)
    assert all(STATUS_BY_END[ended] is TrainerStatus.COMPLETED for ended in EndReason if ended.complete)
    assert status_of(None) is TrainerStatus.FAILED and not is_trainable(None, scored=False)


def test_stop_reasons() -> None:
    reasons = {ended: STATUS_BY_END[ended].stop_reason for ended in EndReason}
    assert reasons[EndReason.ANSWERED] == reasons[EndReason.STOPPED] == reasons[EndReason.FAILED_CALL] == "stop"
    assert reasons[EndReason.CONTEXT_LENGTH] == reasons[EndReason.TURN_LIMIT] == reasons[EndReason.TIMEOUT] == "length"
    assert reasons[EndReason.ENGINE_ERROR] == reasons[EndReason.NOT_NEEDED] == status_of(None).stop_reason == "abort"
    assert {one.slime_name for one in TrainerStatus} == set(Status.__members__) - {"PENDING"}


@pytest.mark.parametrize("ended", list(EndReason))
def test_all_adapters_use_the_same_status(ended: EndReason) -> None:
    tree, turns = forked()
    tree.main = turns["e"].id
    episode, status = episode_of(tree, ended, 0.5), STATUS_BY_END[ended]
    [sample] = samples_of(Sample(), episode, decode=text_of)
    assert sample.status.name == status.slime_name and sample.remove_sample is not status.trained
    rows = plain_rows(episode, pad_id=0, scored=True)
    assert any(rows[0].loss_mask) is status.trained is is_trainable(episode, scored=True)
    assert (Completion.of(episode).masked is None) is status.trained
    output = skyrl.generator_output([(episode, rows)], skyrl.OutputOptions(), trajectory_ids=None)
    assert output["stop_reasons"] == [status.stop_reason]
    unscored = padded_batch([episode_of(tree, ended, None)], pad_token_id=0, train_unscored=True)
    assert bool(unscored["loss_mask"].any()) is status.trained
