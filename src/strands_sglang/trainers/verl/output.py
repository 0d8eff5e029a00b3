"""A row as the fields of verl's `AgentLoopOutput`, within verl's prompt and response lengths: `output_fields`.

Invariant: prompt and response have at most `prompt_length` and `response_length` tokens and together are a prefix of
the branch. Every output of a run has the same fields, because verl stacks them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from strands_sglang.runs.episode import Episode
from strands_sglang.tokens.teacher import NO_ID
from strands_sglang.trainers.images import images_within, pictures_of, whole_images
from strands_sglang.trainers.rows import PlainRow
from strands_sglang.trainers.verl.engine import global_steps

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
    teacher_top: int | None = None,
) -> dict[str, Any]:
    """Return the arguments of an `AgentLoopOutput`.

    Args:
        row: The row to train.
        episode: The episode of the row; None if no task could be made.
        prompt_length: Length to which verl pads prompts.
        response_length: Length to which verl pads responses.
        logprobs: Whether verl uses the engine's logprobs (`calculate_log_probs`).
        steps: Global step to report for a row without a sampled token.
        expert_shape: Layers and top k; None if routed experts are not used.
        reward_keys: Names of the reward's parts that verl averages as validation metrics.
        teacher_top: Number of a teacher's likeliest ids per token; None if there is no teacher. A row that the teacher
            could not score is not trained.
    """
    # verl would shorten a first prompt longer than prompt_length, but the model has seen all of it. The excess becomes
    # the start of the response, which may contain tokens that are not trained.
    cut = min(len(row.prompt_ids), prompt_length)
    before = row.prompt_ids[cut:]
    length = min(len(before) + len(row.response_ids), response_length)
    length = max(whole_images(row.images, cut + length) - cut, 1)
    response = (before + row.response_ids)[:length]
    if len(before) + len(row.response_ids) > length:
        lost = len(before) + len(row.response_ids) - length
        logger.warning(
            "kept=<%d>, dropped=<%d> | response is longer than response_length, its end is dropped", length, lost
        )
    shown = images_within(row.images, cut + len(response)) if row.images and episode is not None else []
    zeros = [0] * len(before)
    known = global_steps(row.versions) or ((None, None) if row.num_turns else (steps, steps))
    fields: dict[str, Any] = {
        "prompt_ids": row.prompt_ids[:cut],
        "response_ids": response,
        "response_mask": (zeros + row.loss_mask)[:length],
        "response_logprobs": ([0.0] * len(before) + row.logprobs)[:length] if logprobs else None,
        "routed_experts": _experts(row, expert_shape, cut + len(response)),
        "multi_modal_data": {"images": pictures_of(episode.image_files, shown)} if shown and episode else None,
        "reward_score": row.reward,
        "num_turns": 2 * row.num_turns,  # verl also counts the question and the tool results
        "metrics": _metrics(episode),
        "extra_fields": {
            **_about(episode, reward_keys),
            "strands_agent": row.agent or "",
            "strands_main": row.main,
            "min_global_steps": known[0],
            "max_global_steps": known[1],
        },
    }
    if teacher_top is not None:
        if row.teacher is None:
            fields["response_mask"] = [0] * len(response)
        fields["extra_fields"] |= _teacher(row, cut + len(response), teacher_top)
    return fields


def _teacher(row: PlainRow, tokens: int, top: int) -> dict[str, Any]:
    """Return a teacher's logprobs in verl's form: row p is about token p + 1, of prompt and response.

    With `top` 0, the only entry of a row is the token itself.
    """
    import torch

    ids, width, first = np.array(row.token_ids), max(top, 1), len(row.prompt_ids)
    teacher_ids, logprobs = np.zeros((tokens, width), np.int32), np.zeros((tokens, width), np.float32)
    teacher_ids[: tokens - 1] = ids[1:tokens, None]
    if row.teacher is not None:
        known = row.teacher.part(0, tokens - first)
        scored = np.flatnonzero(known.top_id_rows[:, 0] != NO_ID) if top else np.arange(len(known))
        before = scored + first - 1
        logprobs[before] = known.top_logprob_rows[scored] if top else np.asarray(known.logprobs)[scored, None]
        if top:
            teacher_ids[before] = known.top_id_rows[scored]
    return {"teacher_ids": torch.from_numpy(teacher_ids), "teacher_logprobs": torch.from_numpy(logprobs)}


def _experts(row: PlainRow, shape: tuple[int, int] | None, tokens: int) -> Any:
    """Return routed experts in verl's form: one row per token of prompt and response, except the last."""
    if shape is None:
        return None
    if row.experts is None:
        return np.zeros((1, *shape), np.int32)  # verl stacks them and needs the same shape for all samples
    return row.experts.reshape(len(row.experts), *shape)[:tokens]


def _metrics(episode: Episode | None) -> dict[str, float]:
    if episode is None:
        return {}
    return {"generate_sequences": episode.metrics.engine_seconds, "tool_calls": episode.metrics.tool_seconds}


def _about(episode: Episode | None, reward_keys: Sequence[str]) -> dict[str, Any]:
    """Return the extra fields that describe an episode."""
    score = None if episode is None else episode.reward_detail
    failure = None if episode is None else episode.failure
    parts = {} if score is None else dict(score.parts)
    return {
        "turn_scores": [] if score is None else list(score.steps),
        "tool_rewards": [],
        "reward_extra_info": {name: parts.get(name, 0.0) for name in reward_keys},
        "reward_parts": parts,
        "strands_episode": "" if episode is None else episode.id,
        "strands_end_reason": "no_task" if episode is None else episode.end_reason.value,
        "strands_failure": "" if failure is None else f"{failure.kind}: {failure.message}",
    }
