"""Episodes for your own trainer: padded batches (`padded_batch`) and JSON lines (`write_jsonl`, `read_jsonl`).

A line of a file has the fields of `Trajectory.to_dict` and those of a `Branch`. `strands-sglang verify --exported`
checks such a file against the ledger.

Invariants: every array of a batch has one row per input row, in the same order, and position i of a row is the same
token in each array (kept sets are flat, and found by their offsets); padding is neither trained nor attended to.
Reading a file returns what was written, logprobs bit for bit. A file exists completely or not at all, and one line is
in memory at a time.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from strands_sglang._files import replace_file
from strands_sglang.errors import ConfigurationError, RecordError
from strands_sglang.ledger.reader import Ledger
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode
from strands_sglang.tokens import Trajectory
from strands_sglang.trainers.rows import Branch, Branches, Row, Source, branches_of, rows
from strands_sglang.trainers.statuses import STATUS_BY_END, status_of

logger = logging.getLogger(__name__)

_EPSILON = 1e-6


class Side(str, Enum):
    """The side that is padded."""

    LEFT = "left"
    """Before the tokens, so that all rows end at the same position."""
    RIGHT = "right"
    """After the tokens, so that all rows begin at the same position."""


class Advantages(str, Enum):
    """Which advantages a batch contains."""

    NONE = "none"
    GROUP = "group"
    """Reward minus the mean of the group's episodes, divided by their standard deviation. Each episode counts once; an
    episode without a reward does not count and gets 0.0."""


class PaddedBatch(dict[str, Any]):
    """Arrays by name, with `version_names` and `agents` as attributes. `L` is the length of the longest row.

    ===============  ========  =======  ==========================================================================
    name             shape     type     content
    ===============  ========  =======  ==========================================================================
    input_ids        (rows, L) int64    tokens; `pad_token_id` on padding
    attention_mask   (rows, L) int64    1 on tokens
    position_ids     (rows, L) int64    0, 1, ... on tokens; 0 on padding
    response_mask    (rows, L) int64    1 from the first sampled token to the last
    loss_mask        (rows, L) int64    1 on tokens to train; 0 throughout if the episode is not trained
    logprobs         (rows, L) float32  as the engine reported them; 0.0 on tokens not sampled
    versions         (rows, L) int32    index into `version_names`; -1 on tokens not sampled
    rewards          (rows,)   float32  of the episode; nan if it has none
    group_ids        (rows,)   int64    the same for rows of one task, from 0
    rollout_ids      (rows,)   int64    the same for rows of one episode, from 0
    main             (rows,)   bool     whether it is the branch that gave the episode's answer
    advantages       (rows, L) float32  on tokens to train, else 0.0; only if requested
    kept_ids         (sum,)    int32    the kept sets of all tokens, one after the other; only if sampling has them
    kept_offsets     (rows, L+1) int64  where the kept set of each token begins in `kept_ids`, and where the last ends
    kept_logprobs    (rows, L) float32  logprobs over the kept sets, of the policy that sampled
    kept_known       (rows,)   bool     whether the kept sets of the row are known; if not, its loss mask is 0
    kept_block       (rows, L, K) int32 kept set of each token, -1 after its ids; only if requested
    kept_mask        (rows, L, K) bool  where `kept_block` has an id; only if requested
    teacher_logprobs (rows, L) float32  a teacher's logprobs of the tokens, 0.0 on tokens not sampled; only if every
                                        row has them
    teacher_top_ids  (rows, L, K) int32 the teacher's likeliest ids, -1 on tokens not sampled; only if requested
    teacher_top_logprobs (rows, L, K)   their logprobs, float32
    ===============  ========  =======  ==========================================================================
    """

    version_names: tuple[str | None, ...] = ()
    """Weight versions of the batch in order of first use; None if the engine did not report a version."""
    agents: tuple[str | None, ...] = ()
    """For each row the name of the agent, or of the graph node, that produced it; None if unknown."""

    def to_torch(self) -> dict[str, Any]:
        """Return the arrays as tensors on the CPU."""
        try:
            import torch
        except ImportError as error:
            raise ImportError("to_torch() requires PyTorch: pip install torch (the arrays do not)") from error
        return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in self.items()}


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
    kept_block: bool = False,
) -> PaddedBatch:
    """Return rows as one padded block.

    Args:
        source: Rows, branches or episodes; or the result of a run, a ledger, or the directory of a run. Rows of
            episodes in which nothing is trained are left out. A `Row` on its own has no reward; rows of one tree form
            a group.
        max_length: Maximum number of tokens of a row; the rest is cut off at the end. None means no maximum.
        multiple_of: The length of the block is rounded up to a multiple of this.
        train_unscored: Whether episodes without a reward keep their loss mask, for runs without a reward function.
            Failed and aborted episodes are not trained in any case.
        kept_block: Whether to add the kept sets as one padded block. `K` is the size of the
            largest set, so one token with 4,096 candidates makes it 16 KB per token.

    Example:
        >>> batch = padded_batch(run, pad_token_id=tokenizer.pad_token_id, advantages="group")
    """
    if multiple_of < 1 or (max_length is not None and max_length < 1):
        raise ConfigurationError(
            f"max_length and multiple_of must be at least 1, got max_length={max_length}, multiple_of={multiple_of}"
        )
    items = list(_items(source, branches, train_unscored))
    if not items:
        raise ConfigurationError("source must contain a row with a sampled token, got none to make a batch of")
    lengths = [min(len(item.row.token_ids), max_length or len(item.row.token_ids)) for item in items]
    width = -(-max(lengths) // multiple_of) * multiple_of
    names: dict[str | None, int] = {}
    starts = [width - length if Side(side) is Side.LEFT else 0 for length in lengths]
    places = [slice(start, start + length) for start, length in zip(starts, lengths, strict=True)]
    batch = PaddedBatch(_empty(len(items), width, pad_token_id))
    for at, (item, place) in enumerate(zip(items, places, strict=True)):
        _fill(batch, at, place, item, names)
    batch.version_names, batch.agents = tuple(names), tuple(item.row.trajectory.agent for item in items)
    batch["main"] = np.array([item.row.trajectory.main for item in items])
    batch["rewards"] = np.array([np.nan if one.reward is None else one.reward for one in items], np.float32)
    batch["group_ids"] = numbered(one.group for one in items)
    batch["rollout_ids"] = numbered(one.rollout for one in items)
    _add_kept(batch, items, places, padded=kept_block)
    _add_teacher(batch, items, places)
    if Advantages(advantages) is Advantages.GROUP:
        compared = group_advantages([one.reward for one in items], batch["group_ids"], batch["rollout_ids"])
        batch["advantages"] = (compared[:, None] * batch["loss_mask"]).astype(np.float32)
    return batch


def _add_kept(batch: PaddedBatch, items: list[_Item], places: list[slice], *, padded: bool) -> None:
    """Rows without kept sets are not trained."""
    sets = [item.row.trajectory.kept for item in items]
    known = np.array([kept is not None for kept in sets])
    if not known.any():
        return
    if not known.all():
        logger.warning(
            "rows=<%d>, without_sets=<%d> | rows whose kept sets are unknown are not trained",
            len(items),
            int((~known).sum()),
        )
        batch["loss_mask"][~known] = 0
    rows, width = batch["input_ids"].shape
    sizes, ids = np.zeros((rows, width), np.int64), array("i")
    batch["kept_logprobs"] = np.zeros((rows, width), np.float32)
    for at, (kept, place) in enumerate(zip(sets, places, strict=True)):
        if kept is not None:
            part = kept.part(0, place.stop - place.start)
            sizes[at, place] = np.diff(np.asarray(part.offsets))
            batch["kept_logprobs"][at, place] = part.logprobs
            ids += part.token_ids
    ends = np.concatenate(([0], np.cumsum(sizes)))
    batch["kept_ids"], batch["kept_known"] = np.asarray(ids), known
    batch["kept_offsets"] = np.lib.stride_tricks.sliding_window_view(ends, width + 1)[::width].copy()
    if padded:
        batch["kept_mask"] = np.arange(sizes.max())[None, None, :] < sizes[:, :, None]
        batch["kept_block"] = np.full(batch["kept_mask"].shape, -1, np.int32)
        batch["kept_block"][batch["kept_mask"]] = batch["kept_ids"]


def _add_teacher(batch: PaddedBatch, items: list[_Item], places: list[slice]) -> None:
    known = [item.row.trajectory.teacher for item in items]
    tops = {None if teacher is None else teacher.top for teacher in known}
    top = tops.pop()
    if tops or top is None:
        return
    shape = batch["input_ids"].shape
    batch["teacher_logprobs"] = np.zeros(shape, np.float32)
    if top:
        batch["teacher_top_ids"] = np.full((*shape, top), -1, np.int32)
        batch["teacher_top_logprobs"] = np.zeros((*shape, top), np.float32)
    for at, (teacher, place) in enumerate(zip(known, places, strict=True)):
        assert teacher is not None
        length = place.stop - place.start
        batch["teacher_logprobs"][at, place] = teacher.logprobs[:length]
        if top:
            batch["teacher_top_ids"][at, place] = teacher.top_id_rows[:length]
            batch["teacher_top_logprobs"][at, place] = teacher.top_logprob_rows[:length]


def _items(source: Any, branches: Branches, unscored: bool) -> Iterator[_Item]:
    if isinstance(source, (Ledger, str, Path)):
        source = branches_of(source, branches=branches)
    for one in source:
        if isinstance(one, Episode):
            for row in rows(one, branches):
                trained = status_of(one).trained and (unscored or one.reward is not None)
                yield _Item(row, one.reward, one.task.id, one.id, trained)
        elif isinstance(one, Branch):
            found = one.row
            if found is not None:
                trained = STATUS_BY_END[EndReason(one.end_reason)].trained
                trained = trained and (unscored or one.reward is not None)
                yield _Item(found, one.reward, one.task_id, one.episode, trained)
        else:
            yield _Item(one, None, one.trajectory.tree, one.trajectory.tree, True)


def _empty(count: int, width: int, pad_token_id: int) -> dict[str, npt.NDArray[Any]]:
    shape = (count, width)
    names = ("attention_mask", "position_ids", "response_mask", "loss_mask")
    return {
        "input_ids": np.full(shape, pad_token_id, np.int64),
        **{name: np.zeros(shape, np.int64) for name in names},
        "logprobs": np.zeros(shape, np.float32),
        "versions": np.full(shape, -1, np.int32),
    }


def _fill(batch: PaddedBatch, at: int, place: slice, item: _Item, names: dict[str | None, int]) -> None:
    row, length = item.row, place.stop - place.start
    first = min(len(row.prompt_ids), length)
    response, kept = slice(place.start + first, place.stop), length - first
    batch["input_ids"][at, place] = row.token_ids[:length]
    batch["attention_mask"][at, place] = 1
    batch["position_ids"][at, place] = np.arange(length)
    batch["response_mask"][at, response] = 1
    batch["loss_mask"][at, response] = row.loss_mask[:kept] if item.trained else 0
    batch["logprobs"][at, response] = row.logprobs[:kept]
    numbers = np.array([*(names.setdefault(name, len(names)) for name in row.version_names), -1], np.int32)
    batch["versions"][at, response] = numbers[row.versions[:kept]]  # index -1 finds the last entry, which is -1


def numbered(keys: Iterable[str]) -> npt.NDArray[np.int64]:
    """Return a number for each key, from 0, the same for equal keys."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], np.int64)


def group_advantages(
    rewards: list[float | None], groups: npt.NDArray[np.int64], rollouts: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return the advantage of each row in its group, in which each rollout counts once; see `Advantages.GROUP`."""
    values = np.array([np.nan if reward is None else reward for reward in rewards])
    compared = np.zeros(len(values))
    for group in np.unique(groups):
        places = np.flatnonzero((groups == group) & np.isfinite(values))
        worth = values[places][np.unique(rollouts[places], return_index=True)[1]]
        if len(worth) > 1 and worth.min() < worth.max():
            compared[places] = (values[places] - worth.mean()) / (worth.std(ddof=1) + _EPSILON)
    return compared


_FIELDS = ("episode", "task_id", "sample", "reward", "end_reason", "main", "parts", "agent")


def write_jsonl(
    source: Source,
    path: Path | str,
    *,
    branches: Branches = Branches.ALL,
    keep: Callable[[Episode], bool] | None = None,
) -> int:
    """Write one line per branch, replacing the file if it exists; return the number of lines.

    Example:
        >>> write_jsonl("runs/first", "rows.jsonl", keep=lambda episode: episode.reward is not None)
        128
    """
    lines = 0
    with replace_file(Path(path)) as temporary, temporary.open("wb") as file:
        for branch in branches_of(source, branches=branches, keep=keep):
            file.write(orjson.dumps(_plain(branch), option=orjson.OPT_APPEND_NEWLINE))
            lines += 1
    return lines


def read_jsonl(path: Path | str) -> Iterator[Branch]:
    """Read what `write_jsonl` wrote, one line at a time.

    Example:
        >>> rewards = [branch.reward for branch in read_jsonl("rows.jsonl")]
    """
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                branch = _branch(orjson.loads(line))
            except (orjson.JSONDecodeError, KeyError, TypeError, RecordError) as error:
                raise RecordError(f"{path}, line {number}: {error}") from error
            yield branch


def _plain(branch: Branch) -> dict[str, Any]:
    return {**{name: getattr(branch, name) for name in _FIELDS}, **branch.trajectory.to_dict()}


def _branch(line: dict[str, Any]) -> Branch:
    trajectory = Trajectory.from_dict(line)
    known: dict[str, Any] = {name: line[name] for name in _FIELDS if name != "agent"}
    known["agent"] = line.get("agent")  # older files do not have it
    if not isinstance(known["main"], bool) or not isinstance(known["reward"], (int, float, type(None))):
        raise RecordError(
            f"main must be a bool and reward a number or null, got {known['main']!r:.50} and {known['reward']!r:.50}"
        )
    return Branch(trajectory, **known)
