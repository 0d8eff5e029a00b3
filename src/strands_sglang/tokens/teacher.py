"""Logprobs that a teacher model gives to tokens that another model sampled: `TeacherLogprobs`.

A teacher scores each sampled token after the same tokens before it, at temperature 1.

Invariant: there is one logprob per token, and `top` likeliest ids and their logprobs per token, or none for a token
that was not sampled.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from strands_sglang.errors import CountMismatchError, TreeError
from strands_sglang.tokens.arrays import logprob_array

NO_ID = -1  # in place of a likeliest id, where a token was not sampled


@dataclass(slots=True, eq=False)
class TeacherLogprobs:
    """A teacher's logprobs of consecutive tokens, as flat arrays. Read-only. Compared by value.

    Example:
        >>> scores = TeacherLogprobs.of([-0.5, -1.0], [[7, 8], [9, 7]], [[-0.5, -2.0], [-0.1, -3.0]])
        >>> scores.top, scores.top_ids.tolist()
        (2, [7, 8, 9, 7])
    """

    logprobs: array[float]
    """Logprob of each token, at temperature 1; 0.0 for a token that was not sampled."""
    top_ids: array[int] = field(default_factory=lambda: array("i"))
    """Likeliest ids at each position, likeliest first, one row after the other; -1 where nothing was sampled."""
    top_logprobs: array[float] = field(default_factory=lambda: array("d"))
    """Their logprobs; 0.0 where nothing was sampled."""
    top: int = 0
    """Number of likeliest ids per token; 0: not requested."""

    def __post_init__(self) -> None:
        wanted = len(self.logprobs) * self.top
        if self.top < 0 or len(self.top_ids) != wanted or len(self.top_logprobs) != wanted:
            raise CountMismatchError(
                f"{len(self.logprobs)} tokens with {self.top} likeliest ids each need {wanted} ids and logprobs, got "
                f"{len(self.top_ids)} and {len(self.top_logprobs)}"
            )

    @classmethod
    def of(cls, logprobs: Any, top_ids: Any = (), top_logprobs: Any = ()) -> TeacherLogprobs:
        """Return scores from one logprob per token, and rows of likeliest ids and their logprobs (empty: none)."""
        ids, values = np.asarray(top_ids, np.int32), np.asarray(top_logprobs, np.float64)
        top = int(ids.shape[1]) if ids.ndim == 2 else 0
        return cls(
            logprob_array(logprobs), array("i", ids.ravel().tobytes()), array("d", values.ravel().tobytes()), top
        )

    def __len__(self) -> int:
        return len(self.logprobs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TeacherLogprobs):
            return NotImplemented
        return (self.top, self.logprobs, self.top_ids, self.top_logprobs) == (
            other.top,
            other.logprobs,
            other.top_ids,
            other.top_logprobs,
        )

    @property
    def top_id_rows(self) -> npt.NDArray[np.int32]:
        """The likeliest ids as one block of shape (tokens, top)."""
        return np.asarray(self.top_ids).reshape(len(self), self.top)

    @property
    def top_logprob_rows(self) -> npt.NDArray[np.float64]:
        """Their logprobs as one block of shape (tokens, top)."""
        return np.asarray(self.top_logprobs).reshape(len(self), self.top)

    def part(self, start: int, end: int) -> TeacherLogprobs:
        """Return the scores of some consecutive tokens."""
        rows = slice(start * self.top, end * self.top)
        return TeacherLogprobs(self.logprobs[start:end], self.top_ids[rows], self.top_logprobs[rows], self.top)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists; floats come back bit for bit."""
        return {
            "logprobs": self.logprobs.tolist(),
            "top_ids": self.top_ids.tolist(),
            "top_logprobs": self.top_logprobs.tolist(),
            "top": self.top,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TeacherLogprobs:
        """Return the scores that `to_dict` wrote; TreeError if the content is inconsistent."""
        try:
            return cls(
                logprob_array(data["logprobs"]),
                array("i", data["top_ids"]),
                array("d", data["top_logprobs"]),
                int(data["top"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError, CountMismatchError) as error:
            raise TreeError(f"not logprobs of a teacher: {error!r}") from error
