"""The turns of a tree and how they hang together: `Turns`, what `TokenTree` grows and lays flat.

Every turn keeps only what it added. The tips last committed keep their whole branch as one array besides, which
moves on to the turn that is added behind: a step then costs one copy of the history and work in proportion to what
is new, and the branch of any other turn is laid out again when it is asked for.

Invariant: a turn's parent was there before it, it starts where its parent ends, and whatever it names as its past
is known. Turns are added, never removed. Reading and adding from several threads is safe.
"""

from __future__ import annotations

import threading
import uuid
from array import array
from collections.abc import Iterator
from typing import Any

from strands_sglang.errors import TreeError
from strands_sglang.tokens.turn import Join, Turn

_TIPS_KEPT = 8  # tips whose branch stays laid flat


class Turns:
    """The turns of one episode, in the order of commit."""

    def __init__(self, id: str | None = None) -> None:
        self.id = uuid.uuid4().hex if id is None else id
        """Name of the tree; by default 32 random hex digits."""
        self._turns: list[Turn] = []
        self._children: dict[int, list[int]] = {}
        self._flat: dict[int, array[int]] = {}  # ids of whole branches by the id of their tip, the newest last
        self._lock = threading.Lock()

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Every turn so far, in the order of commit."""
        return tuple(self._turns)

    def __len__(self) -> int:
        """Return the number of turns."""
        return len(self._turns)

    def __iter__(self) -> Iterator[Turn]:
        return iter(self.turns)

    def __getitem__(self, id: int) -> Turn:
        """Return the turn of that id; TreeError when there is none."""
        if not isinstance(id, int) or not 0 <= id < len(self._turns):
            raise TreeError(f"no turn {id!r:.100} in a tree of {len(self._turns)}")
        return self._turns[id]

    def path(self, turn: Turn) -> list[Turn]:
        """Return the turns of the branch that ends with `turn`, first to last."""
        self._check_ours(turn)
        path = [turn]
        while path[-1].parent is not None:
            path.append(self._turns[path[-1].parent])
        return path[::-1]

    def ids(self, turn: Turn) -> array[int]:
        """Return a copy of all ids of the branch that ends with `turn`, its sampled tokens included."""
        self._check_ours(turn)
        with self._lock:
            flat = self._flat.get(turn.id)
            return self._laid_out(turn) if flat is None else flat[:]

    def children(self, turn: Turn) -> list[Turn]:
        """Return the turns that go on directly from `turn`, in the order of commit."""
        self._check_ours(turn)
        with self._lock:
            return [self._turns[id] for id in self._children.get(turn.id, ())]

    def leaves(self) -> list[Turn]:
        """Return the turns nothing goes on from, whatever their status and purpose, in the order of commit."""
        with self._lock:
            return [turn for turn in self._turns if turn.id not in self._children]

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            children = {id: list(ids) for id, ids in self._children.items()}
            return {**self.__dict__, "_turns": list(self._turns), "_children": children, "_flat": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    # For the tree, which holds the lock

    def _add(self, turn: Turn) -> None:
        parent = None if turn.parent is None else self[turn.parent]
        self._check_place(parent, turn.closing, turn.join, turn.forked_from, turn.caller)
        start = 0 if parent is None else parent.end
        if (turn.id, turn.start) != (len(self._turns), start):
            raise TreeError(f"turn {len(self._turns)} at {start} is next, not turn {turn.id} at {turn.start}")
        self._turns.append(turn)
        if parent is not None:
            self._children.setdefault(parent.id, []).append(turn.id)

    def _taken(self, parent: Turn | None) -> array[int]:
        """Return the ids behind which a turn is added, no longer kept for the parent."""
        if parent is None:
            return array("i")
        flat = self._flat.pop(parent.id, None)
        return self._laid_out(parent) if flat is None else flat

    def _keep(self, tip: Turn, flat: array[int]) -> None:
        """Keep the ids of the branch that now ends with `tip`."""
        self._flat[tip.id] = flat
        if len(self._flat) > _TIPS_KEPT:
            del self._flat[next(iter(self._flat))]

    def _laid_out(self, turn: Turn) -> array[int]:
        ids = array("i")
        for one in self.path(turn):
            ids += one.closing
            ids += one.context
            ids += one.sampled
        return ids

    def _check_ours(self, turn: Turn) -> None:
        if not 0 <= turn.id < len(self._turns) or self._turns[turn.id] is not turn:
            raise TreeError(f"turn {turn.id} is not a turn of this tree")

    def _check_place(
        self,
        parent: Turn | None,
        closing: array[int],
        join: Join,
        forked_from: int | None,
        caller: tuple[int, str | None] | None,
    ) -> None:
        if parent is None:
            if closing:
                raise TreeError("closing tokens, but no turn before them to close")
            if join not in (Join.ROOT, Join.FORKED):
                raise TreeError(f"joined as {join.value!r}, but there is no turn to join it to")
        else:
            self._check_ours(parent)
            if join is Join.ROOT:
                raise TreeError(f"a turn behind turn {parent.id} says how it was joined: proved, kept or forked")
        if forked_from is not None:
            self[forked_from]
        if caller is not None:
            if not isinstance(caller, tuple) or len(caller) != 2 or not isinstance(caller[1], str | None):
                raise TreeError(f"a caller is a turn and a tool call or None, not {caller!r:.100}")
            self[caller[0]]
