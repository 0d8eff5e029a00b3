"""One branch as trainers read it: a prompt, a response, and what is known of each token of the response. `Row`.

Invariant: a response begins and ends with a sampled token, and its arrays have one length; prompt and response together
are the branch up to its last sampled token. Over the rows of an episode no token is trained twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from strands_sglang.rollout.episode import Episode
from strands_sglang.tokens import TokenTree, Trajectory, TurnPurpose
from strands_sglang.tokens.branches import counted_turns
from strands_sglang.tokens.origin import Origin
from strands_sglang.tokens.trajectory import laid_flat


class Branches(str, Enum):
    """Which branches of an episode are trained."""

    MAIN = "main"
    """The branch in which the agent came to its end, and nothing else: one row."""
    ALL = "all"
    """Every branch, the main one first; what branches share is trained in one of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A prompt and a response. Arrays are numpy; those of the response have one entry a token of it."""

    prompt_ids: npt.NDArray[np.int32]
    """Tokens before the first sampled one."""
    response_ids: npt.NDArray[np.int32]
    """Tokens from the first sampled one to the last, tool results in between included."""
    loss_mask: npt.NDArray[np.int8]
    """1 on response tokens to train, which are all sampled; else 0."""
    logprobs: npt.NDArray[np.float64]
    """Log-probability of response tokens as the engine reported it; 0.0 where nothing was sampled."""
    versions: npt.NDArray[np.int32]
    """Index into `version_names` of the weights that sampled a response token; -1 where nothing was sampled."""
    version_names: tuple[str | None, ...]
    """Weight versions in order of first use; None is the version an engine did not tell."""
    trajectory: Trajectory = field(repr=False)
    """The branch it was cut from, with whatever follows its last sampled token."""

    @property
    def token_ids(self) -> npt.NDArray[np.int32]:
        """Prompt and response together."""
        return self.trajectory.token_ids[: len(self.prompt_ids) + len(self.response_ids)]

    @property
    def num_turns(self) -> int:
        """Turns with at least one token in the row."""
        return int(self.trajectory.turns[len(self.token_ids) - 1]) + 1

    @classmethod
    def of(cls, trajectory: Trajectory) -> Row | None:
        """Return a branch as a row; None when nothing was sampled in it."""
        sampled = np.flatnonzero(trajectory.origins == Origin.SAMPLED)
        if not len(sampled):
            return None
        first, end = int(sampled[0]), int(sampled[-1]) + 1
        return cls(
            prompt_ids=trajectory.token_ids[:first],
            response_ids=trajectory.token_ids[first:end],
            loss_mask=trajectory.loss_mask[first:end],
            logprobs=trajectory.logprobs[first:end],
            versions=trajectory.versions[first:end],
            version_names=trajectory.version_names,
            trajectory=trajectory,
        )


def rows(episode: Episode, branches: Branches = Branches.MAIN) -> list[Row]:
    """Return what a trainer is given of an episode; empty when nothing was sampled."""
    return tree_rows(episode.tree, branches)


def tree_rows(tree: TokenTree, branches: Branches = Branches.MAIN) -> list[Row]:
    """Return what a trainer is given of a tree; see `rows`."""
    main = tree.main_leaf()
    if main is None:
        return []
    if branches is Branches.MAIN:
        # Not `tree.trajectory`, which trains what a grammar allowed, too.
        counted = counted_turns(tree.turns, TurnPurpose.EPISODE, rejected=False)
        found = [Row.of(laid_flat(tree.id, tree.path(main), counted, main=True))]
    else:
        all_of_them = tree.trajectories()
        found = [Row.of(one) for one in sorted(all_of_them, key=lambda one: one.branch != main.id)]
    return [row for row in found if row is not None and row.loss_mask.any()]
