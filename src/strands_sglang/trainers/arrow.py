"""Episodes in memory as an Arrow table: `to_arrow`. Needs the extra `arrow`.

Invariant: a run in memory and its ledger make the same table, column by column (`ledger/table.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from strands_sglang.extras import install
from strands_sglang.ledger.table import SCHEMA
from strands_sglang.trainers.branch import Source, episodes_of

try:
    import pyarrow as pa
except ImportError as error:
    raise ImportError(f"tables need pyarrow: {install('arrow')}") from error

_BATCH_ROWS = 256


def to_arrow(source: Source) -> pa.Table:
    """Return the trajectories of episodes as an Arrow table, in memory: one row a branch.

    For a run that is on disk `ledger.table.write_parquet` writes the same rows without holding them.

    Args:
        source: A run, any episodes, a ledger, or the directory of a run.
    """
    return pa.Table.from_batches(_batches(source), SCHEMA)


def _batches(source: Source) -> Iterator[pa.RecordBatch]:
    waiting: list[dict[str, Any]] = []
    for row in _rows(source):
        waiting.append(row)
        if len(waiting) >= _BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(waiting, schema=SCHEMA)
            waiting = []
    if waiting:
        yield pa.RecordBatch.from_pylist(waiting, schema=SCHEMA)


def _rows(source: Source) -> Iterator[dict[str, Any]]:
    for episode in episodes_of(source):
        about = {
            "episode": episode.id,
            "task_id": episode.task.id,
            "sample": episode.sample,
            "reward": episode.reward,
            "ended": episode.ended.value,
            "task": orjson.dumps(episode.task.to_dict()).decode(),
            "metrics": orjson.dumps(episode.metrics.to_dict()).decode(),
        }
        for flat in episode.trajectories:
            yield {**about, "num_turns": flat.num_turns, **{name: getattr(flat, name) for name in _OF_TRAJECTORY}}


_OF_TRAJECTORY = (
    *("token_ids", "loss_mask", "logprobs", "versions", "turns", "origins"),
    *("version_names", "turn_ids", "branch", "tree", "agent", "main"),
)
