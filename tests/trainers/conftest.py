"""Fixtures of trainer tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from support.lab_servers import Routed
from support.trainers.slime_mirror import State
from support.trainers.slime_world import SlimeWorld


@pytest.fixture
def world(routed: Routed, tmp_path: Path) -> Iterator[SlimeWorld]:
    """Return slime connected to two tool-policy workers by the real router, with recorded traffic."""
    with SlimeWorld(routed.url, tmp_path) as made:
        yield made


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> State:
    """Return the state that a rollout finds in place of slime's."""
    one, module = State(), ModuleType("slime.rollout.sglang_rollout")
    module.GenerateState = lambda args: one  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return one
