"""Whether one answer of the engine stands in a ledger twice: `RequestIds`.

Every call of our client has an id of 128 random bits. An answer that is on record as two turns was sampled once and
would be trained twice: something was copied, by a person or by a fault. Ids of other makers are not looked at: those
that a trainer's own engine is asked with name a session, not a call.

Invariant: 20 bytes are held for a turn, whatever the ledger says.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from strands_sglang.proof.calls import CallFacts
from strands_sglang.proof.finding import Finding, FindingKind

_OURS = re.compile(r"([0-9a-f]{16})([0-9a-f]{16})-[0-9]{3}")


class RequestIds:
    """The ids of all calls of a run."""

    def __init__(self) -> None:
        self._first, self._second = array("Q"), array("Q")  # halves of an id
        self._episode, self._names = array("I"), list[str]()

    def take(self, episode: str, turns: Sequence[CallFacts]) -> None:
        """Remember the ids of an episode's turns."""
        self._names.append(episode)
        for turn in turns:
            rid = turn.detail.get("rid")
            if isinstance(rid, str) and (found := _OURS.fullmatch(rid)):
                self._first.append(int(found[1], 16))
                self._second.append(int(found[2], 16))
                self._episode.append(len(self._names) - 1)

    def repeated(self) -> Iterator[Finding]:
        """Yield a finding for every answer that stands in the ledger more than once."""
        first, second = np.frombuffer(self._first, np.uint64), np.frombuffer(self._second, np.uint64)
        order = np.lexsort((second, first))
        first, second = first[order], second[order]
        for at in np.flatnonzero((first[1:] == first[:-1]) & (second[1:] == second[:-1])):
            one, other = sorted(self._names[self._episode[order[at + step]]] for step in (0, 1))
            where = "two turns of this episode" if one == other else f"a turn of episode {one} and one of this"
            message = f"the same answer of the engine is {where}: request {first[at]:016x}{second[at]:016x}"
            yield Finding(FindingKind.DUPLICATE, message, other)
