"""How large tests are: small in CI, full size in a soak (`scripts/soak`, which sets `STRANDS_SGLANG_SOAK`)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

SOAK = bool(os.environ.get("STRANDS_SGLANG_SOAK"))
LONG_FAMILIES = (
    *("qwen3", "qwen3-coder", "llama-3.1", "mistral-small-3.2"),
    *("deepseek-v3.1", "glm-4.5", "gpt-oss", "kimi-k2"),
)
"""Families that run the long properties in CI: each writes its calls in another format."""


def size(short: int, full: int) -> int:
    return full if SOAK else short


def examples(count: int) -> int:
    """Return the number of examples of a property test: a quarter of them in CI, all in a soak.

    A failure that was found once is in hypothesis' database, and is tried again first.
    """
    return size(max(count // 4, 50), count)


def long_families(families: Iterable[str], *more: str) -> list[Any]:
    """Return parameters for a long property: eight families (and `more`) in CI, all of them in a soak."""
    chosen = {*LONG_FAMILIES, *more}
    return [name if name in chosen else pytest.param(name, marks=pytest.mark.soak) for name in families]
