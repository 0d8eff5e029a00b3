"""Trajectories as a table, one row per trajectory: Arrow, Parquet, Hugging Face `datasets`. Needs the extra `arrow`.

Invariants: a row restores its trajectory exactly, logprobs bit for bit. A run in memory and its ledger give the same
rows. Rows are built in batches, so the memory to write a file does not grow with the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import orjson

from strands_sglang._checks import install
from strands_sglang._files import replace_file
from strands_sglang.errors import LedgerError, RecordError
from strands_sglang.ledger.event import BeginData, EndData, RewardData, data_of
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.tokens import Trajectory
from strands_sglang.tokens.trajectory import TRAJECTORY_FORMAT

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise ImportError(f"tables need pyarrow: {install('arrow')}") from error

__all__ = ["SCHEMA", "finished", "to_arrow", "to_dataset", "trajectories_of", "trajectory_of", "write_parquet"]

_PER_TOKEN = {
    "token_ids": pa.int32(),
    "loss_mask": pa.int8(),
    "logprobs": pa.float64(),
    "versions": pa.int32(),
    "turns": pa.int32(),
    "origins": pa.int8(),
}
_IMAGE = pa.struct(
    {"start": pa.int32(), "positions": pa.int32(), "digest": pa.string(), "grid": pa.list_(pa.int32(), 3)}
)
_KEPT = pa.struct(
    {"token_ids": pa.list_(pa.int32()), "offsets": pa.list_(pa.int32()), "logprobs": pa.list_(pa.float64())}
)
_TEACHER = pa.struct(
    {
        "logprobs": pa.list_(pa.float64()),
        "top_ids": pa.list_(pa.int32()),
        "top_logprobs": pa.list_(pa.float64()),
        "top": pa.int32(),
    }
)
SCHEMA = pa.schema(
    {
        "episode": pa.string(),  # task id, "/", sample number
        "task_id": pa.string(),
        "sample": pa.int32(),
        "reward": pa.float64(),  # null: not scored
        "end_reason": pa.string(),  # why the episode ended; null: it has not ended
        "branch": pa.int32(),  # id of the branch's last turn
        "num_turns": pa.int32(),
        "agent": pa.string(),  # agent or graph node that made the branch; null: unknown
        "main": pa.bool_(),  # whether this branch gave the episode's answer
        **{name: pa.list_(kind) for name, kind in _PER_TOKEN.items()},  # as in `Trajectory`
        "version_names": pa.list_(pa.string()),
        "turn_ids": pa.list_(pa.int32()),
        "images": pa.list_(_IMAGE),  # as in `Trajectory`
        "kept": _KEPT,  # as in `Trajectory`; null: not recorded
        "teacher": _TEACHER,  # as in `Trajectory`; null: not scored by a teacher
        "tree": pa.string(),
        "task": pa.string(),  # JSON
        "metrics": pa.string(),  # JSON
    }
)
"""The columns, in order. Columns of a trajectory are named after the fields of `Trajectory`."""

_OTHER = ("version_names", "turn_ids", "branch", "tree", "agent", "main", "images", "kept", "teacher")
_BATCH_TOKENS = 1 << 20
_DICTIONARY = ["episode", "task_id", "end_reason", "agent", "tree", "task", "metrics", "version_names.list.element"]


class FinishedEpisode(Protocol):
    """An episode in memory, as `rollout` returns it: the attributes of `runs.Episode` that a table needs."""

    id: str
    """Id of the episode: task id, "/", sample number."""
    sample: int

    @property
    def task(self) -> Any:
        """Its task: has `id` and `to_dict()`."""

    @property
    def reward(self) -> float | None:
        """Its reward; None: not scored."""

    @property
    def end_reason(self) -> Any:
        """Why it ended: an enum with a string value."""

    @property
    def metrics(self) -> Any:
        """Its counts and times: has `to_dict()`."""

    @property
    def trajectories(self) -> Sequence[Trajectory]:
        """The trajectory of every branch."""


Source: TypeAlias = "Ledger | Path | str | Iterable[FinishedEpisode]"
"""A ledger, a run directory, or episodes in memory."""


def finished(record: EpisodeRecord) -> bool:
    """Return whether an episode has ended, and was not dropped for the age of its group: the default filter."""
    return record.finished and not record.dropped


def to_arrow(source: Source, *, keep: Callable[[EpisodeRecord], bool] = finished) -> pa.Table:
    """Return trajectories as an Arrow table in memory, one row per trajectory.

    A run in memory and its ledger give the same rows.

    Args:
        source: A ledger, a run directory, or episodes in memory.
        keep: Which episodes of a ledger to include. Episodes in memory are all included.

    Raises:
        LedgerError: The path is not a run directory.
    """
    return pa.Table.from_batches(_batches(source, keep), SCHEMA)


def write_parquet(source: Source, path: Path | str, *, keep: Callable[[EpisodeRecord], bool] = finished) -> int:
    """Write trajectories to a Parquet file atomically, replacing an existing file. Rows are written in batches.

    Args:
        source: A ledger, a run directory, or episodes in memory.
        path: The file.
        keep: Which episodes of a ledger to include. Episodes in memory are all included.

    Returns:
        The number of rows.

    Raises:
        LedgerError: The source is a path that is not a run directory.
    """
    rows = 0
    # Most logprobs are exact 32-bit floats: the lower halves of their doubles are zeros, which compress to nothing
    # when the bytes are split into streams.
    split = ["logprobs.list.element"]
    with (
        replace_file(Path(path)) as temporary,
        pq.ParquetWriter(
            temporary, SCHEMA, compression="zstd", use_dictionary=_DICTIONARY, use_byte_stream_split=split
        ) as writer,
    ):
        for batch in _batches(source, keep):
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def to_dataset(source: Source, *, keep: Callable[[EpisodeRecord], bool] = finished) -> Any:
    """Return trajectories as a `datasets.Dataset` in memory.

    For a run that does not fit in memory use `write_parquet`, then
    `datasets.load_dataset("parquet", data_files=...)`.

    Args:
        source: A ledger, a run directory, or episodes in memory.
        keep: Which episodes of a ledger to include. Episodes in memory are all included.
    """
    try:
        from datasets import Dataset
    except ImportError as error:
        raise ImportError(f"to_dataset needs datasets: {install('arrow')}") from error
    return Dataset(to_arrow(source, keep=keep))


def trajectories_of(path: Path | str) -> Iterator[Trajectory]:
    """Yield the trajectories of a file that `write_parquet` wrote, reading it in batches.

    Raises:
        LedgerError: The file is not a Parquet file of trajectories.
        RecordError: A row is inconsistent.
    """
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise LedgerError(f"{path} cannot be read: {error}") from error
    with file:
        columns = [*_PER_TOKEN, *_OTHER]
        if missing := sorted(set(columns) - set(file.schema_arrow.names)):
            raise LedgerError(f"{path} has no column {', '.join(missing)}")
        for batch in file.iter_batches(batch_size=64, columns=columns):
            for number in range(batch.num_rows):
                row = {name: batch.column(name)[number] for name in columns}
                yield trajectory_of({name: _read(name, value) for name, value in row.items()})


def trajectory_of(row: Mapping[str, Any]) -> Trajectory:
    """Return the trajectory of a row of any of these tables.

    Args:
        row: The columns of the row, by name.

    Raises:
        RecordError: The row is inconsistent.
    """
    try:
        images = [(one["start"], one["positions"], one["digest"], one["grid"]) for one in row["images"]]
        branch, ids = int(row["branch"]), [int(id) for id in row["turn_ids"]]
        data = {name: row[name] for name in (*_PER_TOKEN, *_OTHER)}
        data |= {"branch": branch, "turn_ids": ids, "images": images, "main": bool(row["main"])}
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"not a trajectory: {error!r}") from error
    return Trajectory.from_dict({**data, "format": TRAJECTORY_FORMAT})


def _read(name: str, value: Any) -> Any:
    if name in _PER_TOKEN and value.is_valid:
        return value.values.to_numpy(zero_copy_only=False)
    return value.as_py()


def _batches(source: Source, keep: Callable[[EpisodeRecord], bool]) -> Iterator[pa.RecordBatch]:
    rows: list[tuple[dict[str, Any], Trajectory]] = []
    tokens = 0
    for about, trajectories in _episodes(source, keep):
        rows += [(about, trajectory) for trajectory in trajectories]
        tokens += sum(map(len, trajectories))
        if tokens >= _BATCH_TOKENS:
            yield _batch(rows)
            rows, tokens = [], 0
    if rows:
        yield _batch(rows)


def _episodes(
    source: Source, keep: Callable[[EpisodeRecord], bool]
) -> Iterator[tuple[dict[str, Any], Sequence[Trajectory]]]:
    """Yield, for each episode, the columns that all its rows share, and its trajectories."""
    if not isinstance(source, (Ledger, Path, str)):
        for episode in source:
            about = episode.task.to_dict(), episode.sample, episode.reward, episode.end_reason.value
            yield _about(episode.id, *about, episode.metrics.to_dict()), episode.trajectories
        return
    ledger = source if isinstance(source, Ledger) else Ledger(source)
    if not isinstance(source, Ledger) and not len(ledger):
        _ = ledger.run  # raises if the path is not a run directory
    for record in ledger.episodes():
        if record.begin is not None and keep(record):
            yield _about_record(record), record.trajectories()


def _about_record(record: EpisodeRecord) -> dict[str, Any]:
    assert record.begin is not None
    begin = data_of(record.begin, BeginData)
    end = None if record.end is None else data_of(record.end, EndData)
    reward = None if record.reward is None else data_of(record.reward, RewardData)["value"]
    end_reason, metrics = (None, {}) if end is None else (end["end_reason"], end["metrics"])
    return _about(record.id, begin["task"], begin["sample"], reward, end_reason, metrics)


def _about(
    id: str, task: Mapping[str, Any], sample: int, reward: float | None, end_reason: str | None, metrics: Any
) -> dict[str, Any]:
    return {
        "episode": id,
        "task_id": task["id"],
        "sample": sample,
        "reward": reward,
        "end_reason": end_reason,
        "task": orjson.dumps(task).decode(),
        "metrics": orjson.dumps(metrics).decode(),
    }


def _batch(rows: list[tuple[dict[str, Any], Trajectory]]) -> pa.RecordBatch:
    trajectories = [trajectory for _, trajectory in rows]
    offsets = pa.array(np.cumsum([0, *map(len, trajectories)], dtype=np.int32))
    columns: dict[str, Any] = {}
    for name, kind in _PER_TOKEN.items():
        values = np.concatenate([getattr(trajectory, name) for trajectory in trajectories])
        columns[name] = pa.ListArray.from_arrays(offsets, pa.array(values, kind))
    for name in ("branch", "num_turns", "agent", "main", "version_names", "turn_ids", "tree"):
        columns[name] = _plain([getattr(trajectory, name) for trajectory in trajectories], name)
    columns["images"] = _plain([[image._asdict() for image in one.images] for one in trajectories], "images")
    for name in ("kept", "teacher"):
        found = [getattr(trajectory, name) for trajectory in trajectories]
        columns[name] = _plain([None if value is None else value.to_dict() for value in found], name)
    for name in rows[0][0]:
        columns[name] = _plain([about[name] for about, _ in rows], name)
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _plain(values: Iterable[Any], name: str) -> pa.Array:
    return pa.array(values, SCHEMA.field(name).type)
