"""Where a token came from: `Origin`.

Invariant: every token of a branch has exactly one origin, and loss is only ever on `SAMPLED`.
"""

from __future__ import annotations

from enum import IntEnum


class Origin(IntEnum):
    """Where a token came from. A number, so that it fits an int8 array; the numbers never change."""

    CONTEXT = 0
    """Rendered from the chat template: system, tools, users, tool results, generation prompts."""
    SAMPLED = 1
    """Came out of the engine."""
    CLOSING = 2
    """An end-of-turn token the model did not sample (its turn was cut) and that had to be added."""
