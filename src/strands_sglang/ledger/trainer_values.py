"""What a trainer made of recorded tokens, in `trainer.jsonl` beside the ledger of a run.

    {"episode": "sum/3", "turn": 2, "name": "advantage", "values": [0.5, 0.5, null]}

`values` has a number for each sampled token of the turn, null where the trainer has none. One number in place of the
list stands for all. Any name is allowed; docs/viewer.md lists those with a colour scale of their own. A later line for
the same episode, turn and name replaces an earlier one. Several processes may write at the same time.

Invariants: the file is written after the tokens were sampled; no event refers to it, and no digest covers it.
`verify` holds its lengths against the ledger. A last line without a line break is incomplete and is not read. What
reading takes is bounded: a line that is too long is never held, and of very many lines of an episode the newest are.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from strands_sglang._files import open_file
from strands_sglang.errors import LedgerError

TRAINER_FILE = "trainer.jsonl"
"""Name of the file in a run directory."""
_DIGITS = 7  # significant ones: those of a float32
LARGEST_LINE = 1 << 23
"""Maximum size of a line in bytes: a turn of half a million sampled tokens stays below."""
_MOST_BYTES = 1 << 25  # of the lines of one episode, of which the newest are read
_MOST_NAMES = 64  # of the values of one episode

Values = list[float | None] | float
"""One number for each sampled token of a turn (None: the trainer has none), or one for all of them."""


@dataclass(frozen=True, slots=True)
class TrainerValues:
    """One line of the file.

    Example:
        >>> TrainerValues("sum/3", 2, "advantage", 0.5).name
        'advantage'
    """

    episode: str
    turn: int
    name: str
    values: Values


def write_trainer_values(
    directory: str | Path, episode: str, turn: int, **values: Sequence[float | None] | float
) -> None:
    """Append a trainer's values for the sampled tokens of a turn to the run's `trainer.jsonl`.

    Args:
        directory: Directory of the run.
        values: By name: one number for each sampled token of the turn, None where there is none; or one for all.

    Raises:
        LedgerError: The file cannot be written.

    Example:
        ```python
        write_trainer_values("runs/first", "sum/3", 0, advantage=0.5, entropy=[0.1] * 45)
        ```
    """
    write_all(directory, [TrainerValues(episode, turn, name, _plain(given)) for name, given in values.items()])


def write_all(directory: str | Path, lines: Iterable[TrainerValues]) -> None:
    """Append lines to the run's `trainer.jsonl`; see `write_trainer_values`. Values that are not finite are null."""
    stated = (line for line in lines if isinstance(line.values, list) or math.isfinite(line.values))
    data = b"".join(orjson.dumps(_rounded(line), option=orjson.OPT_APPEND_NEWLINE) for line in stated)
    path = Path(directory) / TRAINER_FILE
    try:
        with path.open("ab") as file:
            with suppress(ImportError, OSError):  # Windows, or a file system without locks
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            file.write(data)
    except OSError as error:
        raise LedgerError(f"{path} cannot be written: {error}") from error


def _plain(values: Any) -> Values:
    return [None if one is None else float(one) for one in values] if hasattr(values, "__len__") else float(values)


def _rounded(line: TrainerValues) -> dict[str, Any]:
    values = line.values
    shown: Any = (
        [None if one is None else _short(one) for one in values] if isinstance(values, list) else _short(values)
    )
    return {"episode": line.episode, "turn": line.turn, "name": line.name, "values": shown}


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def parsed(line: bytes) -> TrainerValues | str:
    """Return a line of the file, or why it is not one."""
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return f"it is not JSON: {error}"
    if not isinstance(data, dict):
        return "it must be a JSON object"
    episode, turn, name, values = (data.get(key) for key in ("episode", "turn", "name", "values"))
    if not isinstance(episode, str) or not isinstance(name, str) or type(turn) is not int:
        return "it must have an episode (text), a turn (number) and a name (text)"
    if isinstance(values, list):
        if all(one is None or type(one) in (int, float) for one in values):
            return TrainerValues(episode, turn, name, values)
    elif isinstance(values, (int, float)) and not isinstance(values, bool):
        return TrainerValues(episode, turn, name, values)
    return "values must be a number, or a list of numbers and null"


def lines_from(path: Path, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the complete lines of a file from a byte on, with the byte at which each begins.

    Of a line that is too long only the beginning is yielded.
    """
    try:
        with open_file(path) as file:
            file.seek(start)
            while line := file.readline(LARGEST_LINE):
                at, part = start, line
                start += len(line)
                while part and not part.endswith(b"\n"):
                    part = file.readline(LARGEST_LINE)
                    start += len(part)
                if part:
                    yield at, line
    except FileNotFoundError:
        return
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error}") from error


class TrainerFile:
    """The values of a run by episode, also while they are being written. Holds only where the lines are."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / TRAINER_FILE
        self._lock = threading.Lock()
        self._places: dict[str, list[tuple[int, int]]] = {}  # begin and end of lines that follow each other
        self._last = ""  # episode of the last line
        self._end = 0

    def of(self, episode: str) -> Mapping[str, Mapping[int, Values]]:
        """Return the values of an episode: by name, by turn."""
        with self._lock:
            self._read_on()
            places = list(self._places.get(episode, ()))
        left, first = _MOST_BYTES, len(places)
        while first and (left := left - (places[first - 1][1] - places[first - 1][0])) >= 0:
            first -= 1
        found: dict[str, dict[int, Values]] = {}
        for begin, end in places[first:]:
            for at, data in lines_from(self._path, begin):
                if at >= end:
                    break
                line = parsed(data)
                if isinstance(line, TrainerValues) and (line.name in found or len(found) < _MOST_NAMES):
                    found.setdefault(line.name, {})[line.turn] = line.values
        return found

    def _read_on(self) -> None:
        if self._path.is_file() and self._path.stat().st_size < self._end:  # written again
            self._places, self._last, self._end = {}, "", 0
        for at, data in lines_from(self._path, self._end):
            episode = _episode_of(data)  # a line that is damaged is reported by `verify`
            places = self._places.setdefault(episode, [])
            if places and episode == self._last and at - places[-1][0] < LARGEST_LINE:
                places[-1] = (places[-1][0], at + len(data))
            else:
                places.append((at, at + len(data)))
            self._last, self._end = episode, at + len(data)


def _episode_of(line: bytes) -> str:
    with suppress(orjson.JSONDecodeError, AttributeError):
        if isinstance(episode := orjson.loads(line).get("episode"), str):
            return episode
    return ""
