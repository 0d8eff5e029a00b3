"""The end of a run: seal.json, by which a copy of its directory can be held against what was there.

Invariant: a seal says what every shard was, byte by byte, so that one that is missing, cut off or changed is found, and
where.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import DIGEST_BYTES
from strands_sglang.ledger.ledger import Ledger
from strands_sglang.ledger.run_file import SEAL_FORMAT, SEAL_FORMATS, read_json, read_run, write_json, write_run
from strands_sglang.ledger.safe_files import open_file
from strands_sglang.ledger.shard import shard_paths

__all__ = ["SealFault", "SealFinding", "check_seal", "read_run", "read_seal", "root_digest", "seal", "write_run"]

_PIECE = 1 << 20


class SealFault(str, Enum):
    """How a shard may differ from what was sealed."""

    MISSING = "missing"
    """It is not there."""
    TRUNCATED = "truncated"
    """Its end is missing; as far as it goes it is what was sealed."""
    CHANGED = "changed"
    """Other bytes are in it."""
    LONGER = "longer"
    """It has more bytes than were sealed; those that were are the same."""
    NEW = "new"
    """It was not there when the run was sealed: the run went on."""


@dataclass(frozen=True, slots=True)
class SealFinding:
    """A shard that is not as it was sealed."""

    kind: SealFault
    """How it differs."""
    shard: str
    """Name of the file."""
    byte: int | None
    """Where it begins to differ, at most a MiB too early; None when it is missing or new."""
    message: str
    """In words."""


def seal(directory: Path | str) -> dict[str, Any]:
    """Write seal.json, in the place of one that may be there. All shards must be closed.

    Args:
        directory: Of the run.

    Returns:
        What was written.

    Raises:
        LedgerError: There is no run.json, or something cannot be read or written.
    """
    folder = Path(directory)
    ledger = Ledger(folder)
    run = ledger.run
    heads: dict[str, bytes] = {}
    finished = 0
    for record in ledger.episodes():
        heads[record.id] = record.head
        finished += record.finished
    try:
        shards = {path.name: _digests(path) for path in shard_paths(folder)}
    except OSError as error:
        raise LedgerError(f"the ledger in {folder} cannot be read: {error}") from error
    run_file = _digests(folder / "run.json")["digest"]
    values = {
        "format": SEAL_FORMAT,
        "run": run.get("run"),
        "created": round(time.time(), 3),
        "episodes": len(heads),
        "finished": finished,
        "not_begun": _not_begun(heads, run.get("samples_per_task")),
        "root": root_digest(heads, run_file),
        "run_file": run_file,
        "shards": shards,
    }
    write_json(folder / "seal.json", values)
    return values


def _not_begun(ids: Collection[str], samples: Any) -> list[str]:
    """Return the samples that never began of tasks of which others did: those of groups that had enough."""
    if type(samples) is not int:
        return []
    tasks = {id.rpartition("/")[0] for id in ids}
    return sorted(id for task in tasks for id in (f"{task}/{number}" for number in range(samples)) if id not in ids)


def read_seal(directory: Path | str) -> dict[str, Any] | None:
    """Return what seal.json says; None when there is none.

    Raises:
        LedgerError: It cannot be read.
    """
    return read_json(Path(directory) / "seal.json", SEAL_FORMATS)


def check_seal(directory: Path | str) -> list[SealFinding]:
    """Hold the shards of a run against its seal.

    Returns:
        Which shards differ, by name; empty: none.

    Raises:
        LedgerError: There is no seal, or it cannot be read.
    """
    folder = Path(directory)
    sealed = read_seal(folder)
    if sealed is None or not isinstance(sealed.get("shards"), dict):
        raise LedgerError(f"the run in {folder} is not sealed: no seal.json that names its shards")
    paths = {path.name: path for path in shard_paths(folder)}
    findings = []
    for name in sorted({*paths, *sealed["shards"]}):
        if name not in paths:
            findings.append(SealFinding(SealFault.MISSING, name, None, "the file is not there"))
        elif name not in sealed["shards"]:
            findings.append(SealFinding(SealFault.NEW, name, None, "the file is not in the seal: the run went on"))
        elif finding := _compared(paths[name], sealed["shards"][name]):
            findings.append(finding)
    return findings


def root_digest(heads: Mapping[str, bytes], run_file: str) -> str:
    """Return one digest of a whole run, as 32 hex digits.

    Args:
        heads: Digest of the last event of each episode, by id.
        run_file: Digest of run.json, in hex.
    """
    episodes = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for id in sorted(heads):
        episodes.update(id.encode() + b"\0" + heads[id])
    whole = b"run.json\0" + bytes.fromhex(run_file) + episodes.digest()
    return hashlib.blake2b(whole, digest_size=DIGEST_BYTES).hexdigest()


def _digests(path: Path, stop: int | None = None) -> dict[str, Any]:
    """Return the size of a file, its digest, and the digest of each MiB, up to a byte."""
    whole, size, pieces = hashlib.blake2b(digest_size=DIGEST_BYTES), 0, []
    with open_file(path) as file:
        while piece := file.read(_PIECE if stop is None else min(_PIECE, stop - size)):
            whole.update(piece)
            pieces.append(hashlib.blake2b(piece, digest_size=DIGEST_BYTES).hexdigest())
            size += len(piece)
    return {"bytes": size, "digest": whole.hexdigest(), "pieces": pieces}


def _compared(path: Path, sealed: Mapping[str, Any]) -> SealFinding | None:
    size = path.stat().st_size
    found = _digests(path, sealed["bytes"])
    pieces = list(zip(found["pieces"], sealed["pieces"], strict=False))
    if found["bytes"] < sealed["bytes"]:
        pieces = pieces[: found["bytes"] // _PIECE]  # the last one is cut
    changed = next((number for number, (now, then) in enumerate(pieces) if now != then), None)
    if changed is not None:
        message = f"other bytes than were sealed, in the MiB from byte {changed * _PIECE} on"
        return SealFinding(SealFault.CHANGED, path.name, changed * _PIECE, message)
    if found["bytes"] < sealed["bytes"]:
        message = f"{sealed['bytes']} bytes were sealed, {size} are there"
        return SealFinding(SealFault.TRUNCATED, path.name, size, message)
    if size > sealed["bytes"]:
        message = f"{sealed['bytes']} bytes were sealed, {size} are there"
        return SealFinding(SealFault.LONGER, path.name, sealed["bytes"], message)
    return None
