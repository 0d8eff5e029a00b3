"""Rows as one block of numpy arrays, padded to one length: `padded_batch`. For a training loop of one's own.

Invariant: every array of the block has one row for each row that went in, in the same order, and position i of a row
is the same token in each of them; nothing is trained, and nothing attended to, where there is padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.ledger import Ledger
from strands_sglang.rollout.episode import Episode
from strands_sglang.trainers.branch import Branch, Source, branches_of
from strands_sglang.trainers.row import Branches, Row, rows

_EPSILON = 1e-6
"""Added to a standard deviation, as the trainers do."""


class Side(str, Enum):
    """Where padding goes."""

    LEFT = "left"
    """Before the tokens, so that all rows end together."""
    RIGHT = "right"
    """Behind the tokens, so that all rows begin together."""


class Advantages(str, Enum):
    """What goes into a batch besides rewards."""

    NONE = "none"
    """Nothing."""
    GROUP = "group"
    """Rewards compared within each group: minus the mean of its episodes, divided by their standard deviation. Each
    episode counts once; one without a reward does not count and gets 0.0."""


class PaddedBatch(dict[str, Any]):
    """Arrays by name, `version_names` among the attributes. `L` is the length of the longest row.

    ===============  ========  =======  ==========================================================================
    name             shape     type     content
    ===============  ========  =======  ==========================================================================
    input_ids        (rows, L) int64    tokens; `pad_token_id` where there is none
    attention_mask   (rows, L) int64    1 on tokens
    position_ids     (rows, L) int64    0, 1, ... on tokens; 0 on padding
    response_mask    (rows, L) int64    1 from the first sampled token to the last
    loss_mask        (rows, L) int64    1 on tokens to train; 0 throughout where the episode has no score
    logprobs         (rows, L) float32  as the engine reported them; 0.0 where nothing was sampled
    versions         (rows, L) int32    index into `version_names`; -1 where nothing was sampled
    rewards          (rows,)   float32  of the episode; nan where there is none
    group_ids        (rows,)   int64    the same for rows of one task, from 0
    rollout_ids      (rows,)   int64    the same for rows of one episode, from 0
    main             (rows,)   bool     whether it is the branch in which the agent of the task came to its end
    advantages       (rows, L) float32  on tokens to train, else 0.0; only where they were asked for
    ===============  ========  =======  ==========================================================================
    """

    version_names: tuple[str | None, ...] = ()
    """Weight versions of the batch in order of first use; None is the version an engine did not tell."""
    agents: tuple[str | None, ...] = ()
    """Of each row the name of the agent, or of the node of a graph, that made it; None: not known."""

    def to_torch(self) -> dict[str, Any]:
        """Return the arrays as tensors on the CPU.

        Raises:
            ImportError: torch is not installed.
        """
        try:
            import torch
        except ImportError as error:
            raise ImportError("tensors need PyTorch: pip install torch; the arrays themselves do not") from error
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in self.items()}


class _Item(NamedTuple):
    row: Row
    reward: float | None
    group: str
    rollout: str
    trained: bool


def padded_batch(
    source: Source | Iterable[Row | Branch],
    *,
    pad_token_id: int,
    side: Side | str = Side.RIGHT,
    max_length: int | None = None,
    multiple_of: int = 1,
    branches: Branches = Branches.ALL,
    advantages: Advantages | str = Advantages.NONE,
    train_unscored: bool = False,
) -> PaddedBatch:
    """Return rows as one block.

    Args:
        source: Rows, branches or episodes; a run, a ledger, or the directory of a run. Of episodes, rows in which
            nothing is trained are left out. A row alone has no reward, and is a group of its own with those of its
            tree.
        pad_token_id: Token of the padding.
        side: Where it goes.
        max_length: Most tokens of a row; what is behind is cut off. None: any number.
        multiple_of: The length of the block is a multiple of this.
        branches: Which branches of episodes.
        advantages: Whether rewards are compared, too.
        train_unscored: Whether rows of episodes without a score keep their loss mask, where nobody scores them.

    Raises:
        ConfigurationError: No rows, or a length below 1.
    """
    if multiple_of < 1 or (max_length is not None and max_length < 1):
        raise ConfigurationError(f"lengths are at least 1, not max_length={max_length}, multiple_of={multiple_of}")
    items = list(_items(source, branches, train_unscored))
    if not items:
        raise ConfigurationError("there is no row in which something was sampled: nothing to make a batch of")
    lengths = [min(len(item.row.token_ids), max_length or len(item.row.token_ids)) for item in items]
    width = -(-max(lengths) // multiple_of) * multiple_of
    names: dict[str | None, int] = {}
    batch = PaddedBatch(_empty(len(items), width, pad_token_id))
    for at, (item, length) in enumerate(zip(items, lengths, strict=True)):
        first = width - length if Side(side) is Side.LEFT else 0
        _fill(batch, at, slice(first, first + length), item, length, names)
    batch.version_names, batch.agents = tuple(names), tuple(item.row.trajectory.agent for item in items)
    batch["main"] = np.array([item.row.trajectory.main for item in items])
    batch["rewards"] = np.array([np.nan if one.reward is None else one.reward for one in items], np.float32)
    batch["group_ids"], batch["rollout_ids"] = (
        _numbered(one.group for one in items),
        _numbered(one.rollout for one in items),
    )
    if Advantages(advantages) is Advantages.GROUP:
        compared = _compared([one.reward for one in items], batch["group_ids"], batch["rollout_ids"])
        batch["advantages"] = (compared[:, None] * batch["loss_mask"]).astype(np.float32)
    return batch


def _items(source: Any, branches: Branches, unscored: bool) -> Iterator[_Item]:
    if isinstance(source, (Ledger, str, Path)):
        source = branches_of(source, branches=branches)
    for one in source:
        if isinstance(one, Episode):
            for row in rows(one, branches):
                yield _Item(row, one.reward, one.task.id, one.id, unscored or one.reward is not None)
        elif isinstance(one, Branch):
            found = one.row
            if found is not None:
                trained = unscored or one.reward is not None
                yield _Item(found, one.reward, one.task_id, one.episode, trained)
        else:
            yield _Item(one, None, one.trajectory.tree, one.trajectory.tree, True)


def _empty(count: int, width: int, pad_token_id: int) -> dict[str, npt.NDArray[Any]]:
    shape = (count, width)
    whole = {
        name: np.zeros(shape, np.int64) for name in ("attention_mask", "position_ids", "response_mask", "loss_mask")
    }
    ids = np.full(shape, pad_token_id, np.int64)
    return {
        "input_ids": ids,
        **whole,
        "logprobs": np.zeros(shape, np.float32),
        "versions": np.full(shape, -1, np.int32),
    }


def _fill(batch: PaddedBatch, at: int, place: slice, item: _Item, length: int, names: dict[str | None, int]) -> None:
    """Write a row into its place, versions numbered over the whole batch."""
    row = item.row
    first = min(len(row.prompt_ids), length)
    response, kept = slice(place.start + first, place.stop), length - first
    batch["input_ids"][at, place] = row.token_ids[:length]
    batch["attention_mask"][at, place] = 1
    batch["position_ids"][at, place] = np.arange(length)
    batch["response_mask"][at, response] = 1
    batch["loss_mask"][at, response] = row.loss_mask[:kept] if item.trained else 0
    batch["logprobs"][at, response] = row.logprobs[:kept]
    numbers = np.array([*(names.setdefault(name, len(names)) for name in row.version_names), -1], np.int32)
    batch["versions"][at, response] = numbers[row.versions[:kept]]  # -1 finds the last entry, which is -1


def _numbered(keys: Iterable[str]) -> npt.NDArray[np.int64]:
    known: dict[str, int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], np.int64)


def _compared(
    rewards: list[float | None], groups: npt.NDArray[np.int64], rollouts: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return what each row is worth against its group, every episode counted once."""
    values = np.array([np.nan if reward is None else reward for reward in rewards])
    compared = np.zeros(len(values))
    for group in np.unique(groups):
        places = np.flatnonzero((groups == group) & np.isfinite(values))
        worth = values[places][np.unique(rollouts[places], return_index=True)[1]]
        if len(worth) > 1 and worth.min() < worth.max():
            compared[places] = (values[places] - worth.mean()) / (worth.std(ddof=1) + _EPSILON)
    return compared
