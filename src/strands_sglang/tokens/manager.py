"""One branch of a tree as flat lists: `TokenManager`, the view that most users need.

Invariant: at any time, all flat lists have one entry per token of the branch, in the same order.
"""

from __future__ import annotations

from strands_sglang.tokens.trajectory import Trajectory, flatten_branch
from strands_sglang.tokens.tree import TokenTree
from strands_sglang.tokens.turn import Segment, Turn, TurnPurpose


class TokenManager:
    """The tokens of one branch: by default the branch that the episode continued last.

    Each list is built on access, in time proportional to the branch: read it once, then index it.

    Example:
        agent("What is 12 * 7?")
        manager = model.token_manager
        manager.token_ids, manager.loss_mask, manager.logprobs
        manager.segments[0]  # the first prompt: system, tools and user
    """

    def __init__(self, tree: TokenTree | None = None) -> None:
        self.tree = TokenTree() if tree is None else tree
        """The tree whose branch is shown."""
        self._followed: Turn | None = None

    @property
    def leaf(self) -> Turn | None:
        """Last turn of the branch: the one followed, else the last kept turn of the episode; None without turns."""
        if self._followed is not None:
            return self._followed
        kept = (turn for turn in reversed(self.tree.turns) if turn.purpose is TurnPurpose.EPISODE and not turn.rejected)
        return next(kept, None)

    def follow(self, turn: Turn | None) -> None:
        """Show the branch that ends with `turn`, whatever is committed later; None: the episode's last branch again."""
        if turn is not None:
            self.tree.path(turn)
        self._followed = turn

    def reset(self) -> None:
        """Start a new, empty tree. The old tree is not changed."""
        self.tree = TokenTree()
        self._followed = None

    def __len__(self) -> int:
        leaf = self.leaf
        return 0 if leaf is None else leaf.end

    @property
    def token_ids(self) -> list[int]:
        """The ids of the branch."""
        leaf = self.leaf
        return [] if leaf is None else self.tree.ids(leaf).tolist()

    @property
    def loss_mask(self) -> list[int]:
        """1 on sampled tokens, except those of rejected turns; else 0."""
        mask: list[int] = self.trajectory().loss_mask.tolist()
        return mask

    @property
    def logprobs(self) -> list[float]:
        """Log-probability of each sampled token; 0.0 for every other, because trainers refuse None; see the mask."""
        logprobs: list[float] = self.trajectory().logprobs.tolist()
        return logprobs

    @property
    def segments(self) -> list[Segment]:
        """The branch in runs of one origin, without empty ones; `segments[0]` is the prompt: system, tools and user."""
        leaf = self.leaf
        path = [] if leaf is None else self.tree.path(leaf)
        return [segment for turn in path for segment in turn.segments()]

    @property
    def segment_info(self) -> list[tuple[bool, int]]:
        """For each segment, whether it was sampled and how many tokens it has."""
        return [(segment.sampled, len(segment)) for segment in self.segments]

    def trajectory(self) -> Trajectory:
        """Return the branch as a trajectory; without a turn it is empty and its `branch` is -1."""
        leaf = self.leaf
        return flatten_branch(self.tree.id, [], ()) if leaf is None else self.tree.trajectory(leaf)
