"""Trajectories and token counts, recomputed from call events: `FlatTrajectory`, `TokenCounts`.

Invariants: this module shares no code with `tokens/`, only the definitions in docs/ledger.md, so that an error there is
not repeated here. Every sampled token is trained once or is in exactly one of the counts that give a reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from strands_sglang.proof.call import CallFacts, ImageFacts, KeptFacts
from strands_sglang.proof.staleness import StalenessFacts

CONTEXT, SAMPLED, CLOSING = 0, 1, 2
"""Origins of a token, as numbered in the ledger."""

COLUMNS: dict[str, np.dtype[Any]] = {
    "token_ids": np.dtype("<i4"),
    "loss_mask": np.dtype("<i1"),
    "logprobs": np.dtype("<f8"),
    "versions": np.dtype("<i4"),
    "turns": np.dtype("<i4"),
    "origins": np.dtype("<i1"),
}
"""Arrays of a trajectory and their types, in the order in which the digest covers them."""


@dataclass(slots=True, eq=False)
class FlatTrajectory:
    """One branch as flat arrays, one element per token."""

    episode: str
    turn_ids: tuple[int, ...]
    """Ids of the turns of the branch, first to last."""
    version_names: tuple[str | None, ...]
    """Weight versions in order of first use."""
    token_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.int8]
    """1 for tokens to train."""
    logprobs: npt.NDArray[np.float64]
    """Logprobs; 0.0 for tokens that were not sampled."""
    versions: npt.NDArray[np.int32]
    """Index into `version_names`; -1 for tokens that were not sampled."""
    turns: npt.NDArray[np.int32]
    """Index into `turn_ids`."""
    origins: npt.NDArray[np.int8]
    """Origin: `CONTEXT`, `SAMPLED` or `CLOSING`."""
    images: tuple[ImageFacts, ...] = ()
    """The images of the branch, in order; `start` counts from its first token."""
    kept: KeptFacts | None = None
    """The kept set of every token, empty where nothing was sampled; None unless all that was sampled has them."""

    @property
    def branch(self) -> int:
        """Id of the last turn."""
        return self.turn_ids[-1]

    def digest(self) -> str:
        """Return the digest as it is declared in the episode's end event."""
        whole = hashlib.blake2b(digest_size=16)
        for name, kind in COLUMNS.items():
            whole.update(np.ascontiguousarray(getattr(self, name), kind).data)
        whole.update(orjson.dumps([self.version_names, self.turn_ids]))
        if self.kept is not None:
            for values, form in zip(self.kept, ("<i4", "<i4", "<f8"), strict=True):
                whole.update(np.ascontiguousarray(values, form).data)
        if self.images:
            whole.update(orjson.dumps([list(image) for image in self.images]))
        return whole.hexdigest()


def trainable_turns(turns: Sequence[CallFacts], rejected: Collection[int]) -> set[int]:
    """Return the ids of the turns to train: the agent's own turns that it did not reject."""
    return {turn.turn for turn in turns if turn.purpose == "episode" and turn.turn not in rejected}


def find_branches(turns: Sequence[CallFacts], trained: Collection[int]) -> list[tuple[list[CallFacts], set[int]]]:
    """Return the branches of an episode, each with the ids of the turns that are trained in it.

    Args:
        turns: All turns, by id.
        trained: Ids of the turns to train. Each is trained in the first branch that contains it; a branch ends with a
            trained turn that no other trained turn follows.
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
    """Return the turns of the branch that ends with turn `id`, first to last."""
    path = [turns[id]]
    while (parent := path[-1].parent) is not None:
        path.append(turns[parent])
    return path[::-1]


def flatten_branch(episode: str, path: Sequence[CallFacts], trained: Collection[int]) -> FlatTrajectory:
    """Return a branch as flat arrays, with loss mask 1 on the sampled tokens of the turns in `trained`."""
    ids: list[npt.NDArray[np.int32]] = []
    logprobs: list[npt.NDArray[np.float64]] = []
    runs: list[tuple[int, int, int]] = []  # tokens, origin and loss mask of each turn's closing, context and sampled
    weights: list[tuple[int, int]] = []  # tokens and version of the tokens before the sampled ones, and of each span
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
        images=tuple(
            image._replace(start=turn.start + len(turn.closing) + image.start) for turn in path for image in turn.images
        ),
        kept=_kept(path),
    )


def _kept(path: Sequence[CallFacts]) -> KeptFacts | None:
    """Return the kept sets of a branch; None unless all that was sampled in it has them."""
    known = [turn for turn in path if turn.kept is not None]
    if not known or any(turn.kept is None and len(turn.sampled) for turn in path):
        return None
    sizes: list[npt.NDArray[Any]] = []
    logprobs: list[npt.NDArray[np.float64]] = []
    for turn in path:
        before = len(turn.closing) + len(turn.context)
        sizes.append(np.zeros(before, np.int64))
        logprobs.append(np.zeros(before))
        if turn.kept is not None:
            sizes.append(np.diff(turn.kept.offsets))
            logprobs.append(turn.kept.logprobs)
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int32)
    ids = np.concatenate([turn.kept.token_ids for turn in known if turn.kept is not None])
    return KeptFacts(ids, offsets, np.concatenate(logprobs))


@dataclass(slots=True)
class TokenCounts:
    """Token counts of an episode or a run. A token that several branches share is counted once."""

    trained: int = 0
    """Sampled tokens with loss mask 1 in one trajectory."""
    rejected: int = 0
    """Sampled tokens of turns that the agent rejected."""
    side: int = 0
    """Sampled tokens of the framework's own calls, such as summaries."""
    constrained: int = 0
    """Sampled tokens decoded under a grammar."""
    rolled_back: int = 0
    """Sampled tokens of turns that were rolled back."""
    stale: int = 0
    """Sampled tokens that were too old to be trained, or whose group was."""
    unfinished: int = 0
    """Sampled tokens of episodes that may be resumed, whatever their purpose: without an end, failed, or stopped."""
    context: int = 0
    closing: int = 0
    """Tokens added to close interrupted turns."""
    shared: int = 0
    """Positions in later branches, masked, of tokens trained in an earlier branch; not additional tokens."""

    @property
    def sampled(self) -> int:
        """All sampled tokens."""
        left = self.rejected + self.side + self.constrained + self.rolled_back + self.stale + self.unfinished
        return self.trained + left

    def count(
        self,
        turns: Sequence[CallFacts],
        trained: Collection[int],
        trajectories: Iterable[FlatTrajectory],
        *,
        finished: bool,
        stale: StalenessFacts | None = None,
    ) -> None:
        """Count the tokens of an episode.

        Args:
            turns: Turns of the episode, by id.
            trained: Ids of the turns to train.
            trajectories: Trajectories of the episode.
            finished: Whether the episode has an end after which it is not resumed; if not, no token is trained.
            stale: What was decided because of the age of its tokens; None: nothing.
        """
        for turn in turns:
            self.context += len(turn.context)
            self.closing += len(turn.closing)
            if not finished:
                self.unfinished += len(turn.sampled)
            elif turn.purpose == "side":
                self.side += len(turn.sampled)
            elif turn.purpose == "constrained":
                self.constrained += len(turn.sampled)
            elif turn.turn not in trained:
                self.rejected += len(turn.sampled)
        if not finished:
            return
        for flat in trajectories:
            loss = int(flat.loss_mask.sum(dtype=int))
            self.trained += loss
            self.shared += sum(len(turns[id].sampled) for id in flat.turn_ids if id in trained) - loss
            old = loss - int(flat.loss_mask.sum(dtype=int, where=~stale.too_old_in(flat))) if stale else 0
            self.stale, self.trained = self.stale + old, self.trained - old

    def add(self, other: TokenCounts) -> None:
        """Add the counts of another episode."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def to_dict(self) -> dict[str, int]:
        """Return the counts as plain data."""
        return {**asdict(self), "sampled": self.sampled}
