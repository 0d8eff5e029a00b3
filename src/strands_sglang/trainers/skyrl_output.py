"""Rows as SkyRL's `GeneratorOutput`: lists with one entry a row.

Invariant: rows stand in the order of the prompts they answer, those of one episode together, its main branch last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from strands_sglang.rollout.episode import Episode
from strands_sglang.trainers.plain_row import PlainRow, stop_reason, usable


@dataclass(frozen=True, slots=True)
class Wishes:
    """What SkyRL's configuration asks of a batch."""

    step_wise: bool = False
    """`step_wise_trajectories`: an episode may be several rows."""
    logprobs: bool = True
    """Whether the engine's logprobs are wanted."""
    experts: bool = False
    """`enable_return_routed_experts`."""
    zero_reward_on_non_stop: bool = False
    """Reward 0 for episodes that a limit cut."""
    overlong_filtering: bool = False
    """`apply_overlong_filtering`: loss mask 0 for episodes that a limit cut."""


def generator_output(
    played: Sequence[tuple[Episode | None, list[PlainRow]]],
    wishes: Wishes,
    *,
    trajectory_ids: Sequence[Any] | None,
    expert_shape: Sequence[int] = (),
) -> dict[str, Any]:
    """Return a `GeneratorOutput` but for its rollout metrics.

    Args:
        played: For each prompt of the batch its episode and its rows.
        wishes: What is asked of it.
        trajectory_ids: SkyRL's, one a prompt; None: it gave none.
        expert_shape: Layers and top k of routed experts.
    """
    columns: dict[str, list[Any]] = defaultdict(list)
    for number, (episode, rows) in enumerate(played):
        ended, score = stop_reason(episode), None if episode is None else episode.score
        cut = ended != "stop"
        for place, row in enumerate(rows):
            last = place == len(rows) - 1
            worth = row.reward if last and not (cut and wishes.zero_reward_on_non_stop) else 0.0
            columns["prompt_token_ids"].append(row.prompt_ids)
            columns["response_ids"].append(row.response_ids)
            columns["rewards"].append(worth or 0.0)
            columns["loss_masks"].append(
                [0] * len(row.loss_mask) if cut and wishes.overlong_filtering else row.loss_mask
            )
            columns["stop_reasons"].append(ended)
            columns["rollout_logprobs"].append(row.logprobs)
            columns["trajectory_generation_times"].append(0.0 if episode is None else episode.metrics.seconds)
            columns["rollout_expert_indices"].append(_experts(row, expert_shape))
            columns["is_last_step"].append(last)
            columns["trajectory_ids"].append(None if trajectory_ids is None else trajectory_ids[number])
            columns["env_metrics"].append(
                {
                    **({} if score is None else score.parts),
                    "ended": "no_task" if episode is None else episode.ended.value,
                    "agent": row.agent or "",
                    "main": float(row.main),
                }
            )
    unwanted = {
        "rollout_logprobs": not wishes.logprobs,
        "rollout_expert_indices": not wishes.experts,
        "is_last_step": not wishes.step_wise,
        "trajectory_ids": not wishes.step_wise,
    }
    return {name: None if unwanted.get(name) else values for name, values in columns.items()}


def metrics_of(played: Sequence[tuple[Episode | None, list[PlainRow]]]) -> dict[str, float]:
    """Return numbers of a batch; SkyRL averages those with "avg" in their names over batches, and adds up the rest."""
    episodes = [episode for episode, _ in played if episode is not None]
    failed = len(played) - sum(usable(episode, scored=True) for episode in episodes)
    numbers: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        used = episode.metrics
        mine: Mapping[str, float] = {
            "generate/avg_turns": used.turns,
            "generate/avg_tool_calls": used.tool_calls,
            "generate/avg_tool_errors": used.tool_errors,
            "generate/avg_tool_seconds": used.tool_seconds,
            **{f"reward/avg_{name}": part for name, part in episode.score.parts.items()},
        }
        for name, number in mine.items():
            numbers[name].append(float(number))
    return {"generate/failed_episodes": float(failed)} | {name: float(np.mean(all)) for name, all in numbers.items()}


def _experts(row: PlainRow, shape: Sequence[int]) -> Any:
    return None if row.experts is None else row.experts.reshape(len(row.experts), *shape).tolist()
