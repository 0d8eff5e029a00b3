"""slime's own `generate_rollout` and `eval_rollout` with `slime_rollout`: tool turns, rewards, budgets, evaluation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strands_sglang.proof.finding import Verdict
from strands_sglang.proof.verify import verify
from strands_sglang.runs import Episode
from strands_sglang.trainers.slime import slime_rollout
from support.lab_servers import Routed
from support.rollout_agent import build, score
from support.trainers.slime_agents import Seen
from support.trainers.slime_checks import (
    check_batch,
    check_rescored,
    check_sample,
    check_witnessed,
    checked_step,
    statuses,
)
from support.trainers.slime_validation import validate_batch
from support.trainers.slime_world import SlimeWorld, slime

pytestmark = [pytest.mark.slime, pytest.mark.engine]


def test_tool_turns_become_training_data(world: SlimeWorld, routed: Routed) -> None:
    args = world.configure(slime_rollout(build, reward=score))
    for number in range(2):  # the second time with everything slime and we keep for a process
        before = len(world.wire.generates)
        batch = world.step(number)
        made = world.wire.generates[before:]
        check_batch(batch, rollouts=16)
        validate_batch(batch.groups, args)
        used = check_witnessed(batch.samples, made)
        assert sum(used.values()) == sum(len(one.sampled) for one in made)
        check_rescored(batch.samples, routed.workers[0].url)
        assert [len(group) for group in batch.groups] == [4] * 4
        assert [sample.index for sample in batch.samples] == list(range(16 * number, 16 * number + 16))
        assert 0 < sum(batch.train["raw_reward"]) < 16 and set(batch.train["raw_reward"]) == {0.0, 1.0}
        assert set(statuses(batch.samples)) <= {"completed", "truncated"}
        for sample in batch.samples:
            assert sample.prompt in world.state.tokenizer.decode(sample.tokens[: -sample.response_length])
            assert sample.response == world.state.tokenizer.decode(sample.tokens[-sample.response_length :])
            assert (f"The answer is {sample.label}." in sample.response) == bool(sample.reward)
            assert sample.metadata["questions"] == [sample.prompt]
            own = [one for one in made if one.key == sample.session_id]
            assert own, "the session goes in the routing key"
            assert len(sample.weight_versions) == len(own)
            metas = [one.answer["meta_info"] for one in own]
            assert sample.prefix_cache_info.total_prompt_tokens == sum(meta["prompt_tokens"] for meta in metas)
            assert sample.prefix_cache_info.cached_tokens == sum(meta["cached_tokens"] for meta in metas)
        assert any(len(sample.weight_versions) == 3 for sample in batch.samples)
        assert any(0 in sample.loss_mask for sample in batch.samples), "tool results are not trained"


def test_sampling_parameters_reach_the_engine(world: SlimeWorld) -> None:
    flags: list[Any] = ["--rollout-temperature", 0.8, "--rollout-top-k", 20, "--rollout-stop", "</nothing>"]
    # With kept sets, requests would go to the workers themselves: the router drops the request for them.
    generate = slime_rollout(build, reward=score, kept_sets=False)
    world.configure(generate, *flags, "--sglang-enable-deterministic-inference", groups=1, samples=2)
    world.step()
    seeds = set()
    for one in world.wire.generates:
        params = one.asked["sampling_params"]
        assert params["temperature"] == 0.8 and params["top_k"] == 20 and params["top_p"] == 1.0
        assert "</nothing>" in params["stop"] and params["no_stop_trim"] is True
        seeds.add(params["sampling_seed"])
    assert seeds == {42, 43}


def test_conversations_as_prompts(world: SlimeWorld) -> None:
    """A dataset of conversations: the agent gets the last message."""
    lines = [json.loads(line) for line in world.prompts().read_text().splitlines()]
    file = world.folder / "messages.jsonl"
    chats = [{**line, "text": [{"role": "user", "content": line["text"]}]} for line in lines]
    file.write_text("".join(json.dumps(line) + "\n" for line in chats))
    world.configure(slime_rollout(build, reward=score), "--prompt-data", file, groups=2)
    batch = checked_step(world, rollouts=8)
    assert sum(batch.train["raw_reward"]) > 0
    assert isinstance(batch.samples[0].prompt, list)


def test_hooks_and_dumps(world: SlimeWorld) -> None:
    """Hooks get every sample, and slime's debug dumps can be loaded again."""
    seen: list[int] = []

    def hook(args: Any, sample: Any) -> None:
        seen.append(sample.index)

    dump = str(world.folder / "dump-{rollout_id}.pt")
    flags: list[Any] = ["--rollout-sample-hook-path", world.path(hook), "--save-debug-rollout-data", dump]
    world.configure(slime_rollout(build, reward=score), *flags, groups=2, samples=2)
    batch = checked_step(world, rollouts=4)
    assert sorted(seen) == [0, 1, 2, 3]
    read = slime("observability.rollout_data_utils").load_debug_rollout_data(dump, rollout_id=0)
    assert [(one.tokens, one.loss_mask, one.status) for one in read] == [
        (one.tokens, one.loss_mask, one.status) for one in batch.samples
    ]


def test_run_is_recorded(world: SlimeWorld) -> None:
    """With a directory, the samples that slime trains are proved."""
    folder = world.folder / "run"
    world.configure(slime_rollout(build, reward=score, directory=folder), groups=2)
    batch = checked_step(world, rollouts=8)
    (run,) = folder.iterdir()  # one for each start of slime
    certificate = verify(run)
    assert certificate.episodes == {Verdict.PROVED: 8}, certificate.text()
    assert certificate.tokens.trained == sum(sum(mask) for mask in batch.train["loss_masks"])


def test_slimes_normalisation_of_groups(world: SlimeWorld) -> None:
    """The reward is a plain number, so slime's own group normalisation works."""
    world.configure(slime_rollout(build, reward=score))
    train = world.step().train
    for begin in range(0, 16, 4):
        raw, rewards = train["raw_reward"][begin : begin + 4], train["rewards"][begin : begin + 4]
        assert abs(sum(rewards)) < 1e-4
        order = sorted(zip(raw, rewards, strict=True))
        assert [reward for _, reward in order] == sorted(rewards)


def test_response_budget_covers_the_whole_episode(world: SlimeWorld) -> None:
    args = world.configure(slime_rollout(build, reward=score), "--rollout-max-response-len", 60)
    batch = checked_step(world, rollouts=16)
    validate_batch(batch.groups, args)
    assert max(sample.response_length for sample in batch.samples) <= 60
    assert statuses(batch.samples)["truncated"]
    by_session = {sample.session_id: len(sample.tokens) - sample.response_length for sample in batch.samples}
    for one in world.wire.generates:
        requested = len(one.asked["input_ids"]) + one.asked["sampling_params"]["max_new_tokens"]
        assert requested <= by_session[one.key] + 60


def test_context_budget(world: SlimeWorld) -> None:
    args = world.configure(slime_rollout(build, reward=score), "--rollout-max-context-len", 80)
    batch = checked_step(world, rollouts=16)
    validate_batch(batch.groups, args)
    assert max(len(sample.tokens) for sample in batch.samples) <= 80
    assert statuses(batch.samples)["truncated"]
    for one in world.wire.generates:
        assert len(one.asked["input_ids"]) + one.asked["sampling_params"]["max_new_tokens"] <= 80


def parts(episode: Episode) -> dict[str, float]:
    return {"score": score(episode), "turns": float(episode.metrics.turns)}


def test_rewards_with_parts_and_a_key(world: SlimeWorld) -> None:
    args = world.configure(slime_rollout(build, reward=parts), "--reward-key", "score")
    batch = checked_step(world, rollouts=16)
    validate_batch(batch.groups, args)
    assert set(batch.train["raw_reward"]) == {0.0, 1.0}
    assert all(sample.reward["turns"] >= 1 for sample in batch.samples)


def test_slime_scores_without_a_reward_function(world: SlimeWorld) -> None:
    scored_indices: list[Any] = []

    async def scored(args: Any, sample: Any, **more: Any) -> float:
        scored_indices.append(sample.index)
        return float(f"The answer is {sample.label}." in sample.response)

    world.configure(slime_rollout(build), "--custom-rm-path", world.path(scored))
    batch = checked_step(world, rollouts=16)
    assert sorted(scored_indices) == list(range(16))
    assert set(batch.train["raw_reward"]) == {0.0, 1.0}


def test_slime_scores_groups(world: SlimeWorld) -> None:
    async def ranked(args: Any, samples: list[Any], **more: Any) -> list[float]:
        lengths = sorted(sample.response_length for sample in samples)
        return [float(lengths.index(sample.response_length)) for sample in samples]

    world.configure(slime_rollout(build), "--group-rm", "--custom-rm-path", world.path(ranked))
    batch = checked_step(world, rollouts=16)
    assert set(batch.train["raw_reward"]) <= {0.0, 1.0, 2.0, 3.0} and 0.0 in batch.train["raw_reward"]


@pytest.mark.parametrize("branches", ["main", "all"])
def test_evaluation(world: SlimeWorld, branches: str) -> None:
    seen = Seen()
    flags = ["--eval-prompt-data", "lab", world.prompts(6), "--n-samples-per-eval-prompt", 3]
    world.configure(
        seen.around(slime_rollout(build, reward=score, branches=branches)), *flags, "--eval-max-response-len", 200
    )
    data = world.evaluate()
    found = data["lab"]
    assert len(found["samples"]) == len(found["rewards"]) == len(found["truncated"]) == 18
    assert {call["evaluation"] for call in seen.given} == {True} and len(seen.given) == 18
    assert [sample.index for sample in found["samples"]] == list(range(18))
    for sample, truncated in zip(found["samples"], found["truncated"], strict=True):
        check_sample(sample)
        assert truncated == (sample.status.value == "truncated")
    assert 0 < sum(found["rewards"]) < 18
    assert data["logged"]["eval/lab"] == sum(found["rewards"]) / 18
    keys = [one.key for one in world.wire.generates]
    assert None not in keys and len(set(keys)) == 18, "slime gives no session in an evaluation: we make one up"


def test_evaluation_has_its_own_budget(world: SlimeWorld) -> None:
    flags = ["--eval-prompt-data", "lab", world.prompts(4), "--eval-max-response-len", 10]
    world.configure(slime_rollout(build, reward=score), *flags, "--n-samples-per-eval-prompt", 2)
    found = world.evaluate()["lab"]
    assert all(found["truncated"]) and len(found["truncated"]) == 8
    assert max(sample.response_length for sample in found["samples"]) <= 10
    assert set(found["rewards"]) == {0.0}
