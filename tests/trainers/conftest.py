"""Worlds in which trainers run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab_servers import Routed
from trainers.slime_world import SlimeWorld


@pytest.fixture
def slime_world(routed: Routed, tmp_path: Path) -> Iterator[SlimeWorld]:
    """Give slime in front of two tool-policy workers behind the real router, on a wire that writes down what passes."""
    with SlimeWorld(routed.url, tmp_path) as world:
        yield world
