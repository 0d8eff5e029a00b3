"""The workflow in AReaL 1.0.4, with its SGLang engine, executor and groups, on the lab's real server."""

from __future__ import annotations

from typing import Any

import pytest

from support.lab_servers import LabProcess
from support.trainers.trainer_environment import python_of, run_in_environment

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest) -> Any:
    python_of("areal")  # before a server is started for nothing
    server: LabProcess = request.getfixturevalue("tool_policy")
    return run_in_environment("areal", "areal_harness.py", server.url)


@pytest.mark.parametrize(("name", "rows"), [("plain", 16), ("updated", 24)])
def test_trajectories_are_what_the_engine_sampled(report: Any, name: str, rows: int) -> None:
    batch = report[name]
    assert batch["rows"] == rows and all(trained > 10 for trained in batch["trained"])
    assert batch["worst_logprob"] < 1e-4, "a prefill of the whole row gives the logprobs that AReaL was given"
    assert batch["normalised"] and 0 < sum(batch["rewards"]) < rows
    tokens = batch["shapes"]["input_ids"][1]
    assert all(shape == ([rows] if name == "rewards" else [rows, tokens]) for name, shape in batch["shapes"].items())


def test_interrupted_turns_have_a_version_for_every_token(report: Any) -> None:
    assert report["plain"]["versions"] == [[0]]
    assert max(len(versions) for versions in report["updated"]["versions"]) > 1


def test_failed_group_is_masked(report: Any) -> None:
    assert report["broken"]["trained"] == [0] * 4 == report["broken"]["rewards"], "a whole group, in its place"


def test_statistics_include_every_episode(report: Any) -> None:
    assert report["stats"]["rollout/reward__count"] == 44 and report["stats"]["rollout/accepted__count"] == 11
