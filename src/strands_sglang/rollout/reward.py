"""What an episode is worth: `Reward`.

Invariant: a reward is finite numbers, or it has an error and no value.
"""

from __future__ import annotations

import inspect
import math
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from strands_sglang.tokens import TokenTree, Turn, TurnPurpose

RewardFunction: TypeAlias = Callable[..., Any]
"""Takes an `Episode`, or a `Task` and an `Episode`; returns, or awaits, what `Reward.of` takes."""

_LONGEST = 500
"""Characters kept of an error's words."""


@dataclass(frozen=True, slots=True)
class Reward:
    """What an episode is worth."""

    value: float | None = None
    """In one number; None: it was not scored, or scoring failed."""
    parts: dict[str, float] = field(default_factory=dict)
    """Numbers to look at beside the value, by name; never trained on."""
    steps: tuple[float, ...] = ()
    """One for each of the agent's own turns (see `own_turns`), in order; empty: it was scored as a whole."""
    error: str | None = None
    """Why scoring failed; None: it did not."""

    @classmethod
    def of(cls, returned: Any) -> Reward:
        """Return what a function returned as a reward; what cannot be one is a reward with an error.

        Args:
            returned: A number (Python's, numpy's or a tensor of one); a dict with the number under "reward" or
                "score" (further numbers are parts, a sequence under "steps" is the steps, anything else is passed
                over); a sequence of numbers, one a step, worth their sum; a `Reward`; None: not scored.
        """
        try:
            return cls._of(returned)
        except Exception as error:  # objects from anywhere: `float(x)` and `x[i]` may run any code
            return cls(error=described(error))

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
                    f"a dict needs the number under 'reward' or 'score', but has {list(returned)}"[:_LONGEST]
                )
            others = {str(key): value for key, value in returned.items() if key not in (name, "steps")}
            parts = {key: _number(value, f"part {key!r}") for key, value in others.items() if _is_number(value)}
            value = None if returned[name] is None else _number(returned[name], f"{name!r}")
            return cls(value, parts, _numbers(() if returned.get("steps") is None else returned["steps"]))
        if _is_number(returned):
            return cls(_number(returned, "the reward"))
        steps = _numbers(returned)
        return cls(_number(math.fsum(steps), "the sum of the steps"), {}, steps)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"value": self.value, "parts": dict(self.parts), "steps": list(self.steps), "error": self.error}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Reward:
        """Return what `to_dict` wrote."""
        parts, steps = dict(data.get("parts") or {}), tuple(data.get("steps") or ())
        return cls(data.get("value"), parts, steps, data.get("error"))


def own_turns(tree: TokenTree) -> list[Turn]:
    """Return the turns that the agent itself took on its task, in the order of commit: what `Reward.steps` counts.

    Those of sub-agents (which were started from within a tool call), rejected ones and those of another purpose are
    left out. Where history was rewritten they lie on several branches.
    """
    called: set[int] = set()
    turns = []
    for turn in tree.turns:  # parents come first
        if turn.caller is not None or turn.parent in called:
            called.add(turn.id)
        elif turn.purpose is TurnPurpose.EPISODE and not turn.rejected:
            turns.append(turn)
    return turns


def described(error: BaseException, function: RewardFunction | None = None) -> str:
    """Return an error in one line: its class, its words, and the file and line, in the function's file if it can be."""
    try:
        words = str(error)
    except Exception:
        words = "(its words could not be had)"
    frames = traceback.extract_tb(error.__traceback__)
    home = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    ours = [frame for frame in frames if home is not None and frame.filename == home.co_filename]
    text = f"{type(error).__name__}: {words}"[:_LONGEST]
    if function is None or not frames:
        return text
    place = (ours or frames)[-1]
    return f"{text} ({os.path.basename(place.filename)}:{place.lineno})"


def _is_number(value: Any) -> bool:
    return (
        not isinstance(value, (str, bytes, complex)) and hasattr(value, "__float__") and not getattr(value, "ndim", 0)
    )


def _number(value: Any, what: str) -> float:
    if not _is_number(value):
        raise TypeError(f"{what} is not a number but {value!r:.200}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{what} is {number}")
    return number


def _numbers(values: Any) -> tuple[float, ...]:
    values = values.tolist() if getattr(values, "ndim", 0) == 1 else values
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes, bytearray)):
        raise TypeError(f"a reward is a number, a dict, a sequence of numbers or None, not {values!r:.200}")
    return tuple(_number(value, f"step {place}") for place, value in enumerate(values))
