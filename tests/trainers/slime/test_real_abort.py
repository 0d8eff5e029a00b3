"""When slime aborts, running episodes return within a second, send no further request, and keep their tokens."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from strands_sglang.runs import Episode
from strands_sglang.trainers.slime import slime_rollout
from support.rollout_agent import build, score
from support.trainers.slime_agents import Seen, Slow
from support.trainers.slime_checks import check_sample, checked_step, leaves
from support.trainers.slime_validation import Stage, validate_sample
from support.trainers.slime_wire import Fault, Request
from support.trainers.slime_world import SlimeWorld

pytestmark = [pytest.mark.slime, pytest.mark.engine]

ON_THE_WAY = 0.15
"""Seconds that a request may take from the function under test to the wire, on a busy machine."""
LIMIT = 950  # the model takes 1024 tokens in all
LONG = {"ignore_eos": True}


def request_delays(world: SlimeWorld) -> list[float]:
    """Return how long after slime's abort each late request arrived, in seconds."""
    since = [one.at - world.aborted_at for one in world.wire.generates]
    return [seconds for seconds in since if seconds > ON_THE_WAY]


@pytest.mark.parametrize("branches", ["main", "all"])
@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.timing
def test_abort_while_tools_run(world: SlimeWorld, blocking: bool, branches: str) -> None:
    seen, slow = Seen(), Slow(4.0, blocking)
    generate = seen.around(slime_rollout(slow.build, reward=score, branches=branches))
    prompts = world.prompts(mark=lambda number: {"slow": number >= 2})
    world.configure(generate, "--over-sampling-batch-size", 6, "--prompt-data", prompts, groups=2, samples=2)
    batch = checked_step(world, rollouts=4)
    assert batch.since_abort < 1.0
    assert not request_delays(world)
    assert not any(at > world.aborted_at + ON_THE_WAY for at in slow.calls), "nor is a tool called any more"
    assert {sample.group_index for sample in batch.samples} == {0, 1}
    stopped = [one for one in leaves(seen.results) if one.status.value == "aborted"]
    assert len(stopped) == 8
    for sample in stopped:
        check_sample(sample, partial=True)
        validate_sample(sample, world.args, stage=Stage.RETURNED)
    # One turn was whole when the tool was called: its tokens are kept.
    assert all(sample.response_length > 5 for sample in stopped)


@pytest.mark.parametrize("branches", ["main", "all"])
@pytest.mark.timing
def test_abort_during_turns(world: SlimeWorld, branches: str) -> None:
    seen = Seen()
    generate = seen.around(slime_rollout(build, reward=score, branches=branches), **LONG)
    prompts = world.prompts(mark=lambda number: {"long": number >= 2})
    flags: list[Any] = ["--over-sampling-batch-size", 5, "--prompt-data", prompts, "--rollout-max-response-len", LIMIT]
    world.configure(generate, *flags, groups=2, samples=2)
    batch = checked_step(world, rollouts=4)
    assert batch.since_abort < 1.5
    assert not request_delays(world)
    stopped = [one for one in leaves(seen.results) if one.status.value == "aborted"]
    assert len(stopped) == 6
    answers = {one.key: one for one in world.wire.generates if one.answer is not None}
    for sample in stopped:
        check_sample(sample, partial=True)
        validate_sample(sample, world.args, stage=Stage.RETURNED)
        cut = answers[sample.session_id]
        assert cut.answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert sample.tokens == cut.asked["input_ids"] + cut.sampled and len(cut.sampled) == sample.response_length > 5
        assert sample.rollout_log_probs == cut.logprobs


@pytest.mark.timing
def test_abort_while_the_engine_is_busy(world: SlimeWorld) -> None:
    """A refused request is not retried after the abort."""
    seen = Seen()

    def fault(number: int, request: Request) -> Fault | None:
        unlucky = {call["session"] for call in seen.given if call["metadata"].get("unlucky")}
        return Fault.BUSY if request.key in unlucky else None

    world.wire.fault = fault
    prompts = world.prompts(mark=lambda number: {"unlucky": number >= 2})
    world.configure(
        seen.around(slime_rollout(build, reward=score)),
        *("--over-sampling-batch-size", 4, "--prompt-data", prompts),
        groups=2,
        samples=2,
    )
    batch = checked_step(world, rollouts=4)
    assert Fault.BUSY in {one.fault for one in world.wire.generates}
    assert batch.since_abort < 1.0
    assert not request_delays(world)
    stopped = [one for one in leaves(seen.results) if one.status.value == "aborted"]
    assert len(stopped) == 4
    for sample in stopped:
        check_sample(sample, partial=True)


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.timing
def test_abort_while_rewards_are_computed(world: SlimeWorld, blocking: bool) -> None:
    seen = Seen()

    async def slow_score(episode: Episode) -> float:
        if episode.task.data.get("slow"):
            await asyncio.sleep(4.0)
        return score(episode)

    def waited_for(episode: Episode) -> float:
        if episode.task.data.get("slow"):
            time.sleep(4.0)
        return score(episode)

    prompts = world.prompts(mark=lambda number: {"slow": number >= 2})
    world.configure(
        seen.around(slime_rollout(build, reward=waited_for if blocking else slow_score)),
        *("--over-sampling-batch-size", 4, "--prompt-data", prompts),
        groups=2,
        samples=2,
    )
    batch = checked_step(world, rollouts=4)
    assert batch.since_abort < 1.0
    for sample in leaves(seen.results):
        check_sample(sample, partial=sample.status.value == "aborted")


def test_next_rollout_is_unaffected(world: SlimeWorld) -> None:
    slow = Slow(4.0)
    prompts = world.prompts(mark=lambda number: {"slow": 2 <= number < 6})
    world.configure(
        slime_rollout(slow.build, reward=score),
        *("--over-sampling-batch-size", 6, "--prompt-data", prompts),
        groups=2,
        samples=2,
    )
    world.step(0)
    batch = checked_step(world, rollouts=4, number=1)
    assert not any(sample.remove_sample for sample in batch.samples)
