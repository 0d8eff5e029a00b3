"""`scripts/agents` as a module."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).resolve().parents[3] / "scripts" / "agents"


@cache
def agents_script() -> Any:
    """Return the script, which has no name that can be imported."""
    loader = importlib.machinery.SourceFileLoader("agents_script", str(_FILE))
    made = importlib.util.module_from_spec(importlib.util.spec_from_loader("agents_script", loader))  # type: ignore[arg-type]
    sys.modules["agents_script"] = made  # where its dataclasses look for their annotations
    loader.exec_module(made)
    return made
