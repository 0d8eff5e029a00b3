"""The files of a run as `verify` finds them, and what the seal says of them: `SealedFiles`.

Invariant: each time they are gone through the same bytes are read, even while a writer adds more.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import episode_of
from strands_sglang.ledger.run_file import FORMAT, SEAL_FORMATS, read_json
from strands_sglang.ledger.shard import ShardReader, ShardState, ShardVerdict, shard_paths
from strands_sglang.proof.certificate import FileState, SealState
from strands_sglang.proof.finding import Finding, FindingKind
from strands_sglang.proof.links import Located

_PIECE = 1 << 20  # a seal has the digest of each MiB of a file


class SealedFiles:
    """The events in the files of a run, and what is wrong with the files."""

    def __init__(self, directory: Path) -> None:
        """Go through the files once.

        Args:
            directory: The run's.

        Raises:
            LedgerError: There is no ledger.
        """
        self.findings: list[Finding] = []
        """What is wrong with the files."""
        self.counts: Counter[str] = Counter()
        """Events of each episode."""
        self.states: list[FileState] = []
        """The files, by name."""
        if not directory.is_dir():
            raise LedgerError(f"{directory} is no directory of a run: there is no such directory")
        paths = shard_paths(directory)
        self.run = self._read(directory / "run.json")
        """What run.json says; None: nothing."""
        self.seal = self._read(directory / "seal.json", SEAL_FORMATS)
        """What seal.json says; None: there is none that can be read."""
        if not paths and self.run is None and self.seal is None and not self.findings:
            raise LedgerError(f"{directory} is no directory of a run: it has no run.json and no ledger")
        if self.run is None and not self.findings:
            self._note(FindingKind.FILE_MISSING, "run.json", None, "there is no run.json")
        self._directory = directory
        self.run_file = None if self.run is None else _digests(directory / "run.json", 1 << 30)[0]
        """Digest of run.json, in hex; None: it cannot be read."""
        self._paths = {path.name: path for path in paths}
        for path in paths:
            self._look_at(path)
        self._look_for_missing()

    @property
    def lost(self) -> bool:
        """Whether files, or tails of files, are missing."""
        kinds = (FindingKind.FILE_TRUNCATED, FindingKind.FILE_MISSING)
        return any(finding.kind in kinds and finding.file != "run.json" for finding in self.findings)

    @property
    def whole(self) -> bool:
        """Whether no file, and no tail of one, is missing, or new since the run was sealed."""
        return not self.lost and not any(finding.kind is FindingKind.FILE_ADDED for finding in self.findings)

    @property
    def seal_state(self) -> SealState:
        """What the seal says of the files."""
        if self.seal is None:
            return SealState.NONE
        return SealState.DIFFERS if self.findings else SealState.AGREES

    def __iter__(self) -> Iterator[Located]:
        for state in self.states:
            for block in ShardReader(self._paths[state.name], stop=state.bytes):
                for raw in block.events:
                    yield Located(raw, state.name, block.at)

    def _read(self, path: Path, formats: Collection[int] = (FORMAT,)) -> dict[str, Any] | None:
        try:
            return read_json(path, formats)
        except LedgerError as error:
            self._note(FindingKind.FORM, path.name, None, str(error))
            return None

    def _note(self, kind: FindingKind, name: str, byte: int | None, message: str) -> None:
        self.findings.append(Finding(kind, message, file=name, byte=byte))

    def _look_at(self, path: Path) -> None:
        """Read a file and say what is wrong with it."""
        reader = ShardReader(path)
        for block in reader:
            for raw in block.events:
                try:
                    self.counts[episode_of(raw)] += 1
                except LedgerError as error:
                    self._note(FindingKind.FORM, path.name, block.at, str(error))
        state = reader.state
        digest, pieces = _digests(path, state.bytes)
        self.states.append(FileState(path.name, state.bytes, state.verdict.value, digest))
        sealed = self.seal.get("shards") if self.seal is not None else None
        if not isinstance(sealed, dict):
            self._unsealed(state)
            return
        if path.name not in sealed:
            self._note(FindingKind.FILE_ADDED, path.name, None, "it is not in the seal: the run went on behind it")
            self._unsealed(state)
            return
        kind, byte, message = _compared(state, digest, pieces, sealed[path.name])
        if kind is not None:
            self._note(kind, path.name, byte, message)
        if state.verdict is ShardVerdict.DAMAGED:  # one that was torn when it was sealed is as good as its seal
            self._note(FindingKind.FILE_DAMAGED, path.name, state.at, state.message)

    def _unsealed(self, state: ShardState) -> None:
        """Say what a file itself tells."""
        name = state.path.name
        if state.verdict is ShardVerdict.DAMAGED:
            self._note(FindingKind.FILE_DAMAGED, name, state.at, state.message)
        elif state.verdict is ShardVerdict.TORN:
            self._note(FindingKind.FILE_TRUNCATED, name, state.at, state.message)
        elif not state.closed:
            message = "it was not closed: its writer is at work or died, or its end is missing"
            self._note(FindingKind.FILE_OPEN, name, state.bytes, message)

    def _look_for_missing(self) -> None:
        if self.seal is None:
            message = "the run has no seal: it has not come to its end"
            self.findings.append(Finding(FindingKind.UNSEALED, message))
            return
        sealed = self.seal.get("shards")
        if not isinstance(sealed, dict):
            self._note(FindingKind.FORM, "seal.json", None, "it does not say which files were sealed")
            return
        for name in sorted(set(sealed) - set(self._paths)):
            self._note(FindingKind.FILE_MISSING, name, None, "it was sealed and is not there")
        if self.run is not None and self.seal.get("run_file") != self.run_file:
            self._note(FindingKind.FILE_CHANGED, "run.json", None, "it is not what was sealed")
        if self.run is not None and self.seal.get("run") != self.run.get("run"):
            self._note(FindingKind.SEAL, "seal.json", None, "it is of another run")


def _digests(path: Path, count: int) -> tuple[str, list[str]]:
    """Return the digest of the first `count` bytes of a file, and that of each MiB of them."""
    whole = hashlib.blake2b(digest_size=16)
    pieces: list[str] = []
    if count <= 0:
        return whole.hexdigest(), pieces
    with path.open("rb") as file:
        while count > 0 and (piece := file.read(min(_PIECE, count))):
            whole.update(piece)
            pieces.append(hashlib.blake2b(piece, digest_size=16).hexdigest())
            count -= len(piece)
    return whole.hexdigest(), pieces


def _compared(
    state: ShardState, digest: str, pieces: list[str], sealed: Any
) -> tuple[FindingKind | None, int | None, str]:
    """Return how a file differs from what was sealed, from which byte on, and what to say; None: it does not."""
    size = sealed.get("bytes") if isinstance(sealed, Mapping) else None
    known = sealed.get("pieces") if isinstance(sealed, Mapping) else None
    if type(size) is not int or not isinstance(known, list):
        return FindingKind.FORM, None, "the seal does not say what it was"
    told = f"{size} bytes were sealed, {state.bytes} are there"
    whole = min(state.bytes, size) // _PIECE  # those that are there in full, then and now
    for number in range(whole):
        if number >= len(known) or pieces[number] != known[number]:
            return FindingKind.FILE_CHANGED, number * _PIECE, "the MiB from here on is not what was sealed"
    if state.bytes < size and state.closed and state.verdict is ShardVerdict.WHOLE:
        return FindingKind.FILE_CHANGED, whole * _PIECE, f"{told}, and they come to an end: it is another file"
    if state.bytes < size:
        return FindingKind.FILE_TRUNCATED, state.bytes, told
    if state.bytes > size:
        return FindingKind.FILE_CHANGED, size, told
    if digest != sealed.get("digest"):
        return FindingKind.FILE_CHANGED, whole * _PIECE, "the bytes from here on are not those that were sealed"
    return None, None, ""
