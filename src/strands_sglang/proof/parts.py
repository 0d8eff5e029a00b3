"""Turns that were cut when their episode was set aside, held against the turns that went on from them: `Parts`.

Invariant: what was sampled of a turn before is part of it afterwards, token by token, with the logprobs and the weight
versions it had; unless it was given up, and the turn says so.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import Event
from strands_sglang.proof.calls import CallFacts, read_call

_PLACE = {"turn": 0, "parent": None, "start": 0, "purpose": "episode", "join": "root"}  # a part has no place yet


class Parts:
    """The parts of one episode that wait to be gone on with."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, ...], list[tuple[int, CallFacts]]] = {}
        self._doubts: dict[tuple[str, ...], list[CallFacts]] = {}

    def take(self, event: Event) -> str | None:
        """Take a part; return what is wrong with it, None when nothing is.

        Raises:
            LedgerError: It is not of the form of one.
        """
        part = _read(event)
        if not len(part.sampled):
            raise LedgerError("nothing was sampled of it")
        self.gone_on(event, part)
        self._waiting.setdefault(_asked(event), []).append((event.epoch, part))
        impossible = part.impossible()
        return None if impossible is None else impossible[1]

    def gone_on(self, event: Event, turn: CallFacts) -> None:
        """Hear of a turn, or of a longer part of one, which may go on from a part that waits."""
        key = _asked(event)
        waiting = self._waiting.get(key, [])
        given_up = turn.detail.get("discarded_tokens")
        for number, (epoch, part) in enumerate(waiting):
            if _begins_with(turn, part) or (
                epoch < event.epoch and isinstance(given_up, int) and given_up >= len(part.sampled)
            ):
                del waiting[number]
                return
        # In the process that cut one, another turn with the same prompt may have come to its end. In a later one this
        # may be another conversation's: then the part is gone on with before the episode ends.
        if any(epoch < event.epoch for epoch, _ in waiting):
            self._doubts.setdefault(key, []).append(turn)

    def left_out(self) -> list[tuple[int, str]]:
        """Return turns, when the episode has ended, that do not begin with what was sampled of them before, and why."""
        found = []
        for key, turns in self._doubts.items():
            waiting = self._waiting.get(key, [])
            for turn, (_, part) in zip(turns, waiting, strict=False):
                found.append((turn.turn, f"it does not begin with the {len(part.sampled)} tokens sampled of it before"))
        return found

    def cut(self) -> None:
        """Hear that the agent went another way."""
        self._waiting.clear()
        self._doubts.clear()


def _asked(event: Event) -> tuple[str, ...]:
    return (str(event.data.get("prompt")), *map(str, event.data.get("within", ())))


def _read(event: Event) -> CallFacts:
    empty = {name: event.arrays["sampled"][:0] for name in ("closing", "context")} if "sampled" in event.arrays else {}
    experts = {"experts": None}  # their rows go on from a place that a part does not know
    arrays = {name: values for name, values in event.arrays.items() if name != "experts"}
    return read_call(replace(event, data={**event.data, **_PLACE, **experts}, arrays={**arrays, **empty}))


def _begins_with(turn: CallFacts, part: CallFacts) -> bool:
    count = len(part.sampled)
    same = np.array_equal(turn.sampled[:count], part.sampled) and turn.logprobs[:count].tobytes() == (
        part.logprobs.tobytes()
    )
    return same and _versions(turn)[:count] == _versions(part)


def _versions(facts: CallFacts) -> list[str | None]:
    return [version for version, count in facts.spans for _ in range(count)]
