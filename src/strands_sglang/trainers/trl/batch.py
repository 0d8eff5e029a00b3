"""Episodes as the batch that TRL's rollout function returns: `Completion`, `batch_of`, `trl_reward`.

Invariant: every prompt has one entry in every list, however its episode ended. Ids, mask and logprobs of a completion
have the same length, at least 1. Only tokens sampled by the weights that are trained have mask 1.

The engine samples the tokens and the trainer scores them again. If the two differ by more than rounding, the loss is
computed for a different policy than the one that acted. TRL corrects for this only with vLLM, so `logprob_drift`
measures it, on exactly the tokens that are trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import Episode
from strands_sglang.trainers.rows import Row, rows
from strands_sglang.trainers.statuses import status_of

REWARD = "strands_reward"
"""One per prompt; None for an episode without a reward."""
EPISODE = "episode"
"""One per prompt, for the user's own reward functions."""
AGENT = "strands_agent"
"""Names of the agents, one per prompt; None if unknown."""
METRICS = "strands_metrics"


class MaskReason(str, Enum):
    """Why an episode is not trained."""

    FAILED = "failed"
    """The engine or the agent's code failed, or the run ended the episode."""
    EMPTY = "empty"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Completion:
    """What TRL gets for one prompt."""

    episode: Episode
    row: Row | None
    masked: MaskReason | None

    @classmethod
    def of(cls, episode: Episode, version: str | None = None) -> Completion:
        """Return the completion of an episode.

        It is not trained if its tokens are too old, or of unknown age although the trainer names the current `version`;
        without a decision about that (`Episode.staleness`), if another version sampled it. None accepts any.
        """
        row, staleness = next(iter(rows(episode)), None), episode.staleness
        masked = None
        if staleness is not None and (staleness.dropped or (row is None and staleness.too_old)):
            masked = MaskReason.STALE
        elif not status_of(episode).trained:
            masked = MaskReason.FAILED
        elif row is None:
            masked = MaskReason.EMPTY
        elif version is not None and (
            versions_of(row) != {version} if staleness is None else None in map(staleness.ages.get, versions_of(row))
        ):
            masked = MaskReason.STALE
        return cls(episode, row, masked)


def versions_of(row: Row) -> set[str | None]:
    """Return the versions of the weights that sampled the tokens to train."""
    return {row.version_names[number] for number in np.unique(row.versions[row.loss_mask.astype(bool)])}


def batch_of(completions: Sequence[Completion], *, pad: int, longest: int | None) -> dict[str, Any]:
    """Return TRL's batch: `prompt_ids`, `completion_ids`, `logprobs`, `env_mask`, and this module's own keys.

    `pad` fills an entry in which nothing was sampled. Completions are cut to `longest` tokens; None means no maximum.
    """
    batch: dict[str, Any] = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": []}
    for one in completions:
        row = one.row
        if row is None:
            # TRL reads the last token of each completion and pads prompts as integers: neither may be empty.
            entry: tuple[list[Any], ...] = ([pad], [pad], [0.0], [0])
        else:
            _check_images(row)
            mask = row.loss_mask[:longest] if one.masked is None else np.zeros_like(row.loss_mask[:longest])
            entry = (
                row.prompt_ids.tolist() or [pad],
                row.response_ids[:longest].tolist(),
                row.logprobs[:longest].tolist(),
                mask.tolist(),
            )
        for values, value in zip(batch.values(), entry, strict=True):
            values.append(value)
    batch[REWARD] = [None if one.masked else one.episode.reward for one in completions]
    batch[AGENT] = [None if one.row is None else one.row.trajectory.agent for one in completions]
    batch[EPISODE] = [one.episode for one in completions]
    return batch


def _check_images(row: Row) -> None:
    """A rollout function of TRL cannot return images.

    TRL would use those of the dataset, at positions without the agent's system prompt and tools.
    """
    if row.images:
        raise ConfigurationError(
            f"an episode must not have images, got {len(row.images)}: TRL's rollout_func cannot return them, and TRL "
            "computes the positions of the dataset's images from a prompt without the agent's system prompt and tools. "
            "Train with slime or Miles, or make your own batches of rollout(...)"
        )


def trl_reward(
    prompts: Sequence[Any],
    strands_reward: Sequence[float | None] | None = None,
    strands_metrics: Sequence[Mapping[str, float]] = (),
    log_metric: Any = None,
    **_: Any,
) -> list[float | None]:
    """The reward function to pass to TRL: returns the rewards of `trl_rollout(reward=...)` and logs the step's metrics.

    An episode that failed or was not scored has None, which TRL leaves out of the group's mean.

    Example:
        >>> trainer = GRPOTrainer(..., reward_funcs=[trl_reward], rollout_func=rollouts)
    """
    if log_metric is not None and len(strands_metrics):
        for name, value in strands_metrics[0].items():
            log_metric(name, value)
    return [None] * len(prompts) if strands_reward is None else list(strands_reward)


_CHUNK = 1024  # positions per step: the logits of a whole row in float32 may take gigabytes


@dataclass(frozen=True, slots=True)
class LogprobDrift:
    """Trainer's logprobs minus the engine's, over trained tokens.

    Example:
        >>> logprob_drift(model, rollouts.last.rows).max < 1e-3
        True
    """

    tokens: int
    mean: float
    """Mean of the absolute difference; 0.0 if no tokens were compared."""
    max: float
    bias: float
    """Mean of the signed difference: above 0, the trainer assigns the tokens a higher probability than the engine."""


def logprob_drift(model: Any, rows: Sequence[Row], *, temperature: float = 1.0) -> LogprobDrift:
    """Recompute the logprobs of rows with a model and compare them with the engine's.

    Example:
        >>> drift = logprob_drift(model, rollouts.last.rows, temperature=1.0)
    """
    differences = [trainer_logprobs(model, row, temperature) - row.logprobs for row in rows]
    masks = [row.loss_mask.astype(bool) for row in rows]
    chosen = [difference[mask] for difference, mask in zip(differences, masks, strict=True)]
    found = np.concatenate(chosen) if chosen else np.zeros(0)
    if not len(found):
        return LogprobDrift(0, 0.0, 0.0, 0.0)
    return LogprobDrift(len(found), float(np.abs(found).mean()), float(np.abs(found).max()), float(found.mean()))


def trainer_logprobs(model: Any, row: Row, temperature: float = 1.0) -> Any:
    """Return the model's logprob of each response token of a row, as float64."""
    try:
        import torch
    except ImportError as error:
        raise ImportError("logprob_drift requires PyTorch: pip install torch") from error
    device = next(model.parameters()).device
    ids = torch.as_tensor(np.array(row.token_ids, dtype=np.int64), device=device)
    first = len(row.prompt_ids)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits = model(input_ids=ids[None], use_cache=False).logits[0, first - 1 : -1]
            wanted = ids[first:]
            parts = [
                torch.log_softmax(logits[at : at + _CHUNK].float() / temperature, dim=-1)
                .gather(-1, wanted[at : at + _CHUNK, None])
                .squeeze(-1)
                for at in range(0, len(wanted), _CHUNK)
            ]
    finally:
        model.train(training)
    return torch.cat(parts).double().cpu().numpy()
