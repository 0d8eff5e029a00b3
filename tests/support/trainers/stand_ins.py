"""Modules of a trainer that is not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def installed(trainer: str, modules: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Let our adapter of a trainer be imported as if the trainer's modules, with these contents, were installed."""
    before = {name: sys.modules.get(name) for name in modules}
    for name, content in modules.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(content)
    try:
        yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
        sys.modules.pop(f"strands_sglang.trainers.{trainer}", None)
