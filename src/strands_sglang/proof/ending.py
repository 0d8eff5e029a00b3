"""The end of an episode held against its turns: `check_end`.

Invariant: an end is right only when it declares exactly the trajectories that follow from the turns and from what was
thrown away, token by token, and when every sampled token is trained once or has a declared reason not to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import Event
from strands_sglang.proof.calls import CallFacts
from strands_sglang.proof.finding import Finding, FindingKind
from strands_sglang.proof.flat import SAMPLED, FlatTrajectory
from strands_sglang.proof.links import Entry


def rejected_turns(event: Event, count: int) -> set[int]:
    """Return the ids of the turns that an end event declares as thrown away.

    Args:
        event: The end event.
        count: Turns of the episode.

    Raises:
        LedgerError: The event is not of the form of an end.
    """
    rejected = event.data.get("rejected")
    if not isinstance(rejected, list) or not all(type(id) is int and 0 <= id < count for id in rejected):
        raise LedgerError(f"turns {rejected!r:.100} are rejected, of {count}")
    if len(set(rejected)) != len(rejected):
        raise LedgerError(f"turns {rejected!r:.100} are rejected, one of them twice")
    if not isinstance(event.data.get("ended"), str) or not isinstance(event.data.get("metrics"), dict):
        raise LedgerError("it does not say why the episode ended, or what it used")
    declared = event.data.get("trajectories")
    if not isinstance(declared, list) or not all(isinstance(one, dict) for one in declared):
        raise LedgerError(f"its trajectories are {declared!r:.100}")
    return set(rejected)


def check_end(entry: Entry, turns: Sequence[CallFacts], trajectories: Sequence[FlatTrajectory]) -> Iterator[Finding]:
    """Hold an end event against what follows from the turns.

    Args:
        entry: The end event.
        turns: The turns of the episode, by id.
        trajectories: What follows from them.

    Yields:
        Whatever is not so.
    """
    event = entry.event
    declared = event.data["trajectories"]
    leaves, told = [flat.leaf for flat in trajectories], [one.get("leaf") for one in declared]
    if leaves != told:
        message = f"trajectories ending with turns {leaves} follow from the record, but {told!r:.200} are declared"
        yield entry.finding(FindingKind.TRAJECTORY, message)
    else:
        for flat, one in zip(trajectories, declared, strict=True):
            for message in _differences(flat, one):
                yield entry.finding(FindingKind.TRAJECTORY, message, turn=flat.leaf)
    for turn, times in _trained_twice(trajectories):
        message = f"what this turn sampled is trained {times} times"
        yield entry.finding(FindingKind.TRAJECTORY, message, turn=turn)
    for name, value in _measures(turns, trajectories).items():
        if name in event.data["metrics"] and event.data["metrics"][name] != value:
            message = f"{name} is {event.data['metrics'][name]!r:.100} in its metrics, but {value!r:.100} on record"
            yield entry.finding(FindingKind.METRICS, message)


def _differences(flat: FlatTrajectory, declared: Mapping[str, Any]) -> Iterator[str]:
    trained = [flat.turn_ids[number] for number in np.unique(flat.turns[flat.loss_mask == 1])]
    for name, value in (
        ("tokens", len(flat.token_ids)),
        ("loss", int(flat.loss_mask.sum(dtype=np.int64))),
        ("trained", trained),
    ):
        if declared.get(name) != value:
            yield f"{name} of the trajectory is {value}, but {declared.get(name)!r:.100} is declared"
            return
    if bool(np.any((flat.loss_mask == 1) & (flat.origins != SAMPLED))):
        yield "loss on a token that was not sampled"
    digest = flat.digest()
    if declared.get("digest") != digest:
        yield (
            f"rebuilt from its turns {list(flat.turn_ids)} the trajectory has digest {digest}, but "
            f"{declared.get('digest')!r:.50} is declared: a token, logprob or weight version of these turns was changed"
        )


def _trained_twice(trajectories: Sequence[FlatTrajectory]) -> Iterator[tuple[int, int]]:
    """Return turns with a token that has loss mask 1 in several trajectories, and in how many."""
    times: dict[int, int] = {}
    for flat in trajectories:
        for number in np.unique(flat.turns[flat.loss_mask == 1]):
            id = flat.turn_ids[number]
            times[id] = times.get(id, 0) + 1
    return ((id, count) for id, count in times.items() if count > 1)


def _measures(turns: Sequence[CallFacts], trajectories: Sequence[FlatTrajectory]) -> dict[str, Any]:
    """Return the metrics that can be counted again."""
    return {
        "turns": len(turns),
        "branches": len(trajectories),
        "tokens": sum(turn.end - turn.start for turn in turns),
        "sampled_tokens": sum(len(turn.sampled) for turn in turns),
        "prompt_tokens": sum(turn.first for turn in turns),
        "cached_tokens": sum(_count(turn.detail.get("cached_tokens")) for turn in turns),
        "failed_calls": sum(_length(turn.detail.get("failed_calls")) for turn in turns),
        "versions": list(dict.fromkeys(version for turn in turns for version, _ in turn.spans)),
    }


def _count(value: Any) -> int:
    return value if type(value) is int else 0


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0
