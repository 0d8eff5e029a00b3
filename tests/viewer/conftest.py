"""A recorded run with everything, made once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.viewer.recorded_run import write_recorded_run


@pytest.fixture(scope="session")
def recorded_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("viewer") / "first"
    asyncio.run(write_recorded_run(directory))
    return directory
