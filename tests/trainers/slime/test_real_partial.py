"""slime's `--partial-rollout`: paused episodes go through its buffer and are finished with new weights."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.proof.finding import Verdict
from strands_sglang.proof.verify import verify
from strands_sglang.runs import Task
from strands_sglang.trainers.slime import slime_rollout
from support.lab_servers import Routed
from support.rollout_agent import TOKENIZER, build, score
from support.trainers.slime_agents import Seen, Slow, second_thoughts
from support.trainers.slime_checks import check_sample, check_witnessed, checked_step, leaves
from support.trainers.slime_validation import validate_batch
from support.trainers.slime_wire import Request
from support.trainers.slime_world import SlimeWorld

pytestmark = [pytest.mark.slime, pytest.mark.engine]

LIMIT = 950  # the model takes 1024 tokens in all
LONG = {"ignore_eos": True}


def new_weights(routed: Routed, version: str) -> None:
    """Update the weights of all workers, as slime does between rollouts; they are the same under a new name."""

    async def update() -> None:
        async with SGLangClient(routed.url) as client:
            results = await client.control.swap_weights(TOKENIZER, version=version)
            assert all(result.ok for result in results), results

    asyncio.run(update())


def have_sampled(routed: Routed, turns: int, tokens: int) -> bool:
    """Return whether so many turns run on the engine and have sampled so many tokens, which this waits for."""

    def answer(url: str, body: dict[str, Any] | None = None) -> Any:
        data, headers = (None if body is None else json.dumps(body).encode()), {"Content-Type": "application/json"}
        return json.load(urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60))

    loads = [load for one in routed.workers for load in answer(f"{one.url}/v1/loads")["loads"]]
    if sum(load["num_running_reqs"] for load in loads) < turns:
        return False
    for worker in routed.workers:  # each step of a worker samples one token of every turn it runs
        sampling = {"max_new_tokens": tokens, "ignore_eos": True}
        answer(f"{worker.url}/generate", {"input_ids": [5], "sampling_params": sampling})
    return True


def buffered_in(world: SlimeWorld) -> dict[int, Any]:
    return {one.index: one for one in leaves(world.source.buffer)}


@pytest.mark.parametrize("branches", ["main", "all"])
@pytest.mark.parametrize("masked", [False, True])
def test_turns_over_three_weight_versions(world: SlimeWorld, routed: Routed, masked: bool, branches: str) -> None:
    seen = Seen()
    generate = seen.around(slime_rollout(build, reward=score, branches=branches), **LONG)
    # Groups 2 and 3 do not end while `seen.long`; the others are done soon.
    prompts = world.prompts(mark=lambda number: {"long": number in (2, 3)})
    flags: list[Any] = ["--partial-rollout", "--over-sampling-batch-size", 4, "--rollout-max-response-len", LIMIT]
    flags += ["--prompt-data", prompts, *(["--mask-offpolicy-in-partial-rollout"] if masked else [])]
    args = world.configure(generate, *flags, groups=2, samples=2)
    kept: list[dict[int, Any]] = []
    sampled = False

    def held(request: Request) -> bool:
        """Hold long turns, whose tokens are limited, until one other episode is left; hold that until they sampled."""
        nonlocal sampled
        if not seen.long or world.aborted_at >= began:
            return False
        long = {call["session"] for call in seen.given if call["metadata"].get("long")}
        last = {call["session"] for call in seen.given if call["index"] % 4 == 3} - long
        if len(seen.results) < others_done:
            return request.key in long | last
        sampled = sampled or (request.key in last and have_sampled(routed, turns=4, tokens=16))
        return request.key in last and not sampled

    world.wire.hold = held
    for number, version in enumerate(("one", "two")):
        new_weights(routed, version)
        others_done, began, sampled = len(seen.results) + 3, time.monotonic(), False
        batch = checked_step(world, rollouts=4, number=number)
        buffered = buffered_in(world)
        kept.append({index: (list(one.tokens), list(one.rollout_log_probs)) for index, one in buffered.items()})
        assert set(range(4, 8)) <= set(buffered), "groups 2 and 3 were stopped"
        for index in range(4, 8):
            check_sample(buffered[index], partial=True)
            assert buffered[index].status.value == "aborted" and buffered[index].response_length > 5
            assert buffered[index].metadata["start_rollout_id"] == 0
    seen.long = False
    new_weights(routed, "three")
    args.over_sampling_batch_size = 2  # just what is in the buffer
    batch = checked_step(world, rollouts=4, number=2)
    validate_batch(batch.groups, args)
    assert [sample.index for sample in batch.samples] == [4, 5, 6, 7]
    for sample in batch.samples:
        assert sample.status.value in ("completed", "truncated") and not sample.remove_sample
        (first, first_logprobs), (second, second_logprobs) = kept[0][sample.index], kept[1][sample.index]
        assert len(first) < len(second) < len(sample.tokens)
        assert sample.tokens[: len(second)] == second and second[: len(first)] == first
        old = len(second_logprobs)
        assert second_logprobs[: len(first_logprobs)] == first_logprobs
        assert sample.rollout_log_probs[:old] == second_logprobs
        assert list(dict.fromkeys(sample.weight_versions)) == ["one", "two", "three"]
        assert sample.response_length <= LIMIT
        assert any(sample.loss_mask[old:]) and any(sample.loss_mask[:old]) is not masked
    if not masked:
        check_witnessed(batch.samples, world.wire.generates)
    prompt = {sample.session_id: len(sample.tokens) - sample.response_length for sample in batch.samples}
    for one in world.wire.generates:
        if one.key in prompt:
            assert (
                len(one.asked["input_ids"]) + one.asked["sampling_params"]["max_new_tokens"] <= prompt[one.key] + LIMIT
            )


def wait_for(world: SlimeWorld, seen: Seen, ready: Callable[[], bool]) -> None:
    """Hold the requests of prompts that are not slow until something is so: slime then stops the slow ones there."""

    def held(request: Request) -> bool:
        slow = {call["session"] for call in seen.given if call["metadata"].get("slow")}
        return request.key not in slow and not ready()

    world.wire.hold = held


@pytest.mark.parametrize("branches", ["main", "all"])
def test_paused_in_a_tool(world: SlimeWorld, routed: Routed, branches: str) -> None:
    seen, slow = Seen(), Slow(120.0)
    # Each of the four slow episodes is in its tool, or came to its end without.
    wait_for(world, seen, lambda: slow.waiting + len(seen.results) >= 4)
    generate = seen.around(slime_rollout(slow.build, reward=score, branches=branches, directory=world.folder / "runs"))
    prompts = world.prompts(mark=lambda number: {"slow": number in (2, 3)})
    flags: list[Any] = ["--partial-rollout", "--over-sampling-batch-size", 4, "--prompt-data", prompts]
    args = world.configure(generate, *flags, groups=2, samples=2)
    world.step(0)
    before = {index: list(one.tokens) for index, one in buffered_in(world).items()}
    assert set(before) == set(range(4, 8))
    slow.now = False
    count = len(world.wire.generates)
    args.over_sampling_batch_size = 2  # just what is in the buffer
    batch = checked_step(world, rollouts=4, number=1)
    validate_batch(batch.groups, args)
    check_witnessed(batch.samples, world.wire.generates)
    finished = [sample for sample in batch.samples if sample.index in before]
    assert len(finished) == 4
    for sample in finished:
        assert sample.status.value in ("completed", "truncated") and not sample.remove_sample
        assert sample.tokens[: len(before[sample.index])] == before[sample.index]
        again = [one for one in world.wire.generates[count:] if one.key == sample.session_id]
        assert all(len(one.asked["input_ids"]) > len(before[sample.index]) for one in again), "no turn is sampled again"
    (run,) = (world.folder / "runs").iterdir()
    certificate = verify(run)
    assert certificate.episodes == {Verdict.PROVED: 8}, certificate.text()


def test_group_with_some_finished_episodes(world: SlimeWorld) -> None:
    """Whole groups are put back: finished episodes in them are returned unchanged and not run again."""
    seen, slow = Seen(), Slow(120.0)
    wait_for(world, seen, lambda: slow.waiting + len(seen.results) >= 4)
    calls: list[int] = []

    def one_of_two(given: Any, model: Any) -> Any:
        calls.append(1)
        given.data["slow"] = given.data.get("slow") and len(calls) % 2
        return slow.build(given, model)

    generate = seen.around(slime_rollout(one_of_two, reward=score))
    prompts = world.prompts(mark=lambda number: {"slow": int(number in (2, 3))})
    flags: list[Any] = ["--partial-rollout", "--over-sampling-batch-size", 4, "--prompt-data", prompts]
    args = world.configure(generate, *flags, groups=2, samples=2)
    world.step(0)
    done = {i: list(one.tokens) for i, one in buffered_in(world).items() if one.status.value != "aborted"}
    slow.now = False
    given = len(seen.given)
    args.over_sampling_batch_size = 2  # just what is in the buffer
    batch = checked_step(world, rollouts=4, number=1)
    after = {sample.index: sample.tokens for sample in batch.samples}
    assert done and all(after[index] == tokens for index, tokens in done.items() if index in after)
    assert not {call["index"] for call in seen.given[given:]} & set(done)


@pytest.mark.parametrize("masked", [False, True])
def test_finished_branches_are_returned_unchanged(world: SlimeWorld, masked: bool) -> None:
    """A finished episode in such a group may be several samples of different lengths; slime writes to all of them."""
    seen, slow = Seen(), Slow(120.0)
    wait_for(world, seen, lambda: slow.waiting + len(seen.results) >= 4)
    begun: list[int] = []

    def one_of_two(given: Task, model: SGLangModel) -> Any:
        begun.append(1)
        if given.data.get("slow") and len(begun) % 2:
            return slow.build(given, model)
        return second_thoughts(given, model)

    generate = seen.around(slime_rollout(one_of_two, reward=lambda episode: 0.0, branches="all"))
    prompts = world.prompts(mark=lambda number: {"slow": number in (2, 3)})
    flags: list[Any] = ["--partial-rollout", "--over-sampling-batch-size", 4, "--prompt-data", prompts]
    flags += ["--custom-reward-post-process-path", "strands_sglang.trainers.slime.grpo_by_group"]
    flags += ["--mask-offpolicy-in-partial-rollout"] if masked else []
    args = world.configure(generate, *flags, groups=2, samples=2)
    world.step(0)
    done = [rollout for group in world.source.buffer for rollout in group if rollout[0].status.value != "aborted"]
    assert any(len(rollout) > 1 for rollout in done), "no rollout with branches was put back"
    tokens = {id(sample): list(sample.tokens) for rollout in done for sample in rollout}
    slow.now = False
    args.over_sampling_batch_size = 2  # just what is in the buffer
    batch = checked_step(world, rollouts=4, number=1)
    kept = [sample for sample in batch.samples if id(sample) in tokens]
    assert kept and all(sample.tokens == tokens[id(sample)] for sample in kept)
