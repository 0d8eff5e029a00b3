"""What slime's trainer makes of sampled tokens is laid over the turns that they are of. slime has stand-ins."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from strands_sglang.ledger.trainer_values import TRAINER_FILE, TrainerFile
from strands_sglang.proof.finding import FindingKind
from strands_sglang.proof.verify import verify
from strands_sglang.tokens import Turn
from strands_sglang.trainers.rows import Branches
from strands_sglang.trainers.slime import slime_trainer_values
from strands_sglang.trainers.slime.samples import samples_of
from support.ledger.episodes import Recorder, written_run
from support.trainers.grown_episodes import episode_of, text_of
from support.trainers.slime_mirror import Sample

NAMES = ("advantage", "entropy", "logprob", "loss_mask")


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The process of the trainer: the ranks that Megatron tells, and slime's gathering over context parallel ranks."""
    told = SimpleNamespace(tensor=0, context=0, gathered=0)

    def all_gather_with_cp(part: Any, total_length: int, response_length: int) -> Any:
        told.gathered += 1
        assert len(part) <= response_length < total_length
        return np.concatenate([part, np.full(response_length - len(part), 0.25)])

    core: Any = ModuleType("megatron.core")
    core.mpu = SimpleNamespace(
        get_tensor_model_parallel_rank=lambda: told.tensor, get_context_parallel_rank=lambda: told.context
    )
    utils: Any = ModuleType("slime.backends.megatron_utils.cp_utils")
    utils.all_gather_with_cp = all_gather_with_cp
    for module in (core, utils):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return told


def two_turns(recorder: Recorder) -> Turn:
    first = recorder.call(None, context=[1, 2], sampled=[3, 4, 5])
    return recorder.call(first, context=[6], sampled=[7, 8])


def forked(recorder: Recorder) -> Turn:
    first = recorder.call(None, context=[1, 2], sampled=[3, 4, 5])
    recorder.call(first, context=[6], sampled=[7])
    return recorder.call(first, context=[9], sampled=[10])


def recorded(
    directory: Path, *make: Callable[[Recorder], Any], branches: Branches = Branches.MAIN, **options: Any
) -> list[Sample]:
    """Write a run as slime_rollout does, and return the samples of its episodes."""
    samples: list[Sample] = []
    with written_run(directory, sealed=False, created=1.0) as writer:
        for index, made in enumerate(make):
            recorder = Recorder(writer.write, task="g0", sample=index)
            made(recorder)
            recorder.end()
            recorder.tree.main = max(turn.id for turn in recorder.tree.branches())
            sample = Sample(index=index, group_index=0)
            samples += samples_of(sample, episode_of(recorder.tree), branches=branches, decode=text_of, **options)
    return samples


def batch(samples: Sequence[Sample], *, without: Sequence[str] = (), cut: int = 0) -> dict[str, Any]:
    """Return the data of a process of the trainer, with advantages 0.5, 1.5 and so on, and logprobs of the engine."""
    masks = [np.array(one.loss_mask, np.int32) for one in samples]
    data = {
        "tokens": [np.array(one.tokens, np.int64) for one in samples],
        "total_lengths": [len(one.tokens) for one in samples],
        "response_lengths": [one.response_length for one in samples],
        "sample_indices": [one.index for one in samples],
        "loss_masks": masks,
        "advantages": [np.full(len(mask) - cut, at + 0.5, np.float32) for at, mask in enumerate(masks)],
        "log_probs": [np.array(one.rollout_log_probs, np.float32)[: len(one.tokens) - cut] for one in samples],
        "entropy": [np.arange(len(mask), dtype=np.float32) / 8 for mask in masks],
    }
    return {name: value for name, value in data.items() if name not in without}


def test_values_are_laid_over_the_turns(tmp_path: Path, ranks: Any) -> None:
    samples = recorded(tmp_path / "20260101-1", two_turns, two_turns)
    slime_trainer_values(tmp_path)(None, 3, batch(samples))
    for index, id in enumerate(("g0/0", "g0/1")):
        found = TrainerFile(tmp_path / "20260101-1").of(id)
        assert sorted(found) == sorted(NAMES)
        assert found["advantage"] == {0: index + 0.5, 1: index + 0.5} and found["loss_mask"] == {0: 1.0, 1: 1.0}
        assert found["entropy"] == {0: [0.0, 0.125, 0.25], 1: [0.5, 0.625]}, "the response has a token of the context"
        engine = samples[index].rollout_log_probs
        assert engine is not None and found["logprob"][1] == pytest.approx(engine[4:], rel=1e-6)
    certificate = verify(tmp_path / "20260101-1")
    assert [one.kind for one in certificate.findings] == [FindingKind.UNSEALED]
    assert certificate.trainer_values == 2 * 4 * 5


def test_only_what_slime_has_computed_is_written(tmp_path: Path, ranks: Any) -> None:
    data = batch(recorded(tmp_path, two_turns), without=("log_probs", "entropy"))
    slime_trainer_values(tmp_path)(None, 0, data)  # the run itself is named
    assert sorted(TrainerFile(tmp_path).of("g0/0")) == ["advantage", "loss_mask"]


def test_one_process_writes_and_all_of_them_gather(tmp_path: Path, ranks: Any) -> None:
    samples = recorded(tmp_path, two_turns)
    write = slime_trainer_values(tmp_path)
    write(None, 0, batch(samples, without=("advantages",)))  # an earlier stage of the pipeline
    ranks.tensor = 1
    write(None, 0, batch(samples))
    assert ranks.gathered == 0
    ranks.tensor, ranks.context = 0, 1
    write(None, 0, batch(samples))
    assert ranks.gathered == 3 and not (tmp_path / TRAINER_FILE).exists()
    ranks.context = 0
    write(None, 0, batch(samples, cut=2))
    assert TrainerFile(tmp_path).of("g0/0")["advantage"] == {0: 0.5, 1: 0.25}


def test_a_cut_response_and_one_without_prompt(tmp_path: Path, ranks: Any) -> None:
    def no_prompt(recorder: Recorder) -> None:
        recorder.call(None, context=[], sampled=[3, 4])

    samples = recorded(tmp_path, two_turns, no_prompt, response_limit=5)
    assert [len(one.loss_mask or ()) for one in samples] == [5, 1]
    slime_trainer_values(tmp_path)(None, 0, batch(samples))
    assert TrainerFile(tmp_path).of("g0/0")["advantage"] == {0: 0.5, 1: [0.5, None]}
    assert TrainerFile(tmp_path).of("g0/1")["advantage"] == {0: [None, 1.5]}
    assert [one.kind for one in verify(tmp_path).findings] == [FindingKind.UNSEALED]


def test_a_turn_of_several_samples_is_that_of_the_one_that_trains_it(tmp_path: Path, ranks: Any) -> None:
    samples = recorded(tmp_path, forked, branches=Branches.ALL)
    assert len(samples) == 2 and sum(map(sum, (one.loss_mask or [] for one in samples))) == 5
    slime_trainer_values(tmp_path)(None, 0, batch(samples))
    found = TrainerFile(tmp_path).of("g0/0")
    assert found["loss_mask"] == {0: 1.0, 1: 1.0, 2: 1.0} and found["advantage"] == {0: 1.5, 1: 1.5, 2: 0.5}


def test_a_sample_that_ran_again_is_found_by_its_tokens(tmp_path: Path, ranks: Any) -> None:
    with written_run(tmp_path, sealed=False) as writer:
        for task, tokens in (("g0", [3, 4]), ("g0.1", [3, 5]), ("eval.3", [3, 4])):
            recorder = Recorder(writer.write, task=task, sample=7)
            recorder.call(None, context=[1, 2], sampled=tokens)
            recorder.end()
    sample = Sample(index=7, tokens=[1, 2, 3, 4], response_length=2, loss_mask=[1, 1], rollout_log_probs=[-1.0, -1.0])
    slime_trainer_values(tmp_path)(None, 0, batch([sample]))
    assert {id: bool(TrainerFile(tmp_path).of(id)) for id in ("g0/7", "g0.1/7", "eval.3/7")} == {
        "g0/7": True, "g0.1/7": False, "eval.3/7": False,
    }  # fmt: skip


def test_the_run_that_began_last_is_followed(tmp_path: Path, ranks: Any) -> None:
    write = slime_trainer_values(tmp_path)
    for created, name in ((1.0, "20260101-9"), (2.0, "20260102-1")):
        with written_run(tmp_path / name, sealed=False, created=created) as writer:
            for index in range(2):
                recorder = Recorder(writer.write, task="g0", sample=index)
                recorder.call(None, context=[1], sampled=[2 + index])
                recorder.end()
    late = Sample(index=1, tokens=[1, 3], response_length=1, loss_mask=[1], rollout_log_probs=[-1.0])
    write(None, 0, batch([late]))
    assert (tmp_path / "20260102-1" / TRAINER_FILE).exists() and not (tmp_path / "20260101-9" / TRAINER_FILE).exists()


def test_nothing_ends_a_training(tmp_path: Path, ranks: Any, caplog: pytest.LogCaptureFixture) -> None:
    sample = Sample(index=0, tokens=[1, 2], response_length=1, loss_mask=[1], rollout_log_probs=[-1.0])
    write = slime_trainer_values(tmp_path / "runs")
    with caplog.at_level(logging.WARNING):
        write(None, 5, batch([sample]))
        assert "rollout=<5>" in caplog.text and "has no run" in str(caplog.records[0].exc_info)
        recorded(tmp_path / "runs" / "a", two_turns)
        write(None, 6, batch([sample]))
    assert "samples=<1> | trained samples are not in the ledger" in caplog.text
