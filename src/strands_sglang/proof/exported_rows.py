"""The rows of an export, wherever they are: JSON lines, Parquet, memory.

Invariant: a row is read as what it says or refused; no value is rounded, wrapped or guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from strands_sglang.errors import LedgerError
from strands_sglang.proof.flat import COLUMNS, FlatTrajectory

UNTOLD: Any = object()
"""The reward of a row that names none."""

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ExportedRow:
    """Where a row of an export is."""

    number: int
    """Its number, from 0."""
    byte: int | None = None
    """Where in the file it begins; None: not known, or no file."""


class Rows:
    """Rows in memory. Each is a trajectory, or a dict of its fields."""

    name: str | None = None
    """Name of the file; None: no file."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows = list(rows)

    def __iter__(self) -> Iterator[tuple[ExportedRow, Any]]:
        for number, row in enumerate(self._rows):
            yield ExportedRow(number), row

    def row(self, place: ExportedRow) -> Any:
        """Return one row again."""
        return self._rows[place.number]


class _JsonLines(Rows):
    """One JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path

    def __iter__(self) -> Iterator[tuple[ExportedRow, Any]]:
        at = number = 0
        with self._path.open("rb") as file:
            for line in file:
                if line.strip():
                    yield ExportedRow(number, at), _object(line)
                    number += 1
                at += len(line)

    def row(self, place: ExportedRow) -> Any:
        with self._path.open("rb") as file:
            file.seek(place.byte or 0)
            return _object(file.readline())


class _Parquet(Rows):
    """A Parquet file with one trajectory a row and its fields as columns."""

    def __init__(self, path: Path) -> None:
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise LedgerError(f"{path} is a Parquet file: reading it needs pyarrow") from error
        self.name = path.name
        try:
            self._file: Any = parquet.ParquetFile(path)
        except (OSError, ValueError) as error:
            raise LedgerError(f"{path} cannot be read: {error}") from error
        wanted = (*COLUMNS, *_SCALARS, "reward")
        self._columns = [name for name in wanted if name in self._file.schema_arrow.names]

    def __iter__(self) -> Iterator[tuple[ExportedRow, Any]]:
        number = 0
        for batch in self._file.iter_batches(batch_size=64, columns=self._columns):
            for at in range(batch.num_rows):
                yield ExportedRow(number), _fields(batch, at)
                number += 1

    def row(self, place: ExportedRow) -> Any:
        left = place.number
        for group in range(self._file.num_row_groups):
            count = self._file.metadata.row_group(group).num_rows
            if left < count:
                return _fields(self._file.read_row_group(group, columns=self._columns), left)
            left -= count
        raise LedgerError(f"{self.name} has no row {place.number}")


def rows_of(source: Any) -> Rows:
    """Return the rows of an export.

    Args:
        source: A path, or an iterable of trajectories or of their dicts.

    Raises:
        LedgerError: There is no such file.
    """
    if not isinstance(source, str | Path):
        return Rows(source)
    path = Path(source)
    if not path.is_file():
        raise LedgerError(f"{path} is not a file")
    with path.open("rb") as file:
        return _Parquet(path) if file.read(4) == b"PAR1" else _JsonLines(path)


def read_row(row: Any) -> FlatTrajectory:
    """Return a row as a trajectory.

    Raises:
        LedgerError: It is none.
    """
    if isinstance(row, Exception):
        raise LedgerError(str(row))
    if isinstance(row, Mapping):
        if row.get("format", _FORMAT) != _FORMAT:
            raise LedgerError(f"of format {row['format']!r:.50}")
        fields: Mapping[str, Any] = row
    else:
        fields = {name: getattr(row, name, None) for name in (*COLUMNS, *_SCALARS)}
    missing = [name for name in (*COLUMNS, *_SCALARS) if fields.get(name) is None]
    if missing:
        raise LedgerError(f"without {', '.join(missing)}")
    turn_ids, names = tuple(fields["turn_ids"]), tuple(fields["version_names"])
    if not turn_ids or not all(type(id) is int for id in turn_ids) or turn_ids[-1] != fields["branch"]:
        raise LedgerError(f"branch {fields['branch']!r:.50} of turns {turn_ids!r:.100}")
    if not isinstance(fields["tree"], str) or not all(isinstance(name, str | None) for name in names):
        raise LedgerError(f"tree {fields['tree']!r:.50} with weight versions {names!r:.100}")
    columns = {name: _column(name, fields[name], kind) for name, kind in COLUMNS.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) != 1:
        raise LedgerError(f"columns of different lengths: {lengths}")
    return FlatTrajectory(episode=fields["tree"], turn_ids=turn_ids, version_names=names, **columns)


def reward_of(row: Any) -> Any:
    """Return the reward that a row names: a number, None, or `UNTOLD`."""
    return row.get("reward", UNTOLD) if isinstance(row, Mapping) else UNTOLD


_SCALARS = ("tree", "branch", "turn_ids", "version_names")


def _column(name: str, values: Any, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    try:
        given = np.asarray(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise LedgerError(f"{name}: {error}") from error
    if not given.size and given.ndim == 1:
        return np.empty(0, kind)
    if given.ndim != 1 or given.dtype.kind not in ("iu" if kind.kind == "i" else "iuf"):
        raise LedgerError(f"{name} of shape {given.shape} and type {given.dtype}")
    kept = given.astype(kind)
    if kind.kind == "i" and not np.array_equal(kept, given):
        raise LedgerError(f"{name}: values that do not fit {kind.itemsize * 8} bits")
    return kept


def _object(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return LedgerError(f"no JSON: {error}")


def _fields(table: Any, row: int) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in table.schema.names:
        value = table.column(name)[row]
        inside = name in COLUMNS and value.is_valid
        fields[name] = value.values.to_numpy(zero_copy_only=False) if inside else value.as_py()
    return fields
