"""Derives the seed of every turn from the seed of a run: `TurnSeeds`.

Invariant: a turn's seed depends on the run's seed, the id of its episode, its prompt, and how many turns of the episode
have that prompt already; never on time or on the order in which episodes run. A turn that failed, or is continued after
an interruption, keeps its seed. No turn gets the seed of a recorded one, in whatever order concurrent agents with the
same prompt come back after a resume.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count


def turn_seed(seed: int, episode: str, prompt: str, repeat: int) -> int:
    """Return the seed of one turn: 64 bits, signed, as SGLang takes them.

    `prompt` is the digest of its prompt; `repeat` the number of other turns of the episode with this prompt.
    """
    text = f"{seed}/{episode}/{prompt}/{repeat}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)


class TurnSeeds:
    """The seeds of one episode's turns."""

    def __init__(self, seed: int, episode: str, recorded: Iterable[int] = ()) -> None:
        """Derive from the seed of the run.

        Args:
            seed: The seed of the run.
            episode: Task id and sample number, so that samples of a task differ.
            recorded: Seeds of the episode's recorded turns.
        """
        self._seed, self._episode = seed, episode
        self._taken = set(recorded)

    @contextmanager
    def turn(self, prompt: str) -> Iterator[int]:
        """Yield the seed of a turn with this prompt; if the block raises, a later turn gets it again."""
        derived = (turn_seed(self._seed, self._episode, prompt, repeat) for repeat in count())
        seed = next(one for one in derived if one not in self._taken)
        self._taken.add(seed)
        try:
            yield seed
        except BaseException:
            self._taken.remove(seed)
            raise
