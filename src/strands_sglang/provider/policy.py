"""What to do where a conversation cannot simply go on: `RewritePolicy`."""

from __future__ import annotations

from enum import Enum


class RewritePolicy(str, Enum):
    """What to do when history, as the template or the framework wants it, is not what the branch holds."""

    KEEP = "keep"
    """Append as it stands: one branch, every sampled token in it, the prefix cache whole."""
    FORK = "fork"
    """Render the conversation anew as a branch of its own. What was sampled before is context there, not trained
    twice."""
    REFUSE = "refuse"
    """Raise `BridgeRefusedError`."""
