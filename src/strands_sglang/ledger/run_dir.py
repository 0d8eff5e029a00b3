"""The directory of a run: which files it holds, its format version, and its JSON files.

    run.json           written once, when the run begins
    ledger/*.ledger    shards: the events of one process each (`shard.py`)
    files/*/*          images and other files that events refer to (`files.py`)
    seal.json          written when the run ends (`seal.py`)

Invariants: a JSON file in this directory exists complete, or not at all. A directory of another format version is
refused, never misread.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from strands_sglang._files import open_file, replace_file
from strands_sglang._json import loads
from strands_sglang.errors import LedgerError

_MAX_JSON_BYTES = 1 << 26  # a seal takes about 40 bytes for each MiB of the ledger

LARGEST_FILE = 1 << 28
"""Maximum size of an image, or of another file that events refer to, in bytes."""
FORMAT = 2
"""Format version of everything in a run directory. A directory of another version is refused."""
MAGIC = b"strands-sglang ledger %d\n" % FORMAT
"""First line of every shard."""


def shard_paths(directory: Path) -> list[Path]:
    """Return the shards of a run directory, sorted by name."""
    return sorted((directory / "ledger").glob("*.ledger"))


def write_run(directory: Path | str, about: Mapping[str, Any]) -> dict[str, Any]:
    """Write run.json.

    Args:
        directory: The run directory; created if it does not exist.
        about: JSON data: samples per task, fingerprint, settings. "run" (a random id) and "created" (Unix time) are
            added if missing.

    Returns:
        The content of the file.

    Raises:
        LedgerError: run.json exists already, or cannot be written.
    """
    path = Path(directory) / "run.json"
    if path.exists():
        raise LedgerError(f"{path} exists already: use another directory for a new run")
    values = {"format": FORMAT, "run": secrets.token_hex(16), "created": round(time.time(), 3), **about}
    write_json(path, values)
    return values


def check_format(directory: Path | str) -> None:
    """Raise LedgerError if run.json and the shards have another format version.

    A run.json that is missing, damaged or in contradiction with the shards is accepted: `verify` reports it.
    """
    folder = Path(directory)
    try:
        with open_file(folder / "run.json") as file:
            values = _json_in(file)
        for path in shard_paths(folder)[:1]:
            with open_file(path) as file:
                if file.read(len(MAGIC)) == MAGIC:
                    return
    except (OSError, ValueError):
        return
    if isinstance(values, dict):
        _check_format(directory, values)


def _check_format(path: Path | str, values: Mapping[str, Any]) -> None:
    found = values.get("format")
    if type(found) is int and found != FORMAT:
        raise LedgerError(
            f"{path} has ledger format {found}, and this version of strands-sglang reads format {FORMAT} only: use the "
            "version that wrote it, or record the run again"
        )


def read_run(directory: Path | str) -> dict[str, Any] | None:
    """Return the content of run.json, or None if the file does not exist.

    Raises:
        LedgerError: The file cannot be read.
    """
    return read_json(Path(directory) / "run.json")


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON file atomically and sync it to disk. Replaces an existing file.

    Raises:
        LedgerError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path, sync=True) as temporary:
            temporary.write_bytes(orjson.dumps(values, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    except (OSError, TypeError) as error:
        raise LedgerError(f"{path} cannot be written: {error}") from error


def _json_in(file: BinaryIO) -> Any:
    """Return the JSON of a file; ValueError if it is too large, or is not JSON."""
    if (size := file.seek(0, 2)) > _MAX_JSON_BYTES:
        raise ValueError(f"it must have at most {_MAX_JSON_BYTES} bytes, got {size}")
    file.seek(0)
    return loads(file.read(_MAX_JSON_BYTES))


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file, or None if the file does not exist.

    Raises:
        LedgerError: The file is not a JSON object, or has another format version.
    """
    try:
        with open_file(path) as file:
            values = _json_in(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LedgerError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict) or type(values.get("format")) is not int:
        raise LedgerError(f"{path} must be a JSON object with the number of its format")
    _check_format(path, values)
    return values
