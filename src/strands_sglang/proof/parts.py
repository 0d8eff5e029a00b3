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

    def take(self, event: Event) -> str | None:
        """Take a part; return what is wrong with it, None when nothing is.

        Raises:
            LedgerError: It is not of the form of one.
        """
        part = _read(event)
        if not len(part.sampled):
            raise LedgerError("nothing was sampled of it")
        wrong = self.gone_on(event, part)
        self._waiting.setdefault(_asked(event), []).append((event.epoch, part))
        impossible = part.impossible()
        return wrong if impossible is None else impossible[1]

    def gone_on(self, event: Event, turn: CallFacts) -> str | None:
        """Hear of a turn, or of a longer part of one; return why it does not go on from a part that waits."""
        waiting = self._waiting.get(_asked(event), [])
        for number, (_, part) in enumerate(waiting):
            if _begins_with(turn, part):
                del waiting[number]
                return None
        # In the process that cut one, another turn with the same prompt may have come to its end.
        binding = [part for epoch, part in waiting if epoch < event.epoch]
        given_up = turn.detail.get("discarded_tokens")
        if not binding or (isinstance(given_up, int) and given_up >= len(binding[0].sampled)):
            return None
        return f"it does not begin with the {len(binding[0].sampled)} tokens that were sampled of it before"

    def cut(self) -> None:
        """Hear that the agent went another way."""
        self._waiting.clear()


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
