"""What to do where there is a choice: the policies that a user picks from."""

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


class FailedCallPolicy(str, Enum):
    """What to do with a turn that has a malformed tool call. No tool is run for it in either case."""

    TELL = "tell"
    """Tell the model what is wrong, as the result of that call; it can write it again."""
    END = "end"
    """The same, but the agent stops there: good calls of the turn are run, and the model is not asked again."""


class ArgumentCheck(str, Enum):
    """Who says whether the arguments of a well-formed call are those the tool takes."""

    TOOL = "tool"
    """The tool's own validation, in its own words."""
    SCHEMA = "schema"
    """The tool's JSON schema: a call that does not follow it is a failed call, and is not run."""
