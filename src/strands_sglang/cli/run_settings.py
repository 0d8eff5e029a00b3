"""How the episodes of a run were made, as far as its run.json can tell: `RunSettings`.

Invariant: what is taken from a run.json is plain data that was given as such. What it has in words only, a parser of
the user's own say, is named and left out.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from strands_sglang.errors import ConfigurationError
from strands_sglang.rollout import Limits, replay
from strands_sglang.tool_parsers.registry import is_tool_parser_name

_SAMPLING = {"sampling_params", "params"}  # two names for one thing
_NOT_OPTIONS = {*inspect.signature(replay).parameters, "client", "base_url"} - {"model_options"}
_IN_WORDS = re.compile(r"<.*>|[\w.]+\(.*\)", re.DOTALL)  # what `repr` makes of an object


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What `rollout` was given."""

    limits: Limits
    """How far an episode may go."""
    model_options: dict[str, Any]
    """Arguments of `SGLangModel`."""
    left_out: tuple[str, ...] = ()
    """Names of arguments that are on record in words only, and were not given here."""


def run_settings(
    run: Mapping[str, Any] | None, limits: Mapping[str, Any] | None, model_options: Mapping[str, Any]
) -> RunSettings:
    """Return the settings of a run.

    Args:
        run: What run.json says; None: nothing.
        limits: Limits that count in place of those on record; None: those on record.
        model_options: Options that count in place of those of the same name on record.

    Raises:
        ConfigurationError: What was given, or is on record, cannot be.
    """
    wrong = sorted(_NOT_OPTIONS & set(model_options))
    if wrong:
        raise ConfigurationError(f"--model-options has {wrong[0]!r}, which is not an option of the model")
    settings = (run or {}).get("settings")
    recorded = dict(settings) if isinstance(settings, dict) else {}
    bounds = recorded.pop("limits", None)
    for name in _NOT_OPTIONS | set(model_options) | (_SAMPLING if _SAMPLING & set(model_options) else set()):
        recorded.pop(name, None)
    left_out = tuple(name for name, value in recorded.items() if _in_words(name, value))
    options = {name: value for name, value in recorded.items() if name not in left_out} | dict(model_options)
    if limits is not None:
        return RunSettings(_limits(limits), options, left_out)
    known = {field.name for field in fields(Limits)}
    bounds = bounds if isinstance(bounds, dict) else {}
    return RunSettings(_limits({name: bounds[name] for name in bounds if name in known}), options, left_out)


def _limits(values: Mapping[str, Any]) -> Limits:
    known = [field.name for field in fields(Limits)]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ConfigurationError(f"there is no limit {unknown[0]!r}; there are {', '.join(known)}")
    return Limits(**values)


def _in_words(name: str, value: Any) -> bool:
    if name == "tool_parser":
        return value not in (None, "auto") and not is_tool_parser_name(value)
    return isinstance(value, str) and name != "chat_template" and _IN_WORDS.fullmatch(value) is not None
