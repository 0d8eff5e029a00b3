"""A ledger as a table, one row a trajectory: Arrow, Parquet, Hugging Face `datasets`. Needs the extra `arrow`.

Invariant: a row gives back its trajectory exactly, logprobs bit by bit; rows are made a batch at a time, so that
writing a file takes no more memory for a larger run.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from strands_sglang.errors import CountMismatchError, LedgerError, RecordError
from strands_sglang.extras import install
from strands_sglang.ledger.ledger import Ledger
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.tokens import Trajectory

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
SCHEMA = pa.schema(
    {
        "episode": pa.string(),  # task id, "/", number of the sample
        "task_id": pa.string(),
        "sample": pa.int32(),
        "reward": pa.float64(),  # null: not scored
        "ended": pa.string(),  # why the episode ended; null: it did not
        "branch": pa.int32(),  # id of the branch's last turn
        "num_turns": pa.int32(),
        "agent": pa.string(),  # who made the branch: an agent's name, or that of a graph's node; null: not known
        "main": pa.bool_(),  # whether it is the branch in which the agent of the task came to its end
        **{name: pa.list_(kind) for name, kind in _PER_TOKEN.items()},  # as in `Trajectory`
        "version_names": pa.list_(pa.string()),
        "turn_ids": pa.list_(pa.int32()),
        "tree": pa.string(),
        "task": pa.string(),  # JSON
        "metrics": pa.string(),  # JSON
    }
)
"""The columns, in order. Those of a `Trajectory` bear the names of its fields."""

_BATCH_TOKENS = 1 << 20
_PLAIN = ["episode", "task_id", "ended", "agent", "tree", "task", "metrics", "version_names.list.element"]


def finished(record: EpisodeRecord) -> bool:
    """Return whether an episode has its end on record: what a table has rows of, unless told otherwise."""
    return record.finished


def to_arrow(source: Ledger | Path | str, *, keep: Callable[[EpisodeRecord], bool] = finished) -> pa.Table:
    """Return the trajectories of a run as an Arrow table, in memory.

    Args:
        source: The ledger, or the directory of the run.
        keep: Which episodes to take.
    """
    return pa.Table.from_batches(_batches(source, keep), SCHEMA)


def write_parquet(
    source: Ledger | Path | str, path: Path | str, *, keep: Callable[[EpisodeRecord], bool] = finished
) -> int:
    """Write the trajectories of a run to a Parquet file, in the place of one that may be there.

    Args:
        source: The ledger, or the directory of the run.
        path: The file; it is there whole, or not at all.
        keep: Which episodes to take.

    Returns:
        The number of rows.
    """
    target = Path(path)
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    rows = 0
    try:
        # Halves of logprobs that a 32-bit float held are zeros: put together, they cost nothing.
        split = ["logprobs.list.element"]
        with pq.ParquetWriter(
            fresh, SCHEMA, compression="zstd", use_dictionary=_PLAIN, use_byte_stream_split=split
        ) as writer:
            for batch in _batches(source, keep):
                writer.write_batch(batch)
                rows += batch.num_rows
        fresh.replace(target)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise
    return rows


def to_dataset(source: Ledger | Path | str, *, keep: Callable[[EpisodeRecord], bool] = finished) -> Any:
    """Return the trajectories of a run as a `datasets.Dataset`, in memory.

    For a run that does not fit there: `write_parquet`, then `datasets.load_dataset("parquet", data_files=...)`.

    Args:
        source: The ledger, or the directory of the run.
        keep: Which episodes to take.
    """
    try:
        from datasets import Dataset
    except ImportError as error:
        raise ImportError(f"this needs datasets: {install('arrow')}") from error
    return Dataset(to_arrow(source, keep=keep))


def trajectories_of(path: Path | str) -> Iterator[Trajectory]:
    """Read the trajectories that `write_parquet` wrote, a batch at a time.

    Raises:
        LedgerError: It is not a file of trajectories.
        RecordError: A row that does not fit together.
    """
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise LedgerError(f"{path} cannot be read: {error}") from error
    with file:
        columns = [*_PER_TOKEN, "version_names", "turn_ids", "branch", "tree"]
        if missing := sorted(set(columns) - set(file.schema_arrow.names)):
            raise LedgerError(f"{path} has no column {', '.join(missing)}")
        columns += [name for name in ("agent", "main") if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=64, columns=columns):
            for number in range(batch.num_rows):
                row = {name: batch.column(name)[number] for name in columns}
                yield trajectory_of({name: _read(name, value) for name, value in row.items()})


def trajectory_of(row: Mapping[str, Any]) -> Trajectory:
    """Return the trajectory of a row of any of these tables, as a dict of its columns.

    Raises:
        RecordError: It does not fit together.
    """
    try:
        arrays = {name: np.array(row[name], kind.to_pandas_dtype()) for name, kind in _PER_TOKEN.items()}
        names, turn_ids = tuple(row["version_names"]), tuple(int(id) for id in row["turn_ids"])
        agent, main = row.get("agent"), row.get("main") is True  # older tables have neither
        branch, tree = int(row["branch"]), row["tree"]
        trajectory = Trajectory(
            **arrays, version_names=names, branch=branch, tree=tree, turn_ids=turn_ids, agent=agent, main=main
        )
        trajectory.validate()
    except (KeyError, TypeError, ValueError, OverflowError, CountMismatchError) as error:
        raise RecordError(f"not a trajectory: {error!r}") from error
    return trajectory


def _read(name: str, value: Any) -> Any:
    if name in _PER_TOKEN and value.is_valid:
        return value.values.to_numpy(zero_copy_only=False)
    return value.as_py()


def _batches(source: Ledger | Path | str, keep: Callable[[EpisodeRecord], bool]) -> Iterator[pa.RecordBatch]:
    rows: list[tuple[dict[str, Any], Trajectory]] = []
    tokens = 0
    ledger = source if isinstance(source, Ledger) else Ledger(source)
    for record in ledger.episodes():
        if record.begin is None or not keep(record):
            continue
        about = _about(record)
        for trajectory in record.trajectories():
            rows.append((about, trajectory))
            tokens += len(trajectory)
        if tokens >= _BATCH_TOKENS:
            yield _batch(rows)
            rows, tokens = [], 0
    if rows:
        yield _batch(rows)


def _about(record: EpisodeRecord) -> dict[str, Any]:
    """Return what the rows of an episode have in common."""
    assert record.begin is not None
    begin, reward = record.begin.data, None if record.reward is None else record.reward.data
    end = {} if record.end is None else record.end.data
    return {
        "episode": record.id,
        "task_id": begin["task"]["id"],
        "sample": begin["sample"],
        "reward": None if reward is None else reward["value"],
        "ended": end.get("ended"),
        "task": orjson.dumps(begin["task"]).decode(),
        "metrics": orjson.dumps(end.get("metrics", {})).decode(),
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
    for name in rows[0][0]:
        columns[name] = _plain([about[name] for about, _ in rows], name)
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _plain(values: Iterable[Any], name: str) -> pa.Array:
    return pa.array(values, SCHEMA.field(name).type)
