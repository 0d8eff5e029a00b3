"""A run of tokens of one origin: `Segment`.

Invariant: a sampled segment has one logprob per token and version spans that cover it; any other has neither. A
`Segment` that breaks this cannot be made.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import overload

from strands_sglang.errors import CountMismatchError
from strands_sglang.tokens.origin import Origin
from strands_sglang.tokens.versions import VersionSpan, check_spans


@dataclass(slots=True)
class Segment:
    """Neighbouring tokens of one turn and one origin. To be read, not changed: the turn has the same arrays."""

    origin: Origin
    """Where all of these tokens came from."""
    token_ids: array[int]
    """The ids (32-bit)."""
    logprobs: array[float] | None
    """Log-probability of each token as the engine reported it, same length as the ids; None unless sampled."""
    versions: tuple[VersionSpan, ...]
    """Spans of weight versions, counted from the first token of the segment; empty unless sampled."""
    turn: int
    """Id of the turn it belongs to."""

    def __post_init__(self) -> None:
        count = len(self.token_ids)
        if self.origin is not Origin.SAMPLED:
            if self.logprobs is not None or self.versions:
                raise CountMismatchError(f"{self.origin.name} tokens have no logprobs and no weight versions")
            return
        if self.logprobs is None or len(self.logprobs) != count:
            told = "no" if self.logprobs is None else len(self.logprobs)
            raise CountMismatchError(f"{count} sampled tokens but {told} logprobs")
        check_spans(self.versions, count)

    @property
    def sampled(self) -> bool:
        """Whether these tokens came out of the engine."""
        return self.origin is Origin.SAMPLED

    def __len__(self) -> int:
        return len(self.token_ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self.token_ids)

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> array[int]: ...

    def __getitem__(self, at: int | slice) -> int | array[int]:
        return self.token_ids[at]
