"""What commands read from a recorded run: `open_run`, its tokenizer (`tokenizer_of`) and its settings (`run_settings`).

Invariant: only values that run.json stores as plain data are restored. Values that it stores as the `repr` of an
object, such as a custom tool parser, are named and omitted.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strands_sglang._json import as_dict
from strands_sglang.cli._command import tell
from strands_sglang.errors import ConfigurationError, LedgerError
from strands_sglang.ledger.run_dir import read_run, shard_paths

if TYPE_CHECKING:
    from strands_sglang.runs import Limits

_SAMPLING = {"sampling_params", "params"}  # two names of the same option
_REPR = re.compile(r"<.*>|[\w.]+\(.*\)", re.DOTALL)  # looks like the `repr` of an object


def open_run(directory: str | Path, *, needs_run_file: bool = False) -> dict[str, Any]:
    """Return run.json, empty if the run has only a ledger unless `needs_run_file`; LedgerError if there is no run."""
    folder = Path(directory)
    found = read_run(folder) if folder.is_dir() else None
    if found is None and needs_run_file:
        raise LedgerError(f"{directory} is not the directory of a run: it has no run.json")
    if found is None and not shard_paths(folder):
        raise LedgerError(f"{directory} is not the directory of a run: it has no run.json and no ledger")
    return found or {}


def tokenizer_of(run: Mapping[str, Any], given: str | None) -> str:
    """Return the given tokenizer, else that of run.json; ConfigurationError if there is none, or its folder is gone."""
    name = given or run.get("tokenizer")
    if not name or not isinstance(name, str):
        raise ConfigurationError("run.json does not name the tokenizer: pass --tokenizer")
    if given is None and os.path.isabs(name) and not os.path.isdir(name):
        raise ConfigurationError(f"the tokenizer that run.json names no longer exists ({name}): pass --tokenizer")
    return name


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings that were given to `rollout`."""

    limits: Limits
    model_options: dict[str, Any]
    left_out: tuple[str, ...] = ()
    """Names of arguments that run.json stores only as a `repr` and that were not given explicitly."""

    def report_left_out(self) -> None:
        """Name the arguments that were left out, on standard error."""
        for name in self.left_out:
            tell(f"run.json stores {name!r} only as text: it is left out; pass it with --model-options")


def run_settings(
    run: Mapping[str, Any], limits: Mapping[str, Any] | None = None, model_options: Mapping[str, Any] | None = None
) -> RunSettings:
    """Return the settings in run.json, with the given ones in their place; ConfigurationError if a value is invalid."""
    from strands_sglang.cli._run_options import check_model_options
    from strands_sglang.runs import Limits, replay

    given = dict(model_options or {})
    check_model_options(given, replay)
    recorded = dict(as_dict(run.get("settings")))
    recorded_limits = as_dict(recorded.pop("limits", None))
    not_options = {*inspect.signature(replay).parameters, "client", "base_url"}
    for name in not_options | set(given) | (_SAMPLING if _SAMPLING & set(given) else set()):
        recorded.pop(name, None)
    left_out = tuple(name for name, value in recorded.items() if _is_repr(name, value))
    options = {name: value for name, value in recorded.items() if name not in left_out} | given
    chosen = Limits.from_recorded(recorded_limits) if limits is None else _limits(limits)
    return RunSettings(chosen, options, left_out)


def _limits(values: Mapping[str, Any]) -> Limits:
    from strands_sglang.runs import Limits

    known = [field.name for field in fields(Limits)]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ConfigurationError(f"limits must be among {', '.join(known)}, got {unknown[0]!r}")
    return Limits(**values)


def _is_repr(name: str, value: Any) -> bool:
    if name == "tool_parser":
        from strands_sglang.tool_parsers import is_tool_parser_name

        return value not in (None, "auto") and not is_tool_parser_name(value)
    return isinstance(value, str) and name != "chat_template" and _REPR.fullmatch(value) is not None
