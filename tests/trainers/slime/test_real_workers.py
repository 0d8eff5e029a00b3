"""slime's own `generate_rollout` with episodes on Ray workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from strands_sglang.trainers.slime import slime_rollout
from support.lab_servers import Routed
from support.rollout_agent import build, score
from support.trainers.slime_agents import Seen, Slow
from support.trainers.slime_checks import check_rescored, check_sample, check_witnessed, checked_step, leaves
from support.trainers.slime_validation import validate_batch
from support.trainers.slime_world import SlimeWorld

pytestmark = [pytest.mark.slime, pytest.mark.engine]

TESTS = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    """Start Ray with workers that can import these modules."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    env = {"env_vars": {"PYTHONPATH": path}}
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1", runtime_env=env)
    yield
    ray.shutdown()


def test_episodes_on_workers(world: SlimeWorld, routed: Routed) -> None:
    args = world.configure(slime_rollout(build, reward=score, workers=2), groups=3)
    for number in range(2):
        before = len(world.wire.generates)
        batch = checked_step(world, rollouts=12, number=number)
        validate_batch(batch.groups, args)
        made = world.wire.generates[before:]
        assert sum(check_witnessed(batch.samples, made).values()) == sum(len(one.sampled) for one in made)
        assert {one.key for one in made} == {sample.session_id for sample in batch.samples}
    check_rescored(batch.samples, routed.workers[0].url)


@pytest.mark.parametrize("branches", ["main", "all"])
@pytest.mark.timing
def test_episodes_paused_on_workers_are_resumed(world: SlimeWorld, branches: str) -> None:
    seen = Seen()
    generate = seen.around(slime_rollout(Slow(3.0).build, reward=score, workers=2, branches=branches))
    prompts = world.prompts(mark=lambda number: {"slow": number in (2, 3)})
    flags: list[Any] = ["--partial-rollout", "--over-sampling-batch-size", 4, "--prompt-data", prompts]
    args = world.configure(generate, *flags, groups=2, samples=2)
    batch = checked_step(world, rollouts=4, number=0)
    assert batch.since_abort < 2.0
    buffered = {one.index: one for one in leaves(world.source.buffer)}
    assert set(buffered) == set(range(4, 8))
    before = {index: list(one.tokens) for index, one in buffered.items()}
    for one in buffered.values():
        check_sample(one, partial=True)
        assert one.status.value == "aborted" and one.response_length > 5
    args.over_sampling_batch_size = 2  # just what is in the buffer
    batch = checked_step(world, rollouts=4, number=1)
    check_witnessed(batch.samples, world.wire.generates)
    for sample in batch.samples:
        assert sample.tokens[: len(before[sample.index])] == before[sample.index]
        assert not sample.remove_sample and sample.status.value != "aborted", sample.metadata["strands_sglang"]
