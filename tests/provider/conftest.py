"""What every test of the provider is held to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.provider.agents import MADE
from support.scripted_engine import CHECKED, assert_exact


@pytest.fixture
def exact() -> Iterator[None]:
    """Hold every model that a test made against what its engine was sent, unless the test did so itself."""
    MADE.clear()
    CHECKED.clear()
    yield
    for model, engine in MADE:
        if id(engine) not in CHECKED:
            assert_exact(engine, model.current_episode)
