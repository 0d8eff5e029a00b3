"""What a run says of itself: run.json, written once when it begins.

Invariant: a file of JSON in a run's directory is there whole, or not at all.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.safe_files import loads, open_file

_LARGEST = 1 << 28  # bytes; a seal has some 40 for each MiB of the ledger

FORMAT = 1
"""Number of the format of everything in a run's directory but seals."""
SEAL_FORMAT = 2
"""That of seals. Under the root of a seal of format 1 were the episodes alone; run.json is there too now."""
SEAL_FORMATS = (1, SEAL_FORMAT)
"""Those of seals that can be read."""


def write_run(directory: Path | str, about: Mapping[str, Any]) -> dict[str, Any]:
    """Write run.json.

    Args:
        directory: Of the run; made when it is not there.
        about: Plain JSON data: samples per task, fingerprint, settings. "run" (a random id) and "created" (Unix time)
            are added when they are not in it.

    Returns:
        What was written.

    Raises:
        LedgerError: There is one already, or it cannot be written.
    """
    path = Path(directory) / "run.json"
    if path.exists():
        raise LedgerError(f"{path} is there already: a run begins once")
    values = {"format": FORMAT, "run": secrets.token_hex(16), "created": round(time.time(), 3), **about}
    write_json(path, values)
    return values


def read_run(directory: Path | str) -> dict[str, Any] | None:
    """Return what run.json says; None when there is none.

    Raises:
        LedgerError: It cannot be read.
    """
    return read_json(Path(directory) / "run.json")


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a file whole, in the place of one that may be there.

    Raises:
        LedgerError: It cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("wb") as file:
            file.write(orjson.dumps(values, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except (OSError, TypeError) as error:
        with suppress(OSError):
            fresh.unlink()
        raise LedgerError(f"{path} cannot be written: {error}") from error


def read_json(path: Path, formats: Collection[int] = (FORMAT,)) -> dict[str, Any] | None:
    """Return what a file says; None when it is not there.

    Args:
        path: The file.
        formats: Numbers of the formats that it may be of.

    Raises:
        LedgerError: It is not a JSON object of a format known here.
    """
    try:
        with open_file(path) as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST} bytes")
        values = loads(content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LedgerError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict) or type(values.get("format")) is not int or values["format"] not in formats:
        raise LedgerError(f"{path} is not of format {' or '.join(map(str, formats))}")
    return values
