"""slime's fully asynchronous rollout: a worker with its own event loop, and weight updates while episodes run."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from strands_sglang import SGLangClient
from strands_sglang.engine import PauseMode
from strands_sglang.trainers.slime import slime_rollout
from support.lab_servers import Routed
from support.rollout_agent import TOKENIZER, WAYS, build, score
from support.trainers.slime_agents import Seen, second_thoughts
from support.trainers.slime_checks import check_sample, check_witnessed, checked_step, leaves
from support.trainers.slime_validation import validate_batch
from support.trainers.slime_world import SlimeWorld

pytestmark = [pytest.mark.slime, pytest.mark.engine]

ASYNC = ["--rollout-function-path", "slime.rollout.fully_async_rollout.generate_rollout_fully_async"]
ASYNC += ["--sglang-server-concurrency", "4"]


def update_under_way(routed: Routed, version: str) -> None:
    """Update weights while episodes run: running requests are aborted, as by slime's `pause_generation`."""

    async def update() -> None:
        async with SGLangClient(routed.url) as client:
            results = await client.control.swap_weights(TOKENIZER, version=version, mode=PauseMode.ABORT)
            assert all(result.ok for result in results), results

    asyncio.run(update())


@pytest.fixture(autouse=True)
def tools_take_time() -> Any:
    WAYS.tool_seconds = 0.1
    yield
    WAYS.tool_seconds = 0.0


@pytest.mark.parametrize("branches", ["main", "all"])
def test_rollouts_over_weight_updates(world: SlimeWorld, routed: Routed, branches: str) -> None:
    seen = Seen()
    agent = build if branches == "main" else second_thoughts
    flags: list[Any] = [*ASYNC]
    if branches == "all":
        flags += ["--custom-reward-post-process-path", "strands_sglang.trainers.slime.grpo_by_group"]
    args = world.configure(
        seen.around(slime_rollout(agent, reward=score, branches=branches)), *flags, groups=4, samples=2
    )
    samples: list[Any] = []
    indices: list[int] = []
    for number in range(3):
        batch = checked_step(world, rollouts=8, number=number)
        validate_batch(batch.groups, args)
        samples += batch.samples
        indices += {sample.index for sample in batch.samples}
        update_under_way(routed, f"async-{number}")
    assert not seen.raised
    assert len(indices) == len(set(indices)) == 24, "no rollout is trained twice"
    check_witnessed(samples, world.wire.generates)
    assert all(sample.status.value in ("completed", "truncated") for sample in samples)
    spanning = [sample for sample in samples if len(set(sample.weight_versions)) > 1]
    assert spanning, "episodes continue over a weight update"


@pytest.mark.parametrize("branches", ["main", "all"])
@pytest.mark.timing
def test_aborted_groups_are_finished_later(world: SlimeWorld, branches: str) -> None:
    """Groups with an aborted rollout (a sample or a list) go back into slime's buffer and are finished later."""
    seen = Seen()
    WAYS.tool_seconds = 0.5
    agent = build if branches == "main" else second_thoughts
    flags: list[Any] = [*ASYNC]
    if branches == "all":
        flags += ["--custom-reward-post-process-path", "strands_sglang.trainers.slime.grpo_by_group"]
    world.configure(seen.around(slime_rollout(agent, reward=score, branches=branches)), *flags, groups=2, samples=2)
    world.step(0)
    take, world.source.get_samples = world.source.get_samples, lambda count: []
    world.state.aborted = True
    began = time.monotonic()
    while len(seen.results) + len(seen.raised) < len(seen.given):
        assert time.monotonic() - began < 3.0, "episodes do not look at `aborted`"
        time.sleep(0.02)
    time.sleep(0.2)
    put_back = leaves(world.source.buffer)
    assert any(one.status.value == "aborted" for one in put_back)
    for one in put_back:
        check_sample(one, partial=one.status.value == "aborted")
    before = {one.index: list(one.tokens) for one in put_back if one.status.value == "aborted" and one.response}
    world.state.aborted = False
    world.source.get_samples = take
    WAYS.tool_seconds = 0.0
    assert before
    for number in range(1, 15):  # in the order in which groups happen to be done
        batch = checked_step(world, rollouts=4, number=number)
        for sample in reversed(batch.samples):  # the main branch is the first of a rollout
            tokens = before.get(sample.index)
            assert tokens is None or branches == "all" or sample.tokens[: len(tokens)] == tokens
        for sample in batch.samples:
            before.pop(sample.index, None)
        if not before:
            break
    assert not seen.raised
    assert not before, "all groups that were put back are finished"
