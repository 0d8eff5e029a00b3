"""Trajectories laid flat a second time, from what the ledger says and by nobody else's code: `FlatTrajectory`.

Invariant: this file shares nothing with `tokens/` but the meaning written in docs/ledger.md, so that an error there
is not repeated here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from strands_sglang.proof.calls import CallFacts

CONTEXT, SAMPLED, CLOSING = 0, 1, 2
"""Where a token came from, as the ledger's numbers."""

COLUMNS: dict[str, np.dtype[Any]] = {
    "token_ids": np.dtype("<i4"),
    "loss_mask": np.dtype("<i1"),
    "logprobs": np.dtype("<f8"),
    "versions": np.dtype("<i4"),
    "turns": np.dtype("<i4"),
    "origins": np.dtype("<i1"),
}
"""The arrays of a trajectory, in the order in which its digest covers them, and how they are written."""


@dataclass(slots=True, eq=False)
class FlatTrajectory:
    """One branch laid flat. `Trajectory` explains the arrays."""

    episode: str
    """Id of the episode."""
    turn_ids: tuple[int, ...]
    """Ids of the turns of the branch, first to last."""
    version_names: tuple[str | None, ...]
    """Weight versions, in order of first use."""
    token_ids: npt.NDArray[np.int32]
    """The ids."""
    loss_mask: npt.NDArray[np.int8]
    """1 on the tokens to train."""
    logprobs: npt.NDArray[np.float64]
    """Log-probabilities; 0.0 where nothing was sampled."""
    versions: npt.NDArray[np.int32]
    """Index into `version_names`; -1 where nothing was sampled."""
    turns: npt.NDArray[np.int32]
    """Index into `turn_ids`."""
    origins: npt.NDArray[np.int8]
    """Where each token came from."""

    @property
    def leaf(self) -> int:
        """Id of its last turn."""
        return self.turn_ids[-1]

    def digest(self) -> str:
        """Return the digest of all of it, as the end of an episode gives it."""
        whole = hashlib.blake2b(digest_size=16)
        for name, kind in COLUMNS.items():
            whole.update(np.ascontiguousarray(getattr(self, name), kind).data)
        whole.update(orjson.dumps([self.version_names, self.turn_ids]))
        return whole.hexdigest()


def counted(turns: Sequence[CallFacts], rejected: Collection[int]) -> set[int]:
    """Return the ids of the turns that are trained somewhere: steps of the agent that it did not throw away."""
    return {turn.turn for turn in turns if turn.purpose == "episode" and turn.turn not in rejected}


def branches(turns: Sequence[CallFacts], trained: Collection[int]) -> list[tuple[list[CallFacts], set[int]]]:
    """Return the branches of an episode, each with the ids of the turns that are trained in it.

    Args:
        turns: All turns, by id.
        trained: Ids of the turns that are trained somewhere. Each is trained in the first branch it is part of; a
            branch ends at one of these with none of these behind it.
    """
    inner: set[int] = set()
    for id in trained:
        parent = turns[id].parent
        while parent is not None and parent not in inner:
            inner.add(parent)
            parent = turns[parent].parent
    found, left = [], set(trained)
    for id in sorted(set(trained) - inner):
        path = path_to(turns, id)
        here = left.intersection(turn.turn for turn in path)
        left -= here
        found.append((path, here))
    return found


def path_to(turns: Sequence[CallFacts], id: int) -> list[CallFacts]:
    """Return the turns of the branch that ends with a turn, first to last."""
    path = [turns[id]]
    while (parent := path[-1].parent) is not None:
        path.append(turns[parent])
    return path[::-1]


def laid(episode: str, path: Sequence[CallFacts], trained: Collection[int]) -> FlatTrajectory:
    """Return a branch laid flat, with loss mask 1 on what the turns in `trained` sampled."""
    ids: list[npt.NDArray[np.int32]] = []
    logprobs: list[npt.NDArray[np.float64]] = []
    runs: list[tuple[int, int, int]] = []  # tokens, origin, loss mask: of closing, context and sampled of each turn
    weights: list[tuple[int, int]] = []  # tokens, version: of what comes before the sampled ones, and of each span
    names: dict[str | None, int] = {}
    for turn in path:
        before = len(turn.closing) + len(turn.context)
        ids += (turn.closing, turn.context, turn.sampled)
        logprobs += (np.zeros(before), turn.logprobs)
        runs += (
            (len(turn.closing), CLOSING, 0),
            (len(turn.context), CONTEXT, 0),
            (len(turn.sampled), SAMPLED, int(turn.turn in trained)),
        )
        weights.append((before, -1))
        weights += ((count, names.setdefault(version, len(names))) for version, count in turn.spans)
    lengths, origins, masks = np.array(runs, np.int64).T
    spans, versions = np.array(weights, np.int64).T
    own = lengths.reshape(-1, 3).sum(axis=1)
    return FlatTrajectory(
        episode=episode,
        turn_ids=tuple(turn.turn for turn in path),
        version_names=tuple(names),
        token_ids=np.concatenate(ids),
        loss_mask=np.repeat(masks.astype(np.int8), lengths),
        logprobs=np.concatenate(logprobs),
        versions=np.repeat(versions.astype(np.int32), spans),
        turns=np.repeat(np.arange(len(path), dtype=np.int32), own),
        origins=np.repeat(origins.astype(np.int8), lengths),
    )
