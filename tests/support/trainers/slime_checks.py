"""What must be true of samples that slime was given: looked at from outside, with nothing of the package."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import Any

from support.engine_probes import prefill_logprobs
from support.trainers.slime_wire import Request
from support.trainers.slime_world import Batch, SlimeWorld, slime

Run = tuple[int, int]
"""Where trained tokens without a gap begin and end in the tokens of a sample."""


def check_sample(sample: Any, partial: bool = False) -> None:
    """A sample that can be trained, or stands for nothing (`remove_sample`); `partial`: one that goes on later."""
    status = type(sample).Status
    assert isinstance(sample.tokens, list) and all(type(token) is int for token in sample.tokens)
    length = sample.response_length
    if partial and not length:
        assert sample.status is status.ABORTED and not sample.response
        return
    assert 0 < length < len(sample.tokens)
    assert isinstance(sample.loss_mask, list) and len(sample.loss_mask) == length
    assert set(sample.loss_mask) <= {0, 1}
    assert isinstance(sample.rollout_log_probs, list) and len(sample.rollout_log_probs) == length
    assert all(type(value) is float and math.isfinite(value) and value <= 0 for value in sample.rollout_log_probs)
    assert sample.status in set(status) - {status.PENDING}
    assert isinstance(sample.response, str)
    assert all(isinstance(version, str) for version in sample.weight_versions)
    sample._validate_response_metadata_lengths()
    assert type(sample).from_dict(sample.to_dict()).tokens == sample.tokens
    if not sample.remove_sample:
        assert _is_sampled(sample, 0), "a response begins with a sampled token"
        assert _is_sampled(sample, length - 1), "a response ends with a sampled token"
    if not partial:
        assert type(sample.reward) in (float, dict), sample.reward


def _is_sampled(sample: Any, at: int) -> bool:
    offsets = sample.rollout_top_p_token_offsets
    kept = offsets is not None and offsets[at] < offsets[at + 1]  # a token without alternatives has logprob 0
    return bool(sample.rollout_log_probs[at] != 0.0 or sample.loss_mask[at] or kept)


def checked_step(world: SlimeWorld, rollouts: int, number: int = 0) -> Batch:
    """Do a training step, and check its batch."""
    batch = world.step(number)
    check_batch(batch, rollouts)
    return batch


def check_batch(batch: Batch, rollouts: int) -> None:
    """What slime trains on is what the samples say."""
    train, samples = batch.train, batch.samples
    for sample in samples:
        check_sample(sample)
    assert train["tokens"] == [sample.tokens for sample in samples]
    assert train["response_lengths"] == [sample.response_length for sample in samples]
    assert train["rollout_log_probs"] == [sample.rollout_log_probs for sample in samples]
    masks = [[0] * s.response_length if s.remove_sample else s.loss_mask for s in samples]
    assert train["loss_masks"] == masks
    ids = train["rollout_ids"]
    assert len(set(ids)) == rollouts
    sums: Counter[int] = Counter()
    for id, mask in zip(ids, masks, strict=True):
        sums[id] += sum(mask)
    assert train["rollout_mask_sums"] == [sums[id] for id in ids]
    assert len(train["rewards"]) == len(train["raw_reward"]) == len(samples)
    assert all(math.isfinite(reward) for reward in train["rewards"])
    assert sorted(place for rank in batch.ranks for place in rank["partition"]) == list(range(len(samples)))
    for rank in batch.ranks:
        for tokens, length, mask, logprobs in zip(
            rank["tokens"], rank["response_lengths"], rank["loss_masks"], rank["rollout_log_probs"], strict=True
        ):
            assert len(mask) == len(logprobs) == length < len(tokens)


def trained_runs(sample: Any) -> list[Run]:
    if sample.remove_sample:
        return []
    start, runs, began = len(sample.tokens) - sample.response_length, [], None
    for place, trained in enumerate([*sample.loss_mask, 0], start):
        if trained and began is None:
            began = place
        elif not trained and began is not None:
            runs.append((began, place))
            began = None
    return runs


def check_witnessed(samples: list[Any], requests: list[Request]) -> Counter[str]:
    """Every trained token is one the engine sampled behind just these tokens, and is trained once."""
    answers = [one for one in requests if one.answer is not None]
    used: Counter[str] = Counter()
    for sample in samples:
        for begin, end in trained_runs(sample):
            while begin < end:  # a turn that was interrupted is several answers
                at = begin - (len(sample.tokens) - sample.response_length)
                found = [
                    one
                    for one in answers
                    if one.key in (None, sample.session_id)
                    and one.asked["input_ids"] == sample.tokens[:begin]
                    and one.sampled
                    and one.sampled == sample.tokens[begin : begin + len(one.sampled)]
                    and one.logprobs == sample.rollout_log_probs[at : at + len(one.sampled)]
                    and not used[one.asked["rid"]]
                ]
                assert found, f"nobody sampled {sample.tokens[begin:end]} with these logprobs behind {begin} tokens"
                one = max(found, key=lambda each: len(each.sampled))
                used[one.asked["rid"]] += len(one.sampled)
                begin += len(one.sampled)
            assert begin == end
    return used


def check_rescored(samples: list[Any], url: str, most: int = 8) -> None:
    """The engine, asked for all tokens of a sample at once, gives the same logprobs to those that are trained."""

    async def ask(sample: Any) -> float:
        start = len(sample.tokens) - sample.response_length
        second = await prefill_logprobs(url, sample.tokens, start)
        triples = zip(sample.loss_mask, sample.rollout_log_probs, second, strict=True)
        return max((abs(a - b) for trained, a, b in triples if trained), default=0.0)

    async def all_of_them() -> list[float]:
        return await asyncio.gather(*(ask(sample) for sample in samples[:most] if not sample.remove_sample))

    differences = asyncio.run(all_of_them())
    assert differences and max(differences) <= 1e-3


def statuses(samples: list[Any]) -> Counter[str]:
    return Counter(sample.status.value for sample in samples)


def leaves(node: Any) -> list[Any]:
    if isinstance(node, slime("utils.types").Sample):
        return [node]
    return [leaf for item in node for leaf in leaves(item)]
