"""Compares trajectories that were exported to a trainer with the ledger, token by token: `ExportComparison`.

The export is read at most twice: once to note the location and digest of each trajectory, and again only for the
trajectories that differ, to report where.

Invariants: an export agrees only if it contains every recorded trajectory once, with every token, loss mask, logprob,
weight version, turn and origin bit-identical, with the recorded reward if it states one, and nothing else. A row is
read exactly or refused: no value is rounded, wrapped or guessed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from strands_sglang.errors import LedgerError
from strands_sglang.proof.call import ImageFacts, KeptFacts, read_images
from strands_sglang.proof.finding import Finding, FindingKind
from strands_sglang.proof.staleness import StalenessFacts
from strands_sglang.proof.trajectories import COLUMNS, FlatTrajectory

_FORMAT = 1
_NO_REWARD: Any = object()
"""Reward of a row that states none."""
_SCALARS = ("tree", "branch", "turn_ids", "version_names")


class ExportComparison:
    """Comparison of one export with a ledger."""

    def __init__(self, source: Any, *, part: bool = False) -> None:
        """Read an export.

        Args:
            source: Path of a JSON Lines file (`Trajectory.to_dict`) or of a Parquet file, or an iterable of
                trajectories or of their dicts, which is then held in memory.
            part: Whether whole episodes may be missing, such as those of dropped groups. An episode with one exported
                trajectory must have all of them. By default every episode must be in the export.

        Raises:
            LedgerError: The file does not exist or cannot be read.
        """
        self.rows = 0
        self.agreed = 0
        """Number of these that equal the recorded trajectory."""
        self.findings: list[Finding] = []
        self.left_out = 0
        """Finished episodes missing from the export; counted only if that is allowed."""
        self._part = part
        self._rows: _Rows = _open_rows(source)
        self._places: dict[tuple[str, int], tuple[_RowPlace, str, Any]] = {}  # with digest and reward
        for place, row in self._rows:
            self.rows += 1
            self._add_row(place, row)

    @property
    def name(self) -> str | None:
        """File name; None if the export was given in memory."""
        return self._rows.name

    def compare(
        self, flats: Sequence[FlatTrajectory], reward: float | None, staleness: StalenessFacts | None = None
    ) -> None:
        """Compare the trajectories of one episode with the export.

        Args:
            flats: Trajectories of the episode.
            reward: Recorded reward of the episode.
            staleness: What was decided because of the age of its tokens; None: nothing. Too old ones have no loss, and
                an episode that was dropped must not be in the export.
        """
        if staleness is not None and staleness.dropped:
            for flat in flats:
                noted = self._places.pop((flat.episode, flat.branch), None)
                if noted is not None:
                    message = f"the episode was {staleness.decision}, because its group became too old"
                    self._add(noted[0], message, flat.episode, flat.branch, None)
            return
        if staleness is not None:
            flats = [staleness.masked(flat) for flat in flats]
        if self._part and not any((flat.episode, flat.branch) in self._places for flat in flats):
            self.left_out += 1
            return
        for flat in flats:
            self._compare_one(flat, reward)

    def finish(self, episodes: Collection[str] | None = None) -> None:
        """Report exported trajectories that are not recorded.

        Args:
            episodes: Ids of the episodes that were compared; None if all were.
        """
        for (episode, branch), (place, *_) in self._places.items():
            if episodes is None or episode in episodes:
                message = "the ledger has no such trajectory of a finished episode"
                self._add(place, message, episode, branch, None)
        self._places.clear()

    def _compare_one(self, flat: FlatTrajectory, reward: float | None) -> None:
        noted = self._places.pop((flat.episode, flat.branch), None)
        if noted is None:
            self.findings.append(
                Finding(FindingKind.EXPORTED, "the trajectory is not in the export", flat.episode, turn=flat.branch)
            )
            return
        place, digest, stated = noted
        if digest == flat.digest():
            if stated is _NO_REWARD or stated == reward:
                self.agreed += 1
                return
            position, message = None, f"reward is {stated!r:.50}, recorded {reward!r}"
        else:
            position, message = _first_difference(read_row(self._rows.row(place)), flat)
        self._add(place, message, flat.episode, flat.branch, position)

    def _add_row(self, place: _RowPlace, row: Any) -> None:
        try:
            flat = read_row(row)
        except LedgerError as error:
            self._add(place, f"not a trajectory: {error}", None, None, None)
            return
        if (flat.episode, flat.branch) in self._places:
            message = "the trajectory is in the export twice and would be trained twice"
            self._add(place, message, flat.episode, flat.branch, None)
        else:
            reward = row.get("reward", _NO_REWARD) if isinstance(row, Mapping) else _NO_REWARD
            self._places[flat.episode, flat.branch] = (place, flat.digest(), reward)

    def _add(self, place: _RowPlace, message: str, episode: str | None, branch: int | None, token: int | None) -> None:
        where = f"row {place.number} of the export: {message}"
        self.findings.append(Finding(FindingKind.EXPORTED, where, episode, None, branch, token, self.name, place.byte))


def _first_difference(exported: FlatTrajectory, recorded: FlatTrajectory) -> tuple[int | None, str]:
    """Return the first position at which two trajectories differ (None if it is not a token), and what differs."""
    if exported.turn_ids != recorded.turn_ids:
        return None, f"turns are {exported.turn_ids}, recorded {recorded.turn_ids}"
    if exported.version_names != recorded.version_names:
        return None, f"weight versions are {exported.version_names}, recorded {recorded.version_names}"
    if exported.images != recorded.images:
        return None, f"images are {exported.images!r:.200}, recorded {recorded.images!r:.200}"
    if not _same_kept(exported.kept, recorded.kept):
        return None, "kept sets differ"
    places = sorted(_column_differences(exported, recorded))
    counts = (len(exported.token_ids), len(recorded.token_ids))
    if not places:
        return min(counts), f"{counts[0]} tokens, recorded {counts[1]}"
    at, name = places[0]
    ours, theirs = getattr(exported, name)[at].item(), getattr(recorded, name)[at].item()
    more = "" if counts[0] == counts[1] else f"; {counts[0]} tokens in total, recorded {counts[1]}"
    return at, f"{name} of token {at} is {ours!r}, recorded {theirs!r}{more}"


def _same_kept(one: KeptFacts | None, other: KeptFacts | None) -> bool:
    if one is None or other is None:
        return one is other
    same = (np.array_equal(one.token_ids, other.token_ids), np.array_equal(one.offsets, other.offsets))
    return all(same) and one.logprobs.tobytes() == other.logprobs.tobytes()


def _column_differences(exported: FlatTrajectory, recorded: FlatTrajectory) -> Iterator[tuple[int, str]]:
    """Yield the first position at which each column differs, compared bit by bit."""
    count = min(len(exported.token_ids), len(recorded.token_ids))
    for name, kind in COLUMNS.items():
        bits = f"<i{kind.itemsize}"
        ours, theirs = (
            np.ascontiguousarray(getattr(one, name)[:count], kind).view(bits) for one in (exported, recorded)
        )
        different = ours != theirs
        if different.any():
            yield int(different.argmax()), name


def read_row(row: Any) -> FlatTrajectory:
    """Return a row of an export as a trajectory.

    Args:
        row: A trajectory, a dict of its fields, or the exception that reading the row raised.

    Raises:
        LedgerError: The row is not a trajectory.
    """
    if isinstance(row, Exception):
        raise LedgerError(str(row))
    if isinstance(row, Mapping):
        if row.get("format", _FORMAT) != _FORMAT:
            raise LedgerError(f"format must be {_FORMAT}, got {row['format']!r:.50}")
        fields: Mapping[str, Any] = row
    else:
        fields = {name: getattr(row, name, None) for name in (*COLUMNS, *_SCALARS, "images", "kept")}
    missing = [name for name in (*COLUMNS, *_SCALARS) if fields.get(name) is None]
    if missing:
        raise LedgerError(f"missing {', '.join(missing)}")
    turn_ids, names = tuple(fields["turn_ids"]), tuple(fields["version_names"])
    if not turn_ids or not all(type(id) is int for id in turn_ids) or turn_ids[-1] != fields["branch"]:
        raise LedgerError(f"branch must be the last of turn_ids, got {fields['branch']!r:.50} and {turn_ids!r:.100}")
    if not isinstance(fields["tree"], str) or not all(isinstance(name, str | None) for name in names):
        raise LedgerError(f"tree and version_names must be strings, got {fields['tree']!r:.50} and {names!r:.100}")
    columns: dict[str, Any] = {name: _column(name, fields[name], kind) for name, kind in COLUMNS.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) != 1:
        raise LedgerError(f"columns have different lengths: {lengths}")
    images = _images(fields.get("images"), columns["token_ids"])
    kept = _kept(fields.get("kept"), lengths["token_ids"])
    about: dict[str, Any] = {"turn_ids": turn_ids, "version_names": names, "images": images, "kept": kept}
    return FlatTrajectory(episode=fields["tree"], **about, **columns)


def _kept(values: Any, count: int) -> KeptFacts | None:
    """Return the kept sets of a row; None if it has none."""
    if values is None:
        return None
    parts = [
        values.get(name) if isinstance(values, Mapping) else getattr(values, name, None)
        for name in ("token_ids", "offsets", "logprobs")
    ]
    if any(part is None for part in parts):
        raise LedgerError("kept sets must have token_ids, offsets and logprobs")
    ids, offsets = (_column("kept", part, np.dtype("<i4")) for part in parts[:2])
    logprobs = _column("kept", parts[2], np.dtype("<f8"))
    if len(offsets) != count + 1 or len(logprobs) != count or offsets[0] or offsets[-1] != len(ids):
        raise LedgerError(f"{count} tokens but kept sets for {len(offsets) - 1}")
    return KeptFacts(ids, offsets, logprobs)


def _images(values: Any, token_ids: npt.NDArray[np.int32]) -> tuple[ImageFacts, ...]:
    """Return the images of a row: each a list, or in a Parquet file an object."""
    if not values:
        return ()
    rows = [list(one.values()) if isinstance(one, Mapping) else list(one) for one in values]
    return read_images([[*row[:3], list(row[3])] if len(row) == 4 else row for row in rows], token_ids)


def _column(name: str, values: Any, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    try:
        given = np.asarray(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise LedgerError(f"{name}: {error}") from error
    if not given.size and given.ndim == 1:
        return np.empty(0, kind)
    if given.ndim != 1 or given.dtype.kind not in ("iu" if kind.kind == "i" else "iuf"):
        raise LedgerError(f"{name} must be a list of numbers, got shape {given.shape} and type {given.dtype}")
    kept = given.astype(kind)
    if kind.kind == "i" and not np.array_equal(kept, given):
        raise LedgerError(f"{name}: values do not fit {kind.itemsize * 8} bits")
    return kept


@dataclass(frozen=True, slots=True)
class _RowPlace:
    """Location of a row in an export."""

    number: int
    byte: int | None = None
    """Offset in the file; None if it is unknown or there is no file."""


class _Rows:
    """Rows in memory: trajectories, or dicts of their fields."""

    name: str | None = None
    """File name; None if there is no file."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows = list(rows)

    def __iter__(self) -> Iterator[tuple[_RowPlace, Any]]:
        for number, row in enumerate(self._rows):
            yield _RowPlace(number), row

    def row(self, place: _RowPlace) -> Any:
        """Return one row again."""
        return self._rows[place.number]


class _JsonLinesRows(_Rows):
    """One JSON object per line."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path

    def __iter__(self) -> Iterator[tuple[_RowPlace, Any]]:
        at = number = 0
        with self._path.open("rb") as file:
            for line in file:
                if line.strip():
                    yield _RowPlace(number, at), _parse_line(line)
                    number += 1
                at += len(line)

    def row(self, place: _RowPlace) -> Any:
        with self._path.open("rb") as file:
            file.seek(place.byte or 0)
            return _parse_line(file.readline())


class _ParquetRows(_Rows):
    """One trajectory per row, with its fields as columns."""

    def __init__(self, path: Path) -> None:
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise LedgerError(f"{path} is a Parquet file: install pyarrow to read it") from error
        self.name = path.name
        try:
            self._file: Any = parquet.ParquetFile(path)
        except (OSError, ValueError) as error:
            raise LedgerError(f"{path} cannot be read: {error}") from error
        wanted = (*COLUMNS, *_SCALARS, "images", "kept", "reward")
        self._columns = [name for name in wanted if name in self._file.schema_arrow.names]

    def __iter__(self) -> Iterator[tuple[_RowPlace, Any]]:
        number = 0
        for batch in self._file.iter_batches(batch_size=64, columns=self._columns):
            for at in range(batch.num_rows):
                yield _RowPlace(number), _parquet_fields(batch, at)
                number += 1

    def row(self, place: _RowPlace) -> Any:
        left = place.number
        for group in range(self._file.num_row_groups):
            count = self._file.metadata.row_group(group).num_rows
            if left < count:
                return _parquet_fields(self._file.read_row_group(group, columns=self._columns), left)
            left -= count
        raise LedgerError(f"{self.name} has no row {place.number}")


def _open_rows(source: Any) -> _Rows:
    """Return the rows of an export, given as a path or an iterable.

    Raises:
        LedgerError: The file does not exist or cannot be read.
    """
    if not isinstance(source, str | Path):
        return _Rows(source)
    path = Path(source)
    if not path.is_file():
        raise LedgerError(f"{path} is not a file")
    with path.open("rb") as file:
        return _ParquetRows(path) if file.read(4) == b"PAR1" else _JsonLinesRows(path)


def _parse_line(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return LedgerError(f"not JSON: {error}")


def _parquet_fields(table: Any, row: int) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in table.schema.names:
        value = table.column(name)[row]
        inside = name in COLUMNS and value.is_valid
        fields[name] = value.values.to_numpy(zero_copy_only=False) if inside else value.as_py()
    return fields
