"""The values of slime's own trainer code are laid over the tokens of a ledger. Needs slime, but no engine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strands_sglang.ledger.trainer_values import TrainerFile
from strands_sglang.proof.finding import FindingKind
from strands_sglang.proof.verify import verify
from strands_sglang.tokens import Turn
from strands_sglang.trainers import slime as ours
from strands_sglang.trainers.rows import Branches
from strands_sglang.trainers.slime.samples import samples_of
from support.ledger.episodes import Recorder, written_run
from support.rollout_agent import build
from support.trainers.grown_episodes import episode_of, text_of
from support.trainers.slime_world import SlimeWorld, slime, slime_trainer

pytestmark = [pytest.mark.slime]

GROUPS, SAMPLES = 2, 3


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SlimeWorld]:
    with SlimeWorld("http://127.0.0.1:9", tmp_path) as made:
        yield made


def recorded(directory: Path, branches: Branches) -> list[Any]:
    """Write a run with episodes of one to three turns, some with a fork, and return their samples."""
    rng = random.Random(branches.value)
    samples: list[Any] = []
    with written_run(directory, sealed=False) as writer:
        for index in range(GROUPS * SAMPLES):
            recorder = Recorder(writer.write, task=f"g{index // SAMPLES}", sample=index)
            turn: Turn | None = None
            for number in range(1 + index % 3):
                parent = recorder.tree[0] if number == 2 and index % 2 else turn
                sampled = [rng.randrange(1000) for _ in range(rng.randrange(1, 6))]
                turn = recorder.call(parent, context=[7, index, number], sampled=sampled)
            recorder.end()
            recorder.tree.main = len(recorder.tree) - 1
            sample = slime("utils.types").Sample(index=index, group_index=index // SAMPLES)
            episode = episode_of(recorder.tree, reward=float(index % 2))
            samples += samples_of(sample, episode, branches=branches, decode=text_of)
    return samples


@pytest.mark.parametrize("branches", list(Branches))
def test_values_of_slimes_trainer(
    world: SlimeWorld, tmp_path: Path, branches: Branches, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = ours.slime_trainer_values(tmp_path / "ledgers")
    flags = ["--custom-reward-post-process-path", "strands_sglang.trainers.slime.grpo_by_group"]
    flags += ["--rollout-data-postprocess-path", world.path(hook)]
    args = world.configure(ours.slime_rollout(build), *flags, groups=GROUPS, samples=SAMPLES, context_parallel_size=1)
    directory = tmp_path / "ledgers" / "20260101-1"
    samples = recorded(directory, branches)
    manager = world.manager()
    train = manager._convert_samples_to_train_data(samples)
    with world.in_memory():
        boxes = manager._split_train_data_by_dp(train)
    loss = slime_trainer("loss")
    monkeypatch.setattr(slime("utils.data"), "ray", SimpleNamespace(get=lambda value: value))
    load = slime("utils.misc").load_function
    advantages: dict[int, float] = {}
    for rank in range(len(boxes)):
        data = slime("utils.data").process_rollout_data(args, boxes, rank, len(boxes))
        data["log_probs"] = [logprobs - 0.125 for logprobs in data["rollout_log_probs"]]  # in place of a forward pass
        loss.compute_advantages_and_returns(args, data)
        advantages |= {
            index: float(values[0]) for index, values in zip(data["sample_indices"], data["advantages"], strict=True)
        }
        load(args.rollout_data_postprocess_path)(args, 0, data)
    assert len(advantages) == GROUPS * SAMPLES and len({round(one, 3) for one in advantages.values()}) > 2
    file, trained = TrainerFile(directory), 0
    for index, advantage in advantages.items():
        found = file.of(f"g{index // SAMPLES}/{index}")
        assert sorted(found) == ["advantage", "logprob", "loss_mask"]
        assert list(found["advantage"].values()) == [pytest.approx(advantage, abs=1e-6)] * len(found["advantage"])
        trained += sum(found["loss_mask"][turn] == 1 for turn in found["loss_mask"])
    assert trained == {Branches.MAIN: 11, Branches.ALL: 12}[branches]
    certificate = verify(directory)
    assert [one.kind for one in certificate.findings] == [FindingKind.UNSEALED]


def test_slimes_trainer_calls_it_before_it_trains() -> None:
    package = Path(slime("utils.misc").__file__).parents[1]
    actor = (package / "backends" / "megatron_utils" / "actor.py").read_text()
    computed = actor.index("compute_advantages_and_returns(self.args, rollout_data)\n\n")
    called = actor.index("self.rollout_data_postprocess(self.args, rollout_id, rollout_data)")
    assert computed < called < actor.index('with timer("actor_train")')
