"""Kept sets in samples: in the form of the trainer, and only if the trainer renormalises over them."""

from __future__ import annotations

import logging
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from strands_sglang.errors import ConfigurationError
from strands_sglang.tokens import KeptSets
from strands_sglang.trainers.rows import rows
from strands_sglang.trainers.slime import kept_sets, miles_rollout
from strands_sglang.trainers.slime.kept_sets import KeptSetsForm, engine_sampling, warn_if_lost, write_kept_sets
from strands_sglang.trainers.slime.samples import samples_of
from support.rollout.scripts import PromptEngine, steps
from support.trainers.grown_episodes import episode_of, grown, text_of
from support.trainers.slime_mirror import Sample, State
from trainers.slime.test_generate import SAMPLING, arguments, build, score
from trainers.slime.test_miles import miles_input


class RolloutSamplingMask:
    """Stands for the class of Miles: ids and offsets, with at least one token in every set."""

    def __init__(self, ids: list[int], offsets: list[int]) -> None:
        assert offsets[0] == 0 and offsets[-1] == len(ids) and (np.diff(offsets) > 0).all()
        self.ids, self.offsets = ids, offsets


class MilesSample(SimpleNamespace):
    """A sample of a version of Miles that replays sets."""


def miles_sample(**changed: Any) -> Any:
    """Return a sample with the fields of Miles: one field for the sets, none of slime's."""
    fields = {name: value for name, value in vars(Sample()).items() if "top_p" not in name and name != "session_id"}
    return MilesSample(**{**fields, "routing_key": None, "rollout_sampling_mask": None, **changed})


def args_of(**changed: Any) -> Any:
    return SimpleNamespace(**{"rollout_top_p": 1.0, "rollout_top_k": -1, **changed})


@pytest.mark.parametrize(
    ("sample", "args", "form"),
    [
        (Sample(), args_of(), KeptSetsForm.NONE),
        (Sample(), args_of(rollout_top_p=0.8), KeptSetsForm.SLIME),
        (Sample(), args_of(rollout_top_k=20), KeptSetsForm.NONE),
        (miles_sample(), args_of(), KeptSetsForm.NONE),
        (miles_sample(), args_of(rollout_top_p=0.8), KeptSetsForm.MILES),
        (miles_sample(), args_of(rollout_top_k=20), KeptSetsForm.MILES),
        (SimpleNamespace(), args_of(rollout_top_p=0.8), KeptSetsForm.NONE),
        (Sample(), SimpleNamespace(), KeptSetsForm.NONE),
    ],
)
def test_form_of_a_trainer(sample: Any, args: Any, form: KeptSetsForm) -> None:
    assert KeptSetsForm.of(args, sample) is form and bool(form) is (form is not KeptSetsForm.NONE)


def test_tokens_without_a_set_are_empty_for_slime_and_alone_for_miles() -> None:
    kept = KeptSets.of([[7, 8], [], [9]], [-0.5, 0.0, 0.0])
    sample, miles = Sample(), miles_sample()
    write_kept_sets(sample, kept, [7, 5, 9], KeptSetsForm.SLIME)
    write_kept_sets(miles, kept, [7, 5, 9], KeptSetsForm.MILES)
    assert sample.rollout_top_p_token_ids.tolist() == [7, 8, 9]
    assert sample.rollout_top_p_token_offsets.tolist() == [0, 2, 2, 3]
    assert (miles.rollout_sampling_mask.ids, miles.rollout_sampling_mask.offsets) == ([7, 8, 5, 9], [0, 2, 3, 4])
    for one in (sample, miles):  # filled again, without truncation
        write_kept_sets(one, kept, [7, 5, 9], KeptSetsForm.NONE)
    assert sample.rollout_top_p_token_ids is None is sample.rollout_top_p_token_offsets
    assert miles.rollout_sampling_mask is None


def test_logprobs_belong_to_the_distribution_of_the_trainer() -> None:
    """Without the sets, logprobs over the sets would be compared with logprobs over the vocabulary."""
    tree = next(tree for tree in (grown(random.Random(seed), kept=True) for seed in range(99)) if len(tree.turns) == 3)
    episode = episode_of(tree)
    row = rows(episode)[0]
    assert row.kept is not None
    for sample, form in ((Sample(), KeptSetsForm.SLIME), (miles_sample(), KeptSetsForm.MILES)):
        (made,) = samples_of(sample, episode, decode=text_of, kept_sets=form)
        assert made.rollout_log_probs == row.kept.logprobs.tolist() and not made.remove_sample
    (made,) = samples_of(Sample(), episode, decode=text_of)
    assert made.rollout_log_probs == row.logprobs.tolist() and made.rollout_top_p_token_ids is None


async def test_miles_gets_its_own_object() -> None:
    engine = PromptEngine(steps(2))
    generate = miles_rollout(build, reward=score, client=engine, tokenizer=engine.tokenizer)
    args = arguments()
    args.rollout_top_p = 0.8
    sampling = {**SAMPLING, "top_p": 0.8}
    done = (await generate(miles_input(State(), args=args, sample=miles_sample(), sampling_params=sampling))).samples
    assert not done.remove_sample and len(done.rollout_sampling_mask.offsets) == done.response_length + 1
    response = done.tokens[-done.response_length :]
    for at, (token, trained) in enumerate(zip(response, done.loss_mask, strict=True)):
        start, end = done.rollout_sampling_mask.offsets[at : at + 2]
        assert token in done.rollout_sampling_mask.ids[start:end] and (trained or end - start == 1)


def test_an_unknown_version_of_miles_is_refused() -> None:
    sample = SimpleNamespace(rollout_sampling_mask=None)
    with pytest.raises(ConfigurationError, match="no RolloutSamplingMask"):
        write_kept_sets(sample, None, [1], KeptSetsForm.MILES)


def test_truncation_that_no_trainer_knows_of_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_sets, "_logged", set())
    with caplog.at_level(logging.WARNING):
        warn_if_lost(KeptSetsForm.SLIME, {"top_p": 0.8})
        warn_if_lost(KeptSetsForm.NONE, {"top_p": 1.0, "top_k": -1})
        assert not caplog.records
        for _ in range(3):
            warn_if_lost(KeptSetsForm.NONE, {"top_p": 1.0, "top_k": 20})
    (record,) = caplog.records
    assert "top_k=<20>" in record.getMessage() and "--rollout-top-p is not 1" in record.getMessage()


def test_only_slimes_own_request_is_dropped() -> None:
    own = {"temperature": 1.0, "custom_params": {"return_top_p_token_ids": True}}
    assert engine_sampling(own) == {"temperature": 1.0} and "custom_params" in own
    users = {"custom_params": {"return_top_p_token_ids": True, "thinking_budget": 9}}
    assert engine_sampling(users) == users
