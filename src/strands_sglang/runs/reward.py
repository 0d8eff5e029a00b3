"""The score of an episode: `Reward`, created from the return value of a reward function.

Invariant: all numbers of a reward are finite; a reward with an error has no value.
"""

from __future__ import annotations

import inspect
import math
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strands_sglang.ledger.event import RewardData
from strands_sglang.tokens import TokenTree, Turn, TurnPurpose

_MAX_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Reward:
    """The score of an episode.

    Example:
        >>> def reward(episode):
        ...     correct = float(str(episode.task.answer) in episode.text)
        ...     return {"reward": correct, "turns": episode.metrics.turns}  # `turns` becomes a part
    """

    value: float | None = None
    """The reward as one number; None: the episode was not scored, or scoring failed."""
    parts: dict[str, float] = field(default_factory=dict)
    """Additional numbers by name, for logging; never trained on."""
    steps: tuple[float, ...] = ()
    """One number for each of the agent's own turns (see `own_turns`), in order; empty: no reward per turn."""
    error: str | None = None
    """Why scoring failed; None: it did not fail."""

    @classmethod
    def of(cls, returned: Any) -> Reward:
        """Return the return value of a reward function as a `Reward`; an invalid value gives a reward with an error.

        Args:
            returned: A number (of Python or numpy, or a tensor with one element); a dict with the number under "reward"
                or "score" (other numbers become parts, a sequence under "steps" becomes the steps, anything else is
                ignored); a sequence of numbers, one per step, whose sum is the value; a `Reward`; None: not scored.
        """
        try:
            return cls._of(returned)
        except Exception as error:  # the object may be of any class: `float(x)` and `x[i]` can run any code
            return cls(error=describe_error(error))

    @classmethod
    def _of(cls, returned: Any) -> Reward:
        if returned is None:
            return cls()
        if isinstance(returned, Reward):
            parts = {name: _number(part, f"part {name!r}") for name, part in returned.parts.items()}
            value = None if returned.value is None else _number(returned.value, "the reward")
            return cls(value if returned.error is None else None, parts, _numbers(returned.steps), returned.error)
        if isinstance(returned, Mapping):
            name = next((name for name in ("reward", "score") if name in returned), None)
            if name is None:
                raise ValueError(
                    f"a reward dict must have the key 'reward' or 'score', got the keys {list(returned)}"[
                        :_MAX_CHARACTERS
                    ]
                )
            others = {str(key): value for key, value in returned.items() if key not in (name, "steps")}
            parts = {key: _number(value, f"part {key!r}") for key, value in others.items() if _is_number(value)}
            value = None if returned[name] is None else _number(returned[name], f"{name!r}")
            return cls(value, parts, _numbers(() if returned.get("steps") is None else returned["steps"]))
        if _is_number(returned):
            return cls(_number(returned, "the reward"))
        steps = _numbers(returned)
        return cls(_number(math.fsum(steps), "the sum of the steps"), {}, steps)

    def to_dict(self) -> RewardData:
        """Return the reward as the data of a `REWARD` event."""
        return {"value": self.value, "parts": dict(self.parts), "steps": list(self.steps), "error": self.error}

    @classmethod
    def from_dict(cls, data: RewardData) -> Reward:
        """Return the reward described by data from `to_dict`."""
        parts, steps = dict(data.get("parts") or {}), tuple(data.get("steps") or ())
        return cls(data.get("value"), parts, steps, data.get("error"))


def own_turns(tree: TokenTree) -> list[Turn]:
    """Return the agent's own turns on its task, in the order of commit: the turns that `Reward.steps` is aligned with.

    Turns of sub-agents (started from within a tool call), rejected turns and turns with another purpose are left out.
    If the history was rewritten, the turns are on several branches.
    """
    called: set[int] = set()
    turns = []
    for turn in tree.turns:  # a parent comes before its children
        if turn.caller is not None or turn.parent in called:
            called.add(turn.id)
        elif turn.purpose is TurnPurpose.EPISODE and not turn.rejected:
            turns.append(turn)
    return turns


def describe_error(error: BaseException, function: Callable[..., Any] | None = None) -> str:
    """Return an error in one line: its class, its message, and a file and line.

    `function` raised it: the innermost line in its file is named, else the innermost of all; None: no line is named.
    """
    frames = traceback.extract_tb(error.__traceback__)
    home = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    ours = [frame for frame in frames if home is not None and frame.filename == home.co_filename]
    text = f"{type(error).__name__}: {message_of(error)}"[:_MAX_CHARACTERS]
    if function is None or not frames:
        return text
    place = (ours or frames)[-1]
    return f"{text} ({os.path.basename(place.filename)}:{place.lineno})"


def message_of(error: BaseException) -> str:
    """Return the message of an error, whose class may be the user's."""
    try:
        return str(error)
    except Exception:
        return "<unprintable exception>"


def _is_number(value: Any) -> bool:
    return (
        not isinstance(value, (str, bytes, complex)) and hasattr(value, "__float__") and not getattr(value, "ndim", 0)
    )


def _number(value: Any, what: str) -> float:
    if not _is_number(value):
        raise TypeError(f"{what} must be a number, got {value!r:.200}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{what} must be finite, got {number}")
    return number


def _numbers(values: Any) -> tuple[float, ...]:
    values = values.tolist() if getattr(values, "ndim", 0) == 1 else values
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes, bytearray)):
        raise TypeError(f"a reward must be a number, a dict, a sequence of numbers or None, got {values!r:.200}")
    return tuple(_number(value, f"step {place}") for place, value in enumerate(values))
