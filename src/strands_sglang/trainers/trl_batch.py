"""Episodes as TRL's rollout function returns them: `batch_of`.

Invariant: every prompt gets one entry in every list, whatever became of its episode; ids, mask and logprobs of a
completion have one length, at least 1; only tokens that were sampled, by the weights that are trained, are not masked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from strands_sglang.rollout import Episode
from strands_sglang.trainers.row import Row, rows

REWARD = "strands_reward"
"""Key of the rewards, one a prompt; None where there is none."""
EPISODE = "episode"
"""Key of the episodes, one a prompt, for reward functions of the user's own."""
AGENT = "strands_agent"
"""Key of the names of the agents that made what is trained, one a prompt; None where that is not known."""
FIGURES = "strands_figures"
"""Key of the step's numbers, by name."""


class Masked(str, Enum):
    """Why nothing of an episode is trained."""

    FAILED = "failed"
    """The engine or the agent's code broke."""
    EMPTY = "empty"
    """Nothing was sampled in its main branch."""
    STALE = "stale"
    """Some of it was sampled by other weights than those that are trained."""


@dataclass(frozen=True, slots=True)
class Place:
    """What one prompt gets."""

    episode: Episode
    """Its episode."""
    row: Row | None
    """Its main branch; None: nothing was sampled in it."""
    masked: Masked | None
    """Why nothing of it is trained; None: it is trained."""

    @classmethod
    def of(cls, episode: Episode, version: str | None = None) -> Place:
        """Look at an episode.

        Args:
            episode: However it ended.
            version: Weights that must have sampled every token to train; None: whichever did.
        """
        row = next(iter(rows(episode)), None)
        masked = None
        if episode.ended.failed:
            masked = Masked.FAILED
        elif row is None:
            masked = Masked.EMPTY
        elif version is not None and versions_of(row) != {version}:
            masked = Masked.STALE
        return cls(episode, row, masked)


def versions_of(row: Row) -> set[str | None]:
    """Return the weight versions that sampled the tokens to train."""
    return {row.version_names[number] for number in np.unique(row.versions[row.loss_mask.astype(bool)])}


def batch_of(places: Sequence[Place], *, pad: int, longest: int | None) -> dict[str, Any]:
    """Return what TRL reads of a rollout: `prompt_ids`, `completion_ids`, `logprobs`, `env_mask`, and our own keys.

    Args:
        places: One for each prompt, in their order.
        pad: Token that stands where nothing was sampled.
        longest: Tokens a completion may have; what is beyond is cut off. None: any number.
    """
    batch: dict[str, Any] = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": []}
    for place in places:
        row = place.row
        if row is None:
            # TRL looks at the last token of each completion and pads prompts as integers: neither may be empty.
            entry: tuple[list[Any], ...] = ([pad], [pad], [0.0], [0])
        else:
            mask = row.loss_mask[:longest] if place.masked is None else np.zeros_like(row.loss_mask[:longest])
            entry = (
                row.prompt_ids.tolist() or [pad],
                row.response_ids[:longest].tolist(),
                row.logprobs[:longest].tolist(),
                mask.tolist(),
            )
        for values, value in zip(batch.values(), entry, strict=True):
            values.append(value)
    batch[REWARD] = [None if place.masked else place.episode.reward for place in places]
    batch[AGENT] = [None if place.row is None else place.row.trajectory.agent for place in places]
    batch[EPISODE] = [place.episode for place in places]
    return batch


def trl_reward(
    prompts: Sequence[Any],
    strands_reward: Sequence[float | None] | None = None,
    strands_figures: Sequence[Mapping[str, float]] = (),
    log_metric: Any = None,
    **_: Any,
) -> list[float | None]:
    """The reward function to give TRL: hands on what `reward=` said of each episode, and logs the step's numbers.

    An episode that failed, or that nobody scored, has None, which TRL leaves out of the group's mean.

    Args:
        prompts: What TRL asks about.
        strands_reward: Rewards from `trl_rollout`.
        strands_figures: The step's numbers, the same for every prompt.
        log_metric: TRL's way to log a number.
        **_: Whatever else TRL hands to reward functions.
    """
    if log_metric is not None and len(strands_figures):
        for name, value in strands_figures[0].items():
            log_metric(name, value)
    return [None] * len(prompts) if strands_reward is None else list(strands_reward)
