"""Checks of teacher events: `read_teacher`, `TeacherFacts`.

Invariant: a teacher event is accepted only if it has one logprob for every sampled token of the turns it names, the
branches that were sent are the recorded ones and contain these turns, and the logprobs of each token fit together: the
likeliest ids are in order, none occurs twice, and the sampled token is among them with its own logprob, or is less
likely than all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import Event
from strands_sglang.proof.call import MAX_LOGPROB, CallFacts
from strands_sglang.proof.trajectories import path_to

_ROUNDING = 1e-4
"""Largest difference of two equal probabilities: the engine computes the logprob of the sampled token and those of the
likeliest ids apart."""


@dataclass(slots=True, eq=False)
class TeacherFacts:
    """The scores of a teacher, decoded from its event."""

    top: int
    """Number of likeliest ids per token."""
    turns: list[tuple[int, int]]
    """Turn ids with their number of scored tokens, in the order of the arrays."""
    branches: list[tuple[int, int, str]]
    """Last turn, number of tokens and digest of each branch that was sent."""
    logprobs: npt.NDArray[np.float64]
    top_ids: npt.NDArray[np.int32]
    """Likeliest ids, shape (tokens, top)."""
    top_logprobs: npt.NDArray[np.float64]
    """Their logprobs, shape (tokens, top)."""

    def problem(self, calls: Sequence[CallFacts]) -> tuple[int | None, str] | None:
        """Return what contradicts the recorded turns, with the turn if it is one; None if nothing does.

        Args:
            calls: The turns of the episode, by id.
        """
        for branch, tokens, digest in self.branches:
            if branch >= len(calls) or _branch_digest(calls, branch, tokens) != digest:
                return (
                    branch,
                    f"the {tokens} tokens that the teacher scored are not those of branch {branch}",
                )
        sent = {
            call.turn for branch, tokens, _ in self.branches for call in path_to(calls, branch) if call.end <= tokens
        }
        sampled = []
        for turn, count in self.turns:
            if turn not in sent:
                return turn, f"the teacher scored turn {turn}, which is in no branch that it was sent"
            if len(calls[turn].sampled) != count:
                return turn, f"the teacher scored {count} tokens of turn {turn}, which has another number"
            sampled.append(calls[turn].sampled)
        ids = np.concatenate(sampled) if sampled else np.empty(0, np.int32)
        wrong = self._wrong_rows(ids)
        if not wrong.any():
            return None
        at = int(wrong.argmax())
        ends = np.cumsum([count for _, count in self.turns])
        number = int(np.searchsorted(ends, at, side="right"))
        token = at - int(ends[number]) + self.turns[number][1]
        return self.turns[number][0], f"the teacher's logprobs of sampled token {token} contradict each other"

    def _wrong_rows(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Return which tokens have logprobs that do not fit together."""
        wrong = ~(np.isfinite(self.logprobs) & (self.logprobs <= MAX_LOGPROB))
        if not self.top:
            return wrong
        values = self.top_logprobs
        wrong |= (np.isnan(values) | (values > MAX_LOGPROB)).any(axis=1) | (self.top_ids < 0).any(axis=1)
        wrong |= (np.diff(values, axis=1) > 0).any(axis=1)
        wrong |= (np.diff(np.sort(self.top_ids, axis=1), axis=1) == 0).any(axis=1)
        wrong |= np.exp(np.minimum(values, 0.0)).sum(axis=1) > 1.0 + 1e-3
        inside = self.top_ids == ids[:, None]
        own = np.where(inside, values, -np.inf).max(axis=1)
        known = inside.any(axis=1)
        with np.errstate(invalid="ignore"):  # of two infinities; such a logprob is wrong already
            wrong |= known & (np.abs(own - self.logprobs) > _ROUNDING)
        wrong |= ~known & (self.logprobs > values[:, -1] + _ROUNDING)
        return wrong


def read_teacher(event: Event) -> TeacherFacts:
    """Decode a teacher event.

    Raises:
        LedgerError: The event does not have the format of a teacher event.
    """
    data: Any = event.data
    top, turns, branches = data.get("top"), data.get("turns"), data.get("branches")
    if type(top) is not int or top < 0 or not isinstance(data.get("model"), str):
        raise LedgerError(f"model must be a string and top an int of at least 0, got {top!r:.50}")
    if not isinstance(turns, list) or not all(_is_pair(turn) for turn in turns):
        raise LedgerError(f"turns must be a list of [turn id, count], got {turns!r:.100}")
    if not isinstance(branches, list) or not all(_is_branch(branch) for branch in branches):
        raise LedgerError(f"branches must be a list of [branch, tokens, digest], got {branches!r:.100}")
    if len({turn for turn, _ in turns}) != len(turns):
        raise LedgerError(f"turns must name each turn once, got {turns!r:.100}")
    if data.get("temperature") != 1.0:
        raise LedgerError(f"temperature must be 1, got {data.get('temperature')!r:.50}")
    count = sum(number for _, number in turns)
    arrays = {}
    for name, code, wanted in (
        ("logprobs", "d", count),
        ("top_ids", "i", count * top),
        ("top_logprobs", "d", count * top),
    ):
        values = event.arrays.get(name)
        if values is None or values.typecode != code or len(values) != wanted:
            raise LedgerError(f"array {name!r} must have {wanted} values of type {code!r}")
        arrays[name] = np.asarray(values)
    return TeacherFacts(
        top=top,
        turns=[(turn, number) for turn, number in turns],
        branches=[(branch, tokens, digest) for branch, tokens, digest in branches],
        logprobs=arrays["logprobs"],
        top_ids=arrays["top_ids"].reshape(count, top),
        top_logprobs=arrays["top_logprobs"].reshape(count, top),
    )


def _branch_digest(calls: Sequence[CallFacts], branch: int, tokens: int) -> str:
    """Return the digest of the first tokens of a branch, as they are sent: ids, then the digests of their images."""
    state, left, images = hashlib.blake2b(digest_size=16), tokens, list[str]()
    for call in path_to(calls, branch):
        images += [image.digest for image in call.images if call.start + len(call.closing) + image.start < tokens]
        for part in (call.closing, call.context, call.sampled):
            state.update(np.ascontiguousarray(part[: max(left, 0)], "<i4").data)
            left -= len(part)
    for digest in images:
        state.update(bytes.fromhex(digest))
    return "" if left > 0 else state.hexdigest()


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(one) is int and one >= 0 for one in value)


def _is_branch(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and _is_pair(value[:2]) and isinstance(value[2], str)
