"""Limits: numbers above zero, or none."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from strands_sglang.errors import ConfigurationError
from strands_sglang.rollout.bounds import Limits

NAMES = [limit.name for limit in fields(Limits)]
TIMES = [name for name in NAMES if name.startswith("seconds")]


def test_no_limit_unless_asked_for() -> None:
    assert all(getattr(Limits(), name) is None for name in NAMES)
    assert Limits(**dict.fromkeys(NAMES, 3)).turns == 3
    assert Limits(seconds_per_tool=0.5, seconds_per_episode=1.5).seconds_per_tool == 0.5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [0, -1, True, "5", -0.5])
def test_what_cannot_be_a_limit_is_refused_by_name(name: str, bad: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"Limits.{name} must be a number above 0 or None"):
        Limits(**{name: bad})


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(TIMES)))
def test_what_is_counted_is_whole(name: str) -> None:
    with pytest.raises(ConfigurationError):
        Limits(**{name: 1.5})  # type: ignore[arg-type]
