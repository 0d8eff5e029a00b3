"""Derives the seed of every turn from the seed of a run: `TurnSeeds`.

Invariant: a turn's seed depends on the run's seed, the id of its episode, its prompt, and how many turns of the episode
had that prompt before; never on time or on the order in which episodes run. A turn that failed, or was interrupted and
is continued, keeps its seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop, heappush


def turn_seed(seed: int, episode: str, prompt: str, repeat: int) -> int:
    """Return the seed of one turn: 64 bits, signed, as SGLang takes them.

    `prompt` is the digest of its prompt; `repeat` the number of earlier turns of the episode with this prompt.
    """
    text = f"{seed}/{episode}/{prompt}/{repeat}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)


class TurnSeeds:
    """The seeds of one episode's turns."""

    def __init__(self, seed: int, episode: str) -> None:
        """Derive from the seed of the run; `episode`: task id and sample number, so that samples of a task differ."""
        self._seed, self._episode = seed, episode
        self._next: dict[str, int] = {}
        self._returned: dict[str, list[int]] = {}  # numbers of turns that failed, to be used again

    @contextmanager
    def turn(self, prompt: str) -> Iterator[int]:
        """Yield the seed of the next turn with this prompt; if the block raises, a later turn gets it again.

        Turns answered from the record count too, so they must be made in such a block as well.
        """
        returned = self._returned.setdefault(prompt, [])
        if returned:
            repeat = heappop(returned)
        else:
            repeat = self._next.get(prompt, 0)
            self._next[prompt] = repeat + 1
        try:
            yield turn_seed(self._seed, self._episode, prompt, repeat)
        except BaseException:
            heappush(returned, repeat)
            raise
