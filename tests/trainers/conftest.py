"""Fixtures of trainer tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.lab_servers import Routed
from support.trainers.slime_world import SlimeWorld


@pytest.fixture
def slime_world(routed: Routed, tmp_path: Path) -> Iterator[SlimeWorld]:
    """Return slime connected to two tool-policy workers by the real router, with recorded traffic."""
    with SlimeWorld(routed.url, tmp_path) as world:
        yield world
