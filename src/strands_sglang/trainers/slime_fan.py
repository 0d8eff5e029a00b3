"""The samples of one episode as slime takes and gives them back: `Fan`.

slime takes a list where one rollout made several samples. But where it puts such a list aside (partial rollouts, fully
asynchronous ones) and takes it up again, it reads and writes it like a single sample.

Invariant: a fan is a list of samples, never empty; an attribute that is read is that of its first sample, one that is
written is written to all, each of which stays whole.
"""

from __future__ import annotations

from typing import Any


class Fan(list[Any]):
    """Samples of one episode, the main branch first."""

    @property
    def index(self) -> Any:
        """Number of the sample, by which slime sorts groups; a list's own method of this name is not to be had."""
        return self[0].index

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not self:
            raise AttributeError(name)
        return getattr(self[0], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "loss_mask" and value is not None and not any(value):
            # What comes back to slime's partial rollouts is masked as a whole, with zeros as many as the first has.
            for sample in self:
                sample.loss_mask = [0] * sample.response_length
            return
        for sample in self:
            setattr(sample, name, value)


def first_of(given: Any) -> Any:
    """Return the sample to be run: the given one, or the first of a list that comes back."""
    return given[0] if isinstance(given, list) else given
