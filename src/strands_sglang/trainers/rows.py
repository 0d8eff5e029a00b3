"""One branch of an episode as trainers read it: a prompt, a response, and per-token data of the response.

Invariant: a response begins and ends with a sampled token, and its arrays have the same length. Prompt and response
together are the branch up to its last sampled token. Over the rows of an episode no token is trained twice. A branch
has the same tokens and logprobs, bit for bit, whether it comes from memory, a ledger or a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.reader import Ledger
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode
from strands_sglang.runs.groups import RunResult
from strands_sglang.runs.resume import restored
from strands_sglang.tokens import ImageSpan, KeptSets, TeacherLogprobs, Trajectory, TurnPurpose
from strands_sglang.tokens.trajectory import flatten_branch
from strands_sglang.tokens.tree import selected_turns
from strands_sglang.tokens.turn import Origin
from strands_sglang.trainers.statuses import is_trainable

Source: TypeAlias = RunResult | Iterable[Episode] | Ledger | Path | str


class Branches(str, Enum):
    """Which branches of an episode are trained.

    Example:
        >>> Branches("all") is Branches.ALL
        True
    """

    MAIN = "main"
    ALL = "all"
    """Every branch, the main one first if there is one. Tokens that several share are trained in one of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A prompt and a response as numpy arrays; the arrays of the response have one entry per response token.

    Example:
        >>> row = rows(episode)[0]
        >>> row.response_ids[row.loss_mask == 1]  # the tokens to train
    """

    prompt_ids: npt.NDArray[np.int32]
    """Tokens before the first sampled one."""
    response_ids: npt.NDArray[np.int32]
    """Tokens from the first sampled one to the last, including the tool results in between."""
    loss_mask: npt.NDArray[np.int8]
    """1 on response tokens to train, all of which are sampled; 0 elsewhere."""
    logprobs: npt.NDArray[np.float64]
    """Logprobs of the response tokens as the engine reported them; 0.0 on tokens that were not sampled."""
    versions: npt.NDArray[np.int32]
    """Index into `version_names` of the weights that sampled each token; -1 on tokens that were not sampled."""
    version_names: tuple[str | None, ...]
    """Weight versions in order of first use; None if the engine did not report a version."""
    trajectory: Trajectory = field(repr=False)
    """The branch that the row was cut from, including what follows its last sampled token."""

    @property
    def token_ids(self) -> npt.NDArray[np.int32]:
        """Prompt and response together."""
        return self.trajectory.token_ids[: len(self.prompt_ids) + len(self.response_ids)]

    @property
    def kept(self) -> KeptSets | None:
        """The kept set of each response token, empty where nothing was sampled; None if not recorded for all."""
        kept, first = self.trajectory.kept, len(self.prompt_ids)
        return None if kept is None else kept.part(first, first + len(self.response_ids))

    @property
    def teacher(self) -> TeacherLogprobs | None:
        """A teacher's logprobs of the response tokens, 0.0 where nothing was sampled; None if it was not scored."""
        teacher, first = self.trajectory.teacher, len(self.prompt_ids)
        return None if teacher is None else teacher.part(first, first + len(self.response_ids))

    @property
    def images(self) -> tuple[ImageSpan, ...]:
        """The images among prompt and response, in order; positions count from the first token of the prompt."""
        end = len(self.token_ids)
        return tuple(image for image in self.trajectory.images if image.end <= end)

    @property
    def num_turns(self) -> int:
        """Number of turns with at least one token in the row."""
        return int(self.trajectory.turns[len(self.token_ids) - 1]) + 1

    @classmethod
    def of(cls, trajectory: Trajectory) -> Row | None:
        """Return a branch as a row; None if nothing was sampled in it."""
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
    """Return the rows of an episode in which something is trained; empty if nothing was sampled.

    Raises:
        ConfigurationError: The main branch is wanted, and the answer does not tell which one that is. If there is no
            answer, because the episode ended early, the result is empty.
    """
    tree = episode.tree
    main = tree.main_leaf()
    if branches is Branches.MAIN and main is None:
        if tree.branches() and episode.end_reason is EndReason.ANSWERED:
            raise ConfigurationError(
                f"the main branch of episode {episode.id} is unknown: several agents made branches, and its answer "
                "cannot be told to be the result of one of them. Return that agent's result from the function "
                "(`return await solver.invoke_async(...)`), or name the agent where it is built (`return run, solver`, "
                "or `return graph, writer`); or train every branch: branches='all'"
            )
        return []
    if branches is Branches.MAIN and main is not None:
        # Not `tree.trajectory`: that would also train turns that were decoded under a grammar.
        counted = selected_turns(tree.turns, TurnPurpose.EPISODE, rejected=False)
        old = tree.untrained_versions
        found = [Row.of(flatten_branch(tree.id, tree.path(main), counted, main=True, untrained_versions=old))]
    else:
        trajectories = tree.trajectories()
        found = [Row.of(one) for one in sorted(trajectories, key=lambda one: not one.main)]
    return [row for row in found if row is not None and row.loss_mask.any()]


@dataclass(frozen=True, slots=True)
class PlainRow:
    """A prompt and a response as Python lists, for trainers that take one valid row for every episode.

    Prompt and response are never empty. An episode that must not be trained has loss mask 0 throughout.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    loss_mask: list[int]
    """1 on response tokens to train; 0 throughout if the episode is not trained."""
    logprobs: list[float]
    versions: list[str | None]
    """Weights that sampled each response token; None if it was not sampled or the engine did not report a version."""
    reward: float | None
    """Reward of the episode; 0.0 if it has none; None if no reward function was given."""
    num_turns: int
    agent: str | None = None
    """Name of the agent, or of the graph node, that produced the branch; None if unknown."""
    main: bool = True
    experts: npt.NDArray[np.int32] | None = None
    """Routed experts of every token of prompt and response except the last; None if they were not requested."""
    images: tuple[ImageSpan, ...] = ()
    """Positions count from the first token of the prompt."""
    kept: KeptSets | None = None
    """Kept set of each response token; None if not recorded for all of them."""
    teacher: TeacherLogprobs | None = None
    """A teacher's logprobs of the response tokens; None if it was not scored."""

    @property
    def token_ids(self) -> list[int]:
        """Prompt and response together."""
        return self.prompt_ids + self.response_ids


def plain_rows(
    episode: Episode | None, *, pad_id: int, scored: bool, branches: Branches = Branches.MAIN
) -> list[PlainRow]:
    """Return the rows of an episode, the main branch last; at least one, however the episode ended.

    `scored`: a reward function was given, so an episode without a reward is not trained. `episode` is None if no task
    could be made of the dataset's row.
    """
    reward = None if episode is None else episode.reward
    if scored and reward is None:
        reward = 0.0
    found = [] if episode is None else rows(episode, branches)
    if episode is None or not found:
        return [PlainRow([pad_id], [pad_id], [0], [0.0], [None], reward, 0)]
    trained = is_trainable(episode, scored=scored)
    return [_plain_row(row, reward, trained, episode) for row in reversed(found)]


def _plain_row(row: Row, reward: float | None, trained: bool, episode: Episode) -> PlainRow:
    mask = row.loss_mask if trained else np.zeros_like(row.loss_mask)
    names = (*row.version_names, None)  # index -1, for tokens that were not sampled, finds the appended None
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
        images=row.images,
        kept=row.kept,
        teacher=row.teacher,
    )


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch as a flat trajectory, with fields of its episode. Branches compare by value.

    Example:
        >>> for branch in branches_of("runs/first"):
        ...     print(branch.episode, branch.reward, len(branch.trajectory.token_ids))
    """

    trajectory: Trajectory
    episode: str
    """Task id, "/", number of the sample."""
    task_id: str
    sample: int
    reward: float | None
    """Reward of the episode; None if there was no reward function, or it failed."""
    end_reason: str
    """The value of an `EndReason`."""
    main: bool
    parts: dict[str, float] = field(default_factory=dict)
    """Named numbers that the reward function returned beside the reward."""
    agent: str | None = None
    """Name of the agent, or of the graph node, that produced the branch; None if unknown."""

    @property
    def row(self) -> Row | None:
        """The branch as prompt and response; None if nothing was sampled."""
        return Row.of(self.trajectory)


def episodes_of(source: Source) -> Iterator[Episode]:
    """Yield finished episodes. Those of a ledger are read one at a time, in the ledger's order."""
    if isinstance(source, (Ledger, str, Path)):
        ledger = source if isinstance(source, Ledger) else Ledger(source)
        _ = ledger.run  # raises if there is no run; an empty directory would otherwise be a run without episodes
        yield from (restored(record) for record in ledger.episodes() if record.begin is not None and record.finished)
    else:
        yield from source


def branches_of(
    source: Source, *, branches: Branches = Branches.ALL, keep: Callable[[Episode], bool] | None = None
) -> Iterator[Branch]:
    """Yield the branches of episodes, except those that were dropped because their group became too old.

    Args:
        branches: `ALL` yields every branch, in the order in which they ended. `MAIN` yields the main branch of each
            episode, as if it were the only one, if something is trained in it.
        keep: Returns whether to include an episode; None includes all.

    Example:
        >>> good = list(branches_of(run, keep=lambda episode: (episode.reward or 0) > 0))
    """
    for episode in episodes_of(source):
        if episode.staleness is not None and episode.staleness.dropped:
            continue
        if keep is not None and not keep(episode):
            continue
        every = branches is Branches.ALL
        for flat in episode.tree.trajectories() if every else [row.trajectory for row in rows(episode)]:
            yield Branch(
                trajectory=flat,
                episode=episode.id,
                task_id=episode.task.id,
                sample=episode.sample,
                reward=episode.reward,
                end_reason=episode.end_reason.value,
                main=flat.main,
                agent=flat.agent,
                parts=dict(episode.reward_detail.parts),
            )
