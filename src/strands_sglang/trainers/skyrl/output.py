"""Rows as SkyRL's `GeneratorOutput`, lists with one entry per row: `generator_output`.

Invariant: rows are in the order of their prompts; rows of one episode are adjacent, the main branch last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs.episode import Episode
from strands_sglang.trainers.rows import PlainRow
from strands_sglang.trainers.statuses import TrainerStatus, is_trainable, status_of


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What SkyRL's configuration requires of a batch."""

    step_wise: bool = False
    """`step_wise_trajectories`: an episode may be several rows."""
    logprobs: bool = True
    """Whether the batch contains the engine's logprobs."""
    experts: bool = False
    """`enable_return_routed_experts`."""
    zero_reward_on_non_stop: bool = False
    """Reward 0 for episodes that a limit ended."""
    overlong_filtering: bool = False
    """`apply_overlong_filtering`: loss mask 0 for episodes that a limit ended."""
    support_width: int = 0
    """`enable_return_sample_support_set`: size of the largest kept set, which is the `top_k`; 0: sets are not used."""


def generator_output(
    results: Sequence[tuple[Episode | None, list[PlainRow]]],
    options: OutputOptions,
    *,
    trajectory_ids: Sequence[Any] | None,
    expert_shape: Sequence[int] = (),
) -> dict[str, Any]:
    """Return a `GeneratorOutput` without its rollout metrics.

    Args:
        results: For each prompt of the batch its episode and its rows.
        options: What SkyRL's configuration requires.
        trajectory_ids: SkyRL's ids, one per prompt; None if it gave none.
        expert_shape: Layers and top k of routed experts.

    Raises:
        ConfigurationError: A row that is trained has no kept sets, although SkyRL renormalises over them.
    """
    columns: dict[str, list[Any]] = defaultdict(list)
    for number, (episode, rows) in enumerate(results):
        status, score = status_of(episode), None if episode is None else episode.reward_detail
        not_stopped = status is not TrainerStatus.COMPLETED
        for place, row in enumerate(rows):
            last = place == len(rows) - 1
            reward = row.reward if last and not (not_stopped and options.zero_reward_on_non_stop) else 0.0
            columns["prompt_token_ids"].append(row.prompt_ids)
            columns["response_ids"].append(row.response_ids)
            columns["rewards"].append(reward or 0.0)
            columns["loss_masks"].append(
                [0] * len(row.loss_mask) if not_stopped and options.overlong_filtering else row.loss_mask
            )
            columns["stop_reasons"].append(status.stop_reason)
            columns["rollout_logprobs"].append(row.logprobs)
            columns["rollout_sample_support"].append(_support(row, options.support_width))
            columns["trajectory_generation_times"].append(0.0 if episode is None else episode.metrics.seconds)
            columns["rollout_expert_indices"].append(_experts(row, expert_shape))
            columns["is_last_step"].append(last)
            columns["trajectory_ids"].append(None if trajectory_ids is None else trajectory_ids[number])
            columns["env_metrics"].append(
                {
                    **({} if score is None else score.parts),
                    "end_reason": "no_task" if episode is None else episode.end_reason.value,
                    "agent": row.agent or "",
                    "main": float(row.main),
                }
            )
    if not options.support_width:
        del columns["rollout_sample_support"]  # versions of SkyRL up to 0.3 do not have this field
    unwanted = {
        "rollout_logprobs": not options.logprobs,
        "rollout_expert_indices": not options.experts,
        "is_last_step": not options.step_wise,
        "trajectory_ids": not options.step_wise,
    }
    return {name: None if unwanted.get(name) else values for name, values in columns.items()}


def _support(row: PlainRow, width: int) -> npt.NDArray[np.int32]:
    """Return the kept set of each response token, with -1 after its ids; only -1 for a token that was not sampled."""
    if row.kept is not None:
        return row.kept.padded(width or None)
    if width and any(row.loss_mask):
        raise ConfigurationError(
            "SkyRL renormalises over kept sets (enable_return_sample_support_set), but a row that is trained has none: "
            "do not sample with a grammar, and leave sampling parameters to SkyRL's configuration"
        )
    return np.full((len(row.response_ids), width), -1, np.int32)


def metrics_of(results: Sequence[tuple[Episode | None, list[PlainRow]]]) -> dict[str, float]:
    """Return the metrics of a batch; SkyRL averages those with "avg" in their names over batches and sums the rest."""
    episodes = [episode for episode, _ in results if episode is not None]
    failed = len(results) - sum(is_trainable(episode, scored=True) for episode in episodes)
    numbers: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        used = episode.metrics
        mine: Mapping[str, float] = {
            "generate/avg_turns": used.turns,
            "generate/avg_tool_calls": used.tool_calls,
            "generate/avg_tool_errors": used.tool_errors,
            "generate/avg_tool_seconds": used.tool_seconds,
            **{f"reward/avg_{name}": part for name, part in episode.reward_detail.parts.items()},
        }
        for name, number in mine.items():
            numbers[name].append(float(number))
    return {"generate/failed_episodes": float(failed)} | {name: float(np.mean(all)) for name, all in numbers.items()}


def _experts(row: PlainRow, shape: Sequence[int]) -> Any:
    return None if row.experts is None else row.experts.reshape(len(row.experts), *shape).tolist()
