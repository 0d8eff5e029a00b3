"""Every attribute of the Strands SDK, to see whether one was replaced. Imports nothing of this package."""

from __future__ import annotations

import sys
import types
from typing import Any

from strands.telemetry.metrics import MetricsClient
from strands.telemetry.tracer import get_tracer

Attributes = dict[str, dict[str, Any]]

_OF_PYTHON = {"_abc_impl", "__annotations__", "__annotations_cache__", "__abstractmethods__", "__warningregistry__"}
"""Attributes that Python itself adds or replaces."""


def attributes() -> Attributes:
    """Return the attributes of every loaded module of the SDK, of its classes, and of the tracer that agents share."""
    MetricsClient()  # both are singletons, which the SDK makes when they are first used
    found: Attributes = {"the shared tracer": dict(vars(get_tracer()))}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] != "strands" or not isinstance(module, types.ModuleType):
            continue
        found[name] = dict(vars(module))
        for one in found[name].values():
            if isinstance(one, type) and one.__module__.split(".")[0] == "strands":
                found[f"{one.__module__}.{one.__qualname__}"] = dict(vars(one))
    return found


def changes(before: Attributes) -> set[str]:
    """Return the attributes that are not the same objects as before. A submodule imported since is no change."""
    changed, now, missing = set(), attributes(), object()
    for owner, old in before.items():
        for name in (old.keys() | now[owner].keys()) - _OF_PYTHON:
            value = now[owner].get(name, missing)
            if value is not old.get(name, missing) and not (name not in old and isinstance(value, types.ModuleType)):
                changed.add(f"{owner}.{name}")
    return changed
