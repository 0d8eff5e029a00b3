"""An adaptation that is not applied is reported once."""

from __future__ import annotations

import logging

import pytest

from strands_sglang._strands_compat import guard


def test_reported_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(guard, "_reported", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            guard.report_unrecognised("trick", "turns take longer")
    (record,) = caplog.records
    assert record.getMessage().startswith("adaptation=<trick>, strands_agents=<1.")
    assert record.getMessage().endswith("| not applied, the SDK is not as expected: turns take longer")
