"""What a trainer is given of an episode, whatever became of it, in plain lists: `PlainRow`.

Invariant: there is at least one row for each episode, its lists fit together, prompt and response are not empty, and it
has a reward. What must not be trained (a failed episode, one that could not be scored) has loss mask 0 throughout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.episode import Episode
from strands_sglang.trainers.row import Branches, Row, rows


@dataclass(frozen=True, slots=True)
class PlainRow:
    """A prompt and a response."""

    prompt_ids: list[int]
    """Tokens before the first sampled one; at least one."""
    response_ids: list[int]
    """Tokens from the first sampled one to the last; at least one."""
    loss_mask: list[int]
    """1 on response tokens to train; all 0 where the row is there to fill its place."""
    logprobs: list[float]
    """Log-probability of response tokens as the engine reported it; 0.0 where nothing was sampled."""
    versions: list[str | None]
    """Weights that sampled each response token; None where nothing was sampled, or the engine did not tell."""
    reward: float | None
    """What the episode is worth; 0.0 where that is not known; None where nobody scores episodes."""
    num_turns: int
    """Turns in the row; 0 where nothing was sampled."""
    agent: str | None = None
    """Name of the agent, or of the node of a graph, that made it; None: not known."""
    main: bool = True
    """Whether it is the branch in which the agent of the task came to its end."""
    experts: npt.NDArray[np.int32] | None = None
    """Routed experts, one row a token but the last of prompt and response; None when not asked for."""

    @property
    def token_ids(self) -> list[int]:
        """Prompt and response together."""
        return self.prompt_ids + self.response_ids


def plain_rows(
    episode: Episode | None,
    *,
    pad_id: int,
    scored: bool,
    branches: Branches = Branches.MAIN,
) -> list[PlainRow]:
    """Return the rows of an episode, the one of its main branch last.

    Args:
        episode: What was run; None: nothing could be.
        pad_id: A token to fill a row with where there are none.
        scored: Whether a reward function was given, so that one that is missing is a failure.
        branches: Which branches are trained.
    """
    reward = None if episode is None else episode.reward
    if scored and reward is None:
        reward = 0.0
    found = [] if episode is None else rows(episode, branches)
    if episode is None or not found:
        return [PlainRow([pad_id], [pad_id], [0], [0.0], [None], reward, 0)]
    trained = usable(episode, scored=scored)
    return [_plain(row, reward, trained, episode) for row in reversed(found)]


def usable(episode: Episode, *, scored: bool) -> bool:
    """Return whether an episode may be trained on: nothing broke in it, and it has the reward it should have."""
    whole = not episode.ended.failed and episode.ended not in (Ended.CUT_SHORT, Ended.SUSPENDED)
    return whole and (episode.reward is not None or not scored)


def stop_reason(episode: Episode | None) -> str:
    """Return how an episode ended in the words of an engine: "stop", "length" or "abort"."""
    if episode is None or episode.ended.failed or episode.ended in (Ended.CUT_SHORT, Ended.SUSPENDED):
        return "abort"
    cut = (Ended.TURN_LIMIT, Ended.TOOL_LIMIT, Ended.TOKEN_LIMIT, Ended.TURN_CUT, Ended.CONTEXT, Ended.TIMEOUT)
    return "length" if episode.ended in cut else "stop"


def _plain(row: Row, reward: float | None, trained: bool, episode: Episode) -> PlainRow:
    mask = row.loss_mask if trained else np.zeros_like(row.loss_mask)
    names = (*row.version_names, None)  # -1, where nothing was sampled, is the last
    experts = episode.routed_experts.get(row.trajectory.branch)
    return PlainRow(
        prompt_ids=row.prompt_ids.tolist(),
        response_ids=row.response_ids.tolist(),
        loss_mask=mask.tolist(),
        logprobs=row.logprobs.tolist(),
        versions=[names[index] for index in row.versions.tolist()],
        reward=reward,
        num_turns=row.num_turns,
        agent=row.trajectory.agent,
        main=row.trajectory.main,
        experts=None if experts is None else experts.decode()[: len(row.token_ids) - 1],
    )
