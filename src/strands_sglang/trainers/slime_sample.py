"""A finished episode written into slime's samples: `samples_of`.

Invariant: a sample is whole whatever became of the episode: at least one response token and one before it, loss mask
and logprobs of the response's length, no None among them, loss only on sampled tokens. Every field that is written is
written anew each time, so that a sample that comes back is filled as if it were new.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from strands_sglang.engine.routed_experts import RoutedExperts
from strands_sglang.errors import ConfigurationError, MalformedResponseError
from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.episode import Episode
from strands_sglang.tokens import Turn
from strands_sglang.tokens.origin import Origin
from strands_sglang.trainers.row import Branches, Row, rows
from strands_sglang.trainers.slime_fields import S, SlimeSample, SlimeStatus, copied

logger = logging.getLogger(__name__)

METADATA_KEY = "strands_sglang"
"""Where a sample's metadata says what it was made of."""

STATUS: Mapping[str, SlimeStatus] = {
    Ended.ANSWERED.value: SlimeStatus.COMPLETED,
    Ended.STOPPED.value: SlimeStatus.COMPLETED,
    Ended.FAILED_CALL.value: SlimeStatus.COMPLETED,
    Ended.TURN_LIMIT.value: SlimeStatus.TRUNCATED,
    Ended.TOOL_LIMIT.value: SlimeStatus.TRUNCATED,
    Ended.TOKEN_LIMIT.value: SlimeStatus.TRUNCATED,
    Ended.TURN_CUT.value: SlimeStatus.TRUNCATED,
    Ended.CONTEXT.value: SlimeStatus.TRUNCATED,
    Ended.TIMEOUT.value: SlimeStatus.TRUNCATED,
    Ended.CUT_SHORT.value: SlimeStatus.ABORTED,
    Ended.SUSPENDED.value: SlimeStatus.ABORTED,
    Ended.ENGINE.value: SlimeStatus.FAILED,
    Ended.AGENT.value: SlimeStatus.FAILED,
}
"""Why an episode ended, to what slime is told."""


class Removed(str, Enum):
    """Why a sample is kept out of the loss."""

    ABORTED = "aborted"
    """The episode was interrupted."""
    FAILED = "failed"
    """The episode broke."""
    NOTHING_SAMPLED = "nothing_sampled"
    """There is no sampled token that could be trained."""
    NOT_SCORED = "not_scored"
    """The reward function failed."""
    NO_EXPERTS = "no_experts"
    """Expert choices are wanted, and those of this branch are not known."""


@dataclass(frozen=True, slots=True)
class _Laid:
    """One branch as a sample has it."""

    tokens: list[int]
    """Prompt and response."""
    mask: list[int]
    """Loss mask of the response."""
    logprobs: list[float]
    """Logprobs of the response."""
    path: Sequence[Turn]
    """The turns of the branch, first to last; empty for a placeholder."""
    cut: int = 0
    """Tokens of the response that were cut off because of its limit."""


_PLACEHOLDER = _Laid([0, 0], [0], [0.0], ())


def samples_of(
    sample: S,
    episode: Episode,
    *,
    branches: Branches = Branches.MAIN,
    decode: Callable[[Sequence[int]], str],
    response_limit: int | None = None,
    experts: Callable[[Turn], RoutedExperts | None] | None = None,
    expert_shape: tuple[int, int] | None = None,
    off_policy: Mapping[int, int] | None = None,
    reward_key: str | None = None,
) -> list[S]:
    """Write an episode into a sample, and further branches into copies of it.

    Args:
        sample: As slime gave it; its status may be any. It becomes the first of the list.
        episode: How it went.
        branches: Whether further branches become samples of their own. Episodes that are not trained (aborted,
            failed, not scored) are one sample in any case.
        decode: Makes text of the ids of a response.
        response_limit: Most tokens a response may have; what is behind is cut off. None: any number.
        experts: Given the last turn of a branch, the choices of every token of it but the last; None where unknown.
        expert_shape: Layers and experts chosen in each. When given, every sample has choices: stand-ins where they
            are not known, and then it is kept out of the loss.
        off_policy: Of a turn, by its id, how many of its first sampled tokens are not trained.
        reward_key: Name under which slime looks for the number in a reward; None: a reward is the number itself.

    Returns:
        At least one sample. With `Branches.ALL` all have the same `rollout_id`.

    Raises:
        ConfigurationError: Experts without their shape.
    """
    if experts is not None and expert_shape is None:
        raise ConfigurationError("routed experts need expert_shape: slime wants (tokens - 1, layers, top k)")
    status = STATUS[episode.ended.value]
    removed = _why_removed(status, episode)
    given = rows(episode, Branches.MAIN if removed is not None else branches)
    laid = [_laid(row, episode, response_limit, off_policy or {}) for row in given]
    laid = [one for one in laid if any(one.mask)] or laid[:1]
    if not laid:
        laid, removed = [_PLACEHOLDER], removed or Removed.NOTHING_SAMPLED
    made = [sample, *(copied(sample) for _ in laid[1:])]
    rollout_id = _rollout_id(sample, episode) if branches is Branches.ALL else sample.rollout_id
    counted: set[int] = set()
    for target, one in zip(made, laid, strict=True):
        target.rollout_id = rollout_id
        why, choices = removed, None
        if expert_shape is not None:
            choices = _choices(one, experts, expert_shape)
            if choices is None:
                why, choices = why or Removed.NO_EXPERTS, _stand_ins(len(one.tokens) - 1, expert_shape)
        target.rollout_routed_experts = choices
        _write(target, one, status, why, decode)
        target.reward = _reward(episode, why, reward_key)
        target.non_generation_time = episode.metrics.tool_seconds
        _count(target, [turn for turn in one.path if turn.id not in counted])
        counted.update(turn.id for turn in one.path)
        target.metadata = {**(target.metadata or {}), METADATA_KEY: _about(episode, one, len(laid), why)}
    return made


def _why_removed(status: SlimeStatus, episode: Episode) -> Removed | None:
    if status is SlimeStatus.ABORTED:
        return Removed.ABORTED
    if status is SlimeStatus.FAILED:
        return Removed.FAILED
    return Removed.NOT_SCORED if episode.score.error is not None else None


def _laid(row: Row, episode: Episode, limit: int | None, off_policy: Mapping[int, int]) -> _Laid:
    """Return a row no longer than the limit, still ending with a sampled token."""
    flat, first, length = row.trajectory, len(row.prompt_ids), len(row.response_ids)
    kept = length if limit is None else min(length, max(limit, 1))
    # A response begins with a sampled token, so there is always a last one.
    kept = int(np.flatnonzero(flat.origins[first : first + kept] == Origin.SAMPLED)[-1]) + 1
    path = episode.tree.path(episode.tree[flat.branch])
    mask = row.loss_mask[:kept].copy()
    for turn in path:
        begin = turn.sampled_start - first
        mask[min(begin, kept) : min(begin + off_policy.get(turn.id, 0), begin + len(turn.sampled), kept)] = 0
    tokens, logprobs = flat.token_ids[: first + kept].tolist(), row.logprobs[:kept].tolist()
    if first == 0:
        # Nothing stands before the first sampled token: it cannot be trained, and becomes the prompt.
        if kept == 1:
            return _Laid([0, *tokens], [0], logprobs, path, length - kept)
        return _Laid(tokens, mask.tolist()[1:], logprobs[1:], path, length - kept)
    return _Laid(tokens, mask.tolist(), logprobs, path, length - kept)


def _write(sample: SlimeSample, laid: _Laid, status: SlimeStatus, why: Removed | None, decode: Any) -> None:
    length = len(laid.mask)
    sample.tokens, sample.response_length = list(laid.tokens), length
    sample.response = decode(laid.tokens[-length:]) if laid.path else ""
    sample.loss_mask = list(laid.mask) if why is None else [0] * length
    sample.rollout_log_probs = list(laid.logprobs)
    if hasattr(sample, "rollout_top_p_token_ids"):
        sample.rollout_top_p_token_ids = sample.rollout_top_p_token_offsets = None
    sample.teacher_log_probs = None
    sample.remove_sample = why is not None
    end = len(laid.tokens)
    spans = [(turn.sampled_start + span.start, span.version) for turn in laid.path for span in turn.versions]
    sample.weight_versions = [version for start, version in spans if version is not None and start < end]
    (SlimeStatus.TRUNCATED if laid.cut and status is SlimeStatus.COMPLETED else status).set(sample)


def _reward(episode: Episode, why: Removed | None, key: str | None) -> float | dict[str, Any] | None:
    """Return a reward; None only where nobody scored an episode that can be trained: slime's reward model is asked."""
    value = 0.0 if why is not None else episode.reward
    return value if key is None or value is None else {**episode.score.parts, key: value}


def _choices(
    laid: _Laid, experts: Callable[[Turn], RoutedExperts | None] | None, shape: tuple[int, int]
) -> npt.NDArray[np.int32] | None:
    if experts is None or not laid.path:
        return None
    try:
        known = experts(laid.path[-1])
        decoded = None if known is None else known.decode(*shape)
    except MalformedResponseError as error:
        logger.warning("branch=<%d>, error=<%s> | routed experts do not fit", laid.path[-1].id, error)
        return None
    wanted = len(laid.tokens) - 1
    if decoded is None or known is None or known.start or len(decoded) < wanted:
        return None
    return np.array(decoded[:wanted])  # a copy: what was decoded may be read-only, which torch does not like


def _stand_ins(count: int, shape: tuple[int, int]) -> npt.NDArray[np.int32]:
    """Return choices that no trainer refuses: the first experts, different ones. slime takes all zeros for a fault."""
    layers, top_k = shape
    return np.tile(np.arange(top_k, dtype=np.int32), (count, layers, 1))


def _count(sample: SlimeSample, turns: Sequence[Turn]) -> None:
    """Set what the engine told about some turns: those that no sibling has counted."""
    cache, spec = type(sample.prefix_cache_info)(), type(sample.spec_info)()
    cache.cached_tokens = sum(turn.detail.get("cached_tokens") or 0 for turn in turns)
    cache.total_prompt_tokens = sum(turn.sampled_start for turn in turns)
    told = [turn.detail["spec"] for turn in turns if turn.detail.get("spec")]
    spec.spec_accept_token_num = sum(counts["accepted_tokens"] for counts in told)
    spec.spec_draft_token_num = sum(counts["drafted_tokens"] for counts in told)
    spec.spec_verify_ct = sum(counts["verify_count"] for counts in told)
    spec.completion_token_num = sum(len(turn.sampled) for turn in turns)
    sample.prefix_cache_info, sample.spec_info = cache, spec


def _rollout_id(sample: SlimeSample, episode: Episode) -> int:
    for known in (sample.rollout_id, sample.index):
        if known is not None:
            return known
    return int.from_bytes(hashlib.blake2b(episode.id.encode(), digest_size=7).digest(), "big")


def _about(episode: Episode, laid: _Laid, siblings: int, why: Removed | None) -> dict[str, Any]:
    return {
        "episode": episode.id,
        "ended": episode.ended.value,
        "turns": episode.metrics.turns,
        "tool_calls": episode.metrics.tool_calls,
        "branch": laid.path[-1].id if laid.path else None,
        "agent": next((turn.agent for turn in reversed(laid.path) if turn.agent is not None), None),
        "main": bool(laid.path) and (main := episode.tree.main_leaf()) is not None and laid.path[-1].id == main.id,
        "branches": siblings,
        "cut_tokens": laid.cut,
        "removed": None if why is None else why.value,
        "parts": dict(episode.score.parts),
        "failure": None if episode.failure is None else f"{episode.failure.kind}: {episode.failure.message}"[:500],
    }
