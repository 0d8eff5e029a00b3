"""`Limits`: positive numbers, or None."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs.limits import Limits

NAMES = [limit.name for limit in fields(Limits)]
TIMES = [name for name in NAMES if name.endswith("timeout")]


def test_default_is_no_limit() -> None:
    assert all(getattr(Limits(), name) is None for name in NAMES)
    assert Limits(**dict.fromkeys(NAMES, 3)).max_turns == 3
    assert Limits(tool_timeout=0.5, episode_timeout=1.5).tool_timeout == 0.5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [0, -1, True, "5", -0.5])
def test_invalid_limit_is_rejected_by_name(name: str, bad: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"Limits.{name} must be (an int >= 1|a number > 0) or None"):
        Limits(**{name: bad})


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(TIMES)))
def test_counted_limits_must_be_ints(name: str) -> None:
    with pytest.raises(ConfigurationError):
        Limits(**{name: 1.5})  # type: ignore[arg-type]
