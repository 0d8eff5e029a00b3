"""Trajectories that were handed to a trainer, held against the ledger token by token: `Exported`.

Read twice at most: once to note where each trajectory stands and what its digest is, and again only those that are not
what is on record, to say where they first differ.

Invariant: an export agrees only when it holds every trajectory on record once, with every token, loss mask, logprob,
weight version, turn and origin as recorded, bit by bit, with the reward on record where it names one, and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from strands_sglang.errors import LedgerError
from strands_sglang.proof.exported_rows import UNTOLD, ExportedRow, Rows, read_row, reward_of, rows_of
from strands_sglang.proof.finding import Finding, FindingKind
from strands_sglang.proof.flat import COLUMNS, FlatTrajectory


class Exported:
    """An export that is being held against a ledger."""

    def __init__(self, source: Any, *, part: bool = False) -> None:
        """Look through an export.

        Args:
            source: Path of a file of JSON lines (`Trajectory.to_dict`) or of a Parquet file, or an iterable of
                trajectories or of their dicts, which is then held in memory.
            part: Whether whole episodes may be left out, as those of groups that were dropped; an episode of which
                one trajectory is there must have all. By default every one must be there.

        Raises:
            LedgerError: There is no such file, or it cannot be read.
        """
        self.rows = 0
        """Trajectories it holds."""
        self.agreed = 0
        """Of these, the same as on record."""
        self.findings: list[Finding] = []
        """What is wrong with it, as far as it was compared."""
        self.left_out = 0
        """Finished episodes that are left out; only where that is allowed."""
        self._part = part
        self._rows: Rows = rows_of(source)
        self._places: dict[tuple[str, int], tuple[ExportedRow, str, Any]] = {}  # with its digest and reward
        for place, row in self._rows:
            self.rows += 1
            self._note(place, row)

    @property
    def name(self) -> str | None:
        """Name of its file; None: it is no file."""
        return self._rows.name

    def compare(self, flats: Sequence[FlatTrajectory], reward: float | None) -> None:
        """Look for the trajectories of an episode in the export.

        Args:
            flats: The trajectories.
            reward: What the episode was scored with.
        """
        if self._part and not any((flat.episode, flat.leaf) in self._places for flat in flats):
            self.left_out += 1
            return
        for flat in flats:
            self._compare(flat, reward)

    def _compare(self, flat: FlatTrajectory, reward: float | None) -> None:
        noted = self._places.pop((flat.episode, flat.leaf), None)
        if noted is None:
            self.findings.append(
                Finding(FindingKind.EXPORTED, "the trajectory is not in the export", flat.episode, turn=flat.leaf)
            )
            return
        place, digest, told = noted
        if digest == flat.digest():
            if told is UNTOLD or told == reward:
                self.agreed += 1
                return
            position, message = None, f"its reward is {told!r:.50}, on record {reward!r}"
        else:
            position, message = _first_difference(read_row(self._rows.row(place)), flat)
        self.findings.append(self._finding(place, message, flat.episode, flat.leaf, position))

    def finish(self, episodes: Collection[str] | None = None) -> None:
        """Say what is in the export and not on record.

        Args:
            episodes: Ids of the only episodes that were compared; None: all.
        """
        for (episode, leaf), (place, *_) in self._places.items():
            if episodes is None or episode in episodes:
                message = "the ledger has no such trajectory of a finished episode"
                self.findings.append(self._finding(place, message, episode, leaf, None))
        self._places.clear()

    def _note(self, place: ExportedRow, row: Any) -> None:
        try:
            flat = read_row(row)
        except LedgerError as error:
            self.findings.append(self._finding(place, f"not a trajectory: {error}", None, None, None))
            return
        if (flat.episode, flat.leaf) in self._places:
            message = "the same trajectory stands in the export twice: it would be trained twice"
            self.findings.append(self._finding(place, message, flat.episode, flat.leaf, None))
        else:
            self._places[flat.episode, flat.leaf] = (place, flat.digest(), reward_of(row))

    def _finding(
        self, place: ExportedRow, message: str, episode: str | None, leaf: int | None, token: int | None
    ) -> Finding:
        where = f"row {place.number} of the export: {message}"
        return Finding(FindingKind.EXPORTED, where, episode, None, leaf, token, self.name, place.byte)


def _first_difference(exported: FlatTrajectory, recorded: FlatTrajectory) -> tuple[int | None, str]:
    """Return the first position at which two trajectories differ (None: in no single token), and what differs."""
    if exported.turn_ids != recorded.turn_ids:
        return None, f"its turns are {exported.turn_ids}, on record {recorded.turn_ids}"
    if exported.version_names != recorded.version_names:
        return None, f"its weight versions are {exported.version_names}, on record {recorded.version_names}"
    places = sorted(_places(exported, recorded))
    counts = (len(exported.token_ids), len(recorded.token_ids))
    if not places:
        return min(counts), f"it has {counts[0]} tokens, on record are {counts[1]}"
    at, name = places[0]
    ours, theirs = getattr(exported, name)[at].item(), getattr(recorded, name)[at].item()
    more = "" if counts[0] == counts[1] else f"; it has {counts[0]} tokens in all, on record are {counts[1]}"
    return at, f"{name} of token {at} is {ours!r}, on record {theirs!r}{more}"


def _places(exported: FlatTrajectory, recorded: FlatTrajectory) -> Iterator[tuple[int, str]]:
    """Return the first position at which each of the columns differs, bit by bit."""
    count = min(len(exported.token_ids), len(recorded.token_ids))
    for name, kind in COLUMNS.items():
        whole = f"<i{kind.itemsize}"
        ours, theirs = (
            np.ascontiguousarray(getattr(one, name)[:count], kind).view(whole) for one in (exported, recorded)
        )
        different = ours != theirs
        if different.any():
            yield int(different.argmax()), name
