"""One branch of an episode with what is to be known of the episode: `Branch`, what files and tables have a row of.

Invariant: wherever a branch comes from (a run in memory, a ledger, a file), it is the same, logprobs bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from strands_sglang.ledger.ledger import Ledger
from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.result import RolloutResult
from strands_sglang.rollout.resume import restored
from strands_sglang.tokens import Trajectory
from strands_sglang.trainers.row import Branches, Row, tree_rows

Source: TypeAlias = RolloutResult | Iterable[Episode] | Ledger | Path | str
"""Where episodes come from: a run, any episodes, a ledger, or the directory of a run."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch laid flat, and the episode it belongs to. Equal to another by value."""

    trajectory: Trajectory
    """Ids, loss mask, logprobs, versions, turns, origins."""
    episode: str
    """Id of the episode: task id, "/", number of the sample."""
    task_id: str
    """Id of the task: episodes of one task form a group."""
    sample: int
    """Number among the samples of the task, from 0."""
    reward: float | None
    """What the episode is worth; None: nobody scored it, or scoring failed."""
    ended: str
    """Why the episode ended, as the value of an `Ended`."""
    main: bool
    """Whether it is the branch in which the agent came to its end."""
    parts: dict[str, float] = field(default_factory=dict)
    """Numbers beside the reward, by name."""
    agent: str | None = None
    """Name of the agent, or of the node of a graph, that made it; None: not known."""

    @property
    def row(self) -> Row | None:
        """As prompt and response; None when nothing was sampled."""
        return Row.of(self.trajectory)


def episodes_of(source: Source) -> Iterator[Episode]:
    """Yield finished episodes; those of a ledger one at a time, in its order.

    Raises:
        LedgerError: A path without a run.
    """
    if isinstance(source, (Ledger, str, Path)):
        ledger = source if isinstance(source, Ledger) else Ledger(source)
        _ = ledger.run  # says so when there is none; a directory without files would be a run without episodes
        yield from (restored(record) for record in ledger.episodes() if record.begin is not None and record.finished)
    else:
        yield from source


def branches_of(
    source: Source, *, branches: Branches = Branches.ALL, keep: Callable[[Episode], bool] | None = None
) -> Iterator[Branch]:
    """Yield the branches of episodes.

    Args:
        source: Where the episodes come from.
        branches: All of them, in the order in which they ended; or the main one of each episode, as if it were the only
            one, where something is trained in it.
        keep: Which episodes to take; None: all.
    """
    for episode in episodes_of(source):
        if keep is not None and not keep(episode):
            continue
        tree = episode.tree
        whole = branches is Branches.ALL
        for flat in tree.trajectories() if whole else [row.trajectory for row in tree_rows(tree)]:
            yield Branch(
                trajectory=flat,
                episode=episode.id,
                task_id=episode.task.id,
                sample=episode.sample,
                reward=episode.reward,
                ended=episode.ended.value,
                main=flat.main,
                agent=flat.agent,
                parts=dict(episode.score.parts),
            )
