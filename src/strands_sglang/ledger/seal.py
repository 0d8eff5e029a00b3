"""The seal of a finished run: `seal` writes seal.json, `check_seal` compares the shards with it.

Invariant: a seal holds the size and digests of every shard, so a missing, shortened or changed shard is detected and
located.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from strands_sglang._files import open_file
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.encoding import DIGEST_BYTES
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.run_dir import FORMAT, read_json, shard_paths, write_json

_PIECE = 1 << 20


class SealFault(str, Enum):
    """How a shard differs from the seal."""

    MISSING = "missing"
    SHORTER = "shorter"
    """Its end is missing; the rest is unchanged."""
    CHANGED = "changed"
    LONGER = "longer"
    """Bytes were appended; the sealed part is unchanged."""
    NEW = "new"
    """It did not exist when the run was sealed: the run was continued."""


@dataclass(frozen=True, slots=True)
class SealFinding:
    """A shard that differs from the seal."""

    kind: SealFault
    shard: str
    byte: int | None
    """Offset of the first difference, rounded down to a MiB if changed; None: the shard is missing or new."""
    message: str


def seal(directory: Path | str) -> dict[str, Any]:
    """Write seal.json, replacing an existing one. All shards must be closed.

    Args:
        directory: The run directory.

    Returns:
        The content of the file.

    Raises:
        LedgerError: run.json does not exist, or a file cannot be read or written.
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
        "format": FORMAT,
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
    """Return ids of samples that never began, of tasks with other samples that did: their groups were complete."""
    if type(samples) is not int:
        return []
    tasks = {id.rpartition("/")[0] for id in ids}
    return sorted(id for task in tasks for id in (f"{task}/{number}" for number in range(samples)) if id not in ids)


def read_seal(directory: Path | str) -> dict[str, Any] | None:
    """Return the content of seal.json, or None if the file does not exist.

    Raises:
        LedgerError: The file cannot be read.
    """
    return read_json(Path(directory) / "seal.json")


def check_seal(directory: Path | str) -> list[SealFinding]:
    """Compare the shards of a run with its seal.

    Returns:
        The shards that differ, sorted by name; empty: none differs.

    Raises:
        LedgerError: The run has no seal, or the seal cannot be read.
    """
    folder = Path(directory)
    sealed = read_seal(folder)
    if sealed is None or not isinstance(sealed.get("shards"), dict):
        raise LedgerError(f"the run in {folder} is not sealed: it has no seal.json that lists its shards")
    paths = {path.name: path for path in shard_paths(folder)}
    findings = []
    for name in sorted({*paths, *sealed["shards"]}):
        if name not in paths:
            findings.append(SealFinding(SealFault.MISSING, name, None, "the file is missing"))
        elif name not in sealed["shards"]:
            findings.append(
                SealFinding(SealFault.NEW, name, None, "the file is not in the seal: the run was continued")
            )
        else:
            try:
                finding = _compared(paths[name], sealed["shards"][name])
            except (KeyError, TypeError) as error:
                raise LedgerError(f"{folder / 'seal.json'} does not state size and digests of {name}") from error
            findings += [finding] if finding is not None else []
    return findings


def root_digest(heads: Mapping[str, bytes], run_file: str) -> str:
    """Return the digest of a whole run, as 32 hex digits.

    Args:
        heads: Digest of the last event of each episode, by episode id.
        run_file: Digest of run.json, in hex.
    """
    episodes = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for id in sorted(heads):
        episodes.update(id.encode() + b"\0" + heads[id])
    whole = b"run.json\0" + bytes.fromhex(run_file) + episodes.digest()
    return hashlib.blake2b(whole, digest_size=DIGEST_BYTES).hexdigest()


def _digests(path: Path, stop: int | None = None) -> dict[str, Any]:
    """Return the size of a file, its digest, and the digest of each MiB, up to the offset `stop`."""
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
        pieces = pieces[: found["bytes"] // _PIECE]  # the last one is incomplete
    changed = next((number for number, (now, then) in enumerate(pieces) if now != then), None)
    if changed is not None:
        message = f"the content was changed in the MiB that starts at byte {changed * _PIECE}"
        return SealFinding(SealFault.CHANGED, path.name, changed * _PIECE, message)
    if size == sealed["bytes"]:
        return None
    message = f"the file must have the {sealed['bytes']} bytes that were sealed, got {size}"
    kind = SealFault.SHORTER if size < sealed["bytes"] else SealFault.LONGER
    return SealFinding(kind, path.name, min(size, sealed["bytes"]), message)
