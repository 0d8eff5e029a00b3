"""A row as verl's `AgentLoopOutput`: its fields, and how prompt and response fit verl's two lengths.

Invariant: what comes out has at most `prompt_length` and `response_length` tokens, is a prefix of the branch and never
another text; every output of a run has the same fields, because verl stacks them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from strands_sglang.rollout.episode import Episode
from strands_sglang.trainers.plain_row import PlainRow
from strands_sglang.trainers.verl_engine import global_steps

logger = logging.getLogger(__name__)


def output_fields(
    row: PlainRow,
    episode: Episode | None,
    *,
    prompt_length: int,
    response_length: int,
    logprobs: bool,
    steps: int,
    expert_shape: tuple[int, int] | None = None,
    reward_keys: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the arguments of an `AgentLoopOutput`.

    Args:
        row: What is trained.
        episode: Where it comes from; None: nothing could be run.
        prompt_length: Tokens verl pads prompts to.
        response_length: Tokens verl pads responses to.
        logprobs: Whether verl wants the engine's logprobs (`calculate_log_probs`).
        steps: The global step of a row that has no sampled token.
        expert_shape: Layers and top k, where routed experts are wanted.
        reward_keys: Parts of the reward that verl should average as validation metrics.
    """
    # A first prompt longer than prompt_length is not truncated, as verl would: the model has seen all of it. What is
    # beyond goes in front of the response, where tokens that are not trained are nothing special.
    cut = min(len(row.prompt_ids), prompt_length)
    before = row.prompt_ids[cut:]
    response = (before + row.response_ids)[:response_length]
    if len(before) + len(row.response_ids) > response_length:
        kept, lost = len(response), len(before) + len(row.response_ids) - response_length
        logger.warning("kept=<%d>, lost=<%d> | the end of a response does not fit response_length", kept, lost)
    zeros = [0] * len(before)
    known = global_steps(row.versions) or ((None, None) if row.num_turns else (steps, steps))
    fields: dict[str, Any] = {
        "prompt_ids": row.prompt_ids[:cut],
        "response_ids": response,
        "response_mask": (zeros + row.loss_mask)[:response_length],
        "response_logprobs": ([0.0] * len(before) + row.logprobs)[:response_length] if logprobs else None,
        "routed_experts": _experts(row, expert_shape, cut + len(response)),
        "reward_score": row.reward,
        "num_turns": 2 * row.num_turns,  # verl counts the question and the tools' answers, too
        "metrics": _metrics(episode),
        "extra_fields": {
            **_about(episode, reward_keys),
            "strands_agent": row.agent or "",
            "strands_main": row.main,
            "min_global_steps": known[0],
            "max_global_steps": known[1],
        },
    }
    return fields


def _experts(row: PlainRow, shape: tuple[int, int] | None, tokens: int) -> Any:
    """Return routed experts as verl wants them: one row a position from the first of the prompt, without the last."""
    if shape is None:
        return None
    if row.experts is None:
        return np.zeros((1, *shape), np.int32)  # stacked with those of other samples: of the same shape, or verl fails
    return row.experts.reshape(len(row.experts), *shape)[:tokens]


def _metrics(episode: Episode | None) -> dict[str, float]:
    if episode is None:
        return {}
    return {"generate_sequences": episode.metrics.engine_seconds, "tool_calls": episode.metrics.tool_seconds}


def _about(episode: Episode | None, reward_keys: Sequence[str]) -> dict[str, Any]:
    """Return what is told of an episode beside its tokens."""
    score = None if episode is None else episode.score
    failure = None if episode is None else episode.failure
    parts = {} if score is None else dict(score.parts)
    return {
        "turn_scores": [] if score is None else list(score.steps),
        "tool_rewards": [],
        "reward_extra_info": {name: parts.get(name, 0.0) for name in reward_keys},
        "reward_parts": parts,
        "strands_episode": "" if episode is None else episode.id,
        "strands_ended": "no_task" if episode is None else episode.ended.value,
        "strands_failure": "" if failure is None else f"{failure.kind}: {failure.message}",
    }
