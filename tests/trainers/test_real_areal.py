"""AReaL 1.0.4 itself: its SGLang engine, workflow executor and groups, our workflow, the lab's real server."""

from __future__ import annotations

from typing import Any

import pytest

from lab_servers import LabProcess
from trainers.trainer_environment import python_of, said_by

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def said(request: pytest.FixtureRequest) -> Any:
    python_of("areal")  # before a server is started for nothing
    server: LabProcess = request.getfixturevalue("tool_policy")
    return said_by("areal", "areal_harness.py", server.url)


@pytest.mark.parametrize(("name", "rows"), [("plain", 16), ("updated", 24)])
def test_trajectories_are_what_the_engine_sampled(said: Any, name: str, rows: int) -> None:
    batch = said[name]
    assert batch["rows"] == rows and all(trained > 10 for trained in batch["trained"])
    assert batch["worst_logprob"] < 1e-4, "a prefill of the whole row gives the logprobs that AReaL was given"
    assert batch["normalised"] and 0 < sum(batch["rewards"]) < rows
    tokens = batch["shapes"]["input_ids"][1]
    assert all(shape == ([rows] if name == "rewards" else [rows, tokens]) for name, shape in batch["shapes"].items())


def test_interrupted_turns_have_a_version_for_every_token(said: Any) -> None:
    assert said["plain"]["versions"] == [[0]]
    assert max(len(versions) for versions in said["updated"]["versions"]) > 1


def test_an_agent_that_cannot_be_built_is_masked(said: Any) -> None:
    assert said["broken"]["trained"] == [0] * 4 == said["broken"]["rewards"], "a whole group, in its place"


def test_areal_hears_of_every_episode(said: Any) -> None:
    assert said["stats"]["rollout/reward__count"] == 44 and said["stats"]["rollout/accepted__count"] == 11
