"""A clock that a test sets, for everything that renders a chat template or binds the time of an episode."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import ClassVar

import pytest


class Clock(datetime):
    """Stands in for `datetime` where the time is read."""

    current: ClassVar[datetime] = datetime(2026, 11, 17, 23, 59, 58, 7)

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return cls.current


def set_clock(monkeypatch: pytest.MonkeyPatch, time: datetime | None = None, *, day: int = 17) -> None:
    """Set the clock; None: to a day of November, some seconds before midnight."""
    monkeypatch.setattr(Clock, "current", time or Clock.current.replace(day=day))
    for module in ("transformers.utils.chat_template_utils", "strands_sglang.provider.episode"):
        monkeypatch.setattr(f"{module}.datetime", Clock)
    monkeypatch.setattr("strands_sglang.runs.workers.local.datetime", Clock)
