"""A turn that was cut in its middle because its episode is set aside: `HalfTurn`.

Invariant: `sampled` is what came out of the engine for exactly this prompt.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from strands_sglang.engine import Generation


class HalfTurn(NamedTuple):
    """A turn that was cut because its episode is halted."""

    prompt: array[int]
    """Ids of the prompt."""
    sampled: Generation
    """What was sampled."""
    within: tuple[str, ...]
    """Ids of the tool calls it is inside of; empty: it is the agent's own."""
