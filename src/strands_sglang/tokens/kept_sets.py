"""Kept sets: which tokens top-p, top-k and min-p left to choose from at every position.

The engine then samples from a smaller set of tokens than the model's distribution has, with probabilities scaled up to
add to 1. A trainer that does not know the set compares with the wrong probability. So each sampled token
has its set, and two logprobs that are never mixed: over the whole vocabulary (`Turn.logprobs`), and of the behaviour
policy, over the set (`KeptSets.logprobs`).

Invariant: there is one set and one behaviour logprob per token, and the sampled token is in its set. A `KeptSets` that
violates the first cannot be created; `check_members` checks the second.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from strands_sglang.errors import CountMismatchError, TreeError
from strands_sglang.tokens.arrays import logprob_array, token_array


@dataclass(slots=True, eq=False)
class KeptSets:
    """The kept sets of consecutive tokens, as flat arrays. Read-only. Compared by value.

    Example:
        >>> sets = KeptSets.of([[7, 8], [9]], [-0.5, 0.0])
        >>> sets.token_ids.tolist(), sets.offsets.tolist()
        ([7, 8, 9], [0, 2, 3])
    """

    token_ids: array[int]
    """The ids of all sets, one set after the other (32-bit)."""
    offsets: array[int]
    """Where each set begins in `token_ids`, and where the last one ends: one entry more than tokens, from 0."""
    logprobs: array[float]
    """Log-probability of each token under the behaviour policy: renormalised over its set; 0.0 without a set."""

    def __post_init__(self) -> None:
        count = len(self.offsets) - 1
        if count < 0 or self.offsets[0] != 0 or self.offsets[-1] != len(self.token_ids):
            raise CountMismatchError(
                f"offsets of kept sets must run from 0 to {len(self.token_ids)}, got {self.offsets.tolist()[:3]}..."
            )
        if len(self.logprobs) != count:
            raise CountMismatchError(f"{count} kept sets but {len(self.logprobs)} behaviour logprobs")
        if count and int(np.diff(np.asarray(self.offsets)).min()) < 0:
            raise CountMismatchError("offsets of kept sets must not decrease")

    @classmethod
    def of(cls, sets: Iterable[Sequence[int]], logprobs: Iterable[float]) -> KeptSets:
        """Return kept sets from one list of ids per token; TreeError or CountMismatchError if they do not fit."""
        ids, offsets = array("i"), array("i", [0])
        for one in sets:
            ids += token_array(one, "kept")
            offsets.append(len(ids))
        return cls(ids, offsets, logprob_array(logprobs))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def at(self, number: int) -> array[int]:
        """Return the set of one token."""
        return self.token_ids[self.offsets[number] : self.offsets[number + 1]]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KeptSets):
            return NotImplemented
        return (self.token_ids, self.offsets, self.logprobs) == (other.token_ids, other.offsets, other.logprobs)

    def joined(self, later: KeptSets) -> KeptSets:
        """Return these sets followed by `later`."""
        base = len(self.token_ids)
        offsets = self.offsets + array("i", (offset + base for offset in later.offsets[1:]))
        return KeptSets(self.token_ids + later.token_ids, offsets, self.logprobs + later.logprobs)

    def part(self, start: int, end: int) -> KeptSets:
        """Return the sets of some consecutive tokens."""
        first = self.offsets[start]
        offsets = array("i", (offset - first for offset in self.offsets[start : end + 1]))
        return KeptSets(self.token_ids[first : self.offsets[end]], offsets, self.logprobs[start:end])

    def check_members(self, sampled: Sequence[int]) -> None:
        """Raise CountMismatchError unless there is a set for every sampled id, which has the id."""
        if len(self) != len(sampled):
            raise CountMismatchError(f"{len(sampled)} sampled tokens but {len(self)} kept sets")
        if (outside := first_outside(self, sampled)) is not None:
            raise CountMismatchError(f"sampled token {outside} ({sampled[outside]}) is not in its kept set")

    def padded(self, width: int | None = None) -> npt.NDArray[np.int32]:
        """Return the sets as one block of shape (tokens, width; None: largest), with -1 after the ids of each set."""
        sizes = np.diff(np.asarray(self.offsets))
        most = int(sizes.max()) if len(sizes) else 0
        if width is not None and most > width:
            raise CountMismatchError(f"a kept set has {most} tokens, more than {width}")
        block = np.full((len(sizes), most if width is None else width), -1, np.int32)
        block[np.arange(block.shape[1])[None, :] < sizes[:, None]] = np.asarray(self.token_ids)
        return block

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists."""
        names = ("token_ids", "offsets", "logprobs")
        return {name: getattr(self, name).tolist() for name in names}

    @classmethod
    def from_dict(cls, data: Any) -> KeptSets:
        """Return what `to_dict` wrote; TreeError if the data is not that of kept sets."""
        try:
            ids, offsets = token_array(data["token_ids"], "kept"), token_array(data["offsets"], "offset")
            return cls(ids, offsets, logprob_array(data["logprobs"]))
        except (KeyError, TypeError) as error:
            raise TreeError(f"kept sets must have token_ids, offsets and logprobs: {error!r}") from error


def first_outside(sets: KeptSets, sampled: Sequence[int]) -> int | None:
    """Return the first token that is not in its set; None if all are."""
    if not len(sampled):
        return None
    sizes = np.diff(np.asarray(sets.offsets))
    owner = np.repeat(np.arange(len(sampled)), sizes)
    hits = np.asarray(sets.token_ids) == np.asarray(array("i", sampled))[owner]
    found = np.zeros(len(sampled), bool)
    found[owner[hits]] = True
    return None if found.all() else int(found.argmin())


def empty_sets(count: int) -> KeptSets:
    """Return empty sets for `count` tokens that were not sampled."""
    return KeptSets(array("i"), array("i", [0] * (count + 1)), array("d", [0.0] * count))
