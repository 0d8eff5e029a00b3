"""slime's own `generate_rollout` with faults: busy engine, dropped connections, no engine, agent and reward errors."""

from __future__ import annotations

from typing import Any

import pytest

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.runs import Episode, Task
from strands_sglang.trainers.slime import slime_rollout
from support.rollout_agent import build, score
from support.trainers.slime_agents import Seen
from support.trainers.slime_checks import check_witnessed, checked_step, statuses
from support.trainers.slime_validation import validate_sample
from support.trainers.slime_wire import Fault, Request
from support.trainers.slime_world import SlimeWorld

pytestmark = [pytest.mark.slime, pytest.mark.engine]


def client_with_short_retries(world: SlimeWorld, retries: int = 4) -> SGLangClient:
    """Return a client with few retries and short delays."""
    return SGLangClient(world.wire.url, retry_delay=0.05, max_retry_delay=0.2, max_retries=retries)


def test_failed_requests_are_retried(world: SlimeWorld) -> None:
    def fault(number: int, request: Request) -> Fault | None:
        return {1: Fault.BUSY, 3: Fault.DROPPED, 4: Fault.LOST, 6: Fault.BROKEN}.get(number % 8)

    world.wire.fault = fault
    world.configure(slime_rollout(build, reward=score, client=client_with_short_retries(world, 50)))
    batch = checked_step(world, rollouts=16)
    check_witnessed(batch.samples, world.wire.generates)
    assert set(statuses(batch.samples)) <= {"completed", "truncated"}
    assert not any(sample.remove_sample for sample in batch.samples)
    assert {one.fault for one in world.wire.generates} == {None, *Fault}


@pytest.mark.parametrize("branches", ["main", "all"])
def test_unreachable_engine(world: SlimeWorld, branches: str) -> None:
    seen = Seen()
    world.wire.fault = lambda number, request: Fault.DROPPED
    generate = slime_rollout(build, reward=score, branches=branches, client=client_with_short_retries(world))
    args = world.configure(seen.around(generate), groups=2, samples=2)
    batch = checked_step(world, rollouts=4)
    validate_sample(batch.groups, args)
    assert not seen.raised and len(world.wire.generates) > 4
    assert all(sample.remove_sample and sample.reward == 0.0 for sample in batch.samples)
    assert statuses(batch.samples) == {"failed": 4}
    assert not any(any(mask) for mask in batch.train["loss_masks"])


def test_engine_fails_during_episodes(world: SlimeWorld) -> None:
    """The engine fails in the second turn of some episodes; the others are unaffected."""
    lost: set[str] = set()

    def fault(number: int, request: Request) -> Fault | None:
        turns = [one for one in world.wire.generates if one.key == request.key]
        if turns and (request.key in lost or len(lost) < 3):
            lost.add(str(request.key))
            return Fault.BROKEN
        return None

    world.wire.fault = fault
    world.configure(slime_rollout(build, reward=score, client=client_with_short_retries(world)), groups=2)
    batch = checked_step(world, rollouts=8)
    broken = [sample for sample in batch.samples if sample.session_id in lost]
    assert len(broken) == 3
    assert all(sample.remove_sample and sample.status.value == "failed" for sample in broken)
    assert all(sample.reward == 0.0 for sample in broken)
    whole = [sample for sample in batch.samples if sample.session_id not in lost]
    assert not any(sample.remove_sample for sample in whole)
    check_witnessed(whole, world.wire.generates)


def sometimes_breaks(given: Task, model: SGLangModel) -> Any:
    if given.data.get("breaks") == "build":
        raise RuntimeError("no agent today")
    if given.data.get("breaks") == "agent":

        async def work() -> str:
            await build(given, model).invoke_async(given.prompt)
            raise RuntimeError("out of ideas")

        return work
    return build(given, model)


def test_agent_errors(world: SlimeWorld) -> None:
    seen = Seen()
    prompts = world.prompts(mark=lambda number: {"breaks": ("build", "agent", "")[number % 3]})
    generate = seen.around(slime_rollout(sometimes_breaks, reward=score))
    world.configure(generate, "--prompt-data", prompts, groups=3, samples=2)
    batch = checked_step(world, rollouts=6)
    assert not seen.raised
    assert statuses(batch.samples[:4]) == {"failed": 4}
    assert all(sample.remove_sample for sample in batch.samples[:4])
    assert not any(sample.remove_sample for sample in batch.samples[4:])
    assert "no agent today" in str(batch.samples[0].metadata) and "out of ideas" in str(batch.samples[2].metadata)


def test_reward_errors(world: SlimeWorld) -> None:
    def judged(episode: Episode) -> float:
        if episode.task.data.get("breaks"):
            raise RuntimeError("the judge is out")
        return score(episode)

    seen = Seen()
    prompts = world.prompts(mark=lambda number: {"breaks": number % 2})
    world.configure(seen.around(slime_rollout(build, reward=judged)), "--prompt-data", prompts, groups=2, samples=2)
    batch = checked_step(world, rollouts=4)
    assert not seen.raised
    assert [sample.remove_sample for sample in batch.samples] == [False, False, True, True]
    assert batch.train["raw_reward"][2:] == [0.0, 0.0]
