"""Episodes for TRL's asynchronous GRPO, which forwards tokens that samples share once: `tree_rows`.

Its `TreeRow.add` takes these dicts, and `RolloutSample(**row)` is what its trainer's queue takes.

Invariant: over the rows of an episode every trained token has mask 1 once, at a position after the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from strands_sglang.errors import ConfigurationError
from strands_sglang.trainers.exports import group_advantages, numbered
from strands_sglang.trainers.rows import Branches, Row, Source, episodes_of, rows
from strands_sglang.trainers.statuses import is_trainable


def tree_rows(
    source: Source, *, branches: Branches = Branches.ALL, model_version: Callable[[str | None], int] | None = None
) -> list[dict[str, Any]]:
    """Return every trained branch as a sample of TRL's asynchronous GRPO, with its group's advantage.

    Args:
        source: The result of a run, episodes, a ledger, or the directory of a run. Failed episodes, and those without a
            reward, are left out.
        branches: Which branches of an episode are samples; all of them have its advantage.
        model_version: Returns the number of a weight version; the oldest of a row's trained tokens counts. None:
            versions must be decimal numbers, or "default", which is 0.

    Example:
        >>> for row in tree_rows("runs/first"):
        ...     packed.add(row)
    """
    number = model_version or _number
    found: list[tuple[Any, Row]] = []
    for episode in episodes_of(source):
        if is_trainable(episode, scored=True):
            found += [(episode, row) for row in rows(episode, branches)]
    groups = numbered(episode.task.id for episode, _ in found)
    rollouts = numbered(episode.id for episode, _ in found)
    advantages = group_advantages([episode.reward for episode, _ in found], groups, rollouts)
    samples = []
    for at, (episode, row) in enumerate(found):
        first = len(row.prompt_ids)
        used = {row.version_names[index] for index in set(row.versions[row.loss_mask == 1].tolist())}
        samples.append(
            {
                "prompt": [{"role": "user", "content": episode.task.prompt}],
                "completion": [{"role": "assistant", "content": episode.text if row.trajectory.main else ""}],
                "input_ids": row.token_ids.astype(np.int64),
                "completion_mask": np.concatenate([np.zeros(first, np.int64), row.loss_mask.astype(np.int64)]),
                "old_log_probs": np.concatenate([np.zeros(first), row.logprobs]).astype(np.float32),
                "advantage": float(advantages[at]),
                "group_id": int(groups[at]),
                "model_version": min(map(number, used)),
                "metrics": {"reward": float(episode.reward), "turns": float(row.num_turns)},
            }
        )
    return samples


def _number(version: str | None) -> int:
    if version == "default":
        return 0
    if version is None or not version.isdecimal():
        raise ConfigurationError(
            f"a weight version must be a decimal number, got {version!r}: pass tree_rows(model_version=...), which "
            "returns its number"
        )
    return int(version)
