"""The agent loop in verl 0.9.1, with its manager, workers and load balancer in Ray, on the lab's real engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.lab_servers import LabProcess
from support.trainers.trainer_environment import python_of, run_in_environment

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    python_of("verl")  # before a server is started for nothing
    server: LabProcess = request.getfixturevalue("tool_policy")
    return run_in_environment("verl", "verl_harness.py", server.url, str(Path(tmp_path_factory.mktemp("verl"))))


@pytest.mark.parametrize("name", ["plain", "mixed", "cut", "resumed_by_verl"])
def test_batches_are_what_the_engine_sampled(report: Any, name: str) -> None:
    batch = report[name]
    assert batch["worst_logprob"] < 1e-4, "a prefill of the whole row gives the logprobs that verl was given"
    assert batch["loss_finite"] and batch["shapes"] == [[batch["rows"], 192]]
    for trained, ended, turns in zip(batch["trained"], batch["ended"], batch["turns"], strict=True):
        assert (trained, ended, turns) == (0, "agent_error", 0) or (trained > 10 and turns in (2, 4, 6, 8))
    assert batch["turns"].count(6) >= len(batch["turns"]) // 2, "two tool calls and an answer, as a rule"


def test_the_policy_solves_tasks_inside_verl(report: Any) -> None:
    assert len(report["plain"]["rewards"]) == 16 and 0 < sum(report["plain"]["rewards"]) < 16


def test_weight_updates_during_turns_are_reported(report: Any) -> None:
    for name in ("cut", "resumed_by_verl"):
        first, last = report[name]["steps"]
        assert set(first) <= set(range(7, 30)) and all(a <= b for a, b in zip(first, last, strict=True))
        assert any(a < b for a, b in zip(first, last, strict=True))
    assert report["plain"]["steps"] == [[7] * 16, [7] * 16]


def test_failed_episode_is_masked(report: Any) -> None:
    broken = report["broken"]
    assert broken["trained"] == [0, 0] == broken["rewards"]
    assert set(broken["failures"]) == {"RuntimeError: no such agent"}
    assert None not in [*broken["steps"][0], *report["mixed"]["steps"][0]], "verl computes with them"


def test_routed_experts_and_several_branches(report: Any) -> None:
    local = report["in_this_process"]
    assert local["experts"] == [4, 160 + 192, 3, 2] and local["positions"], (
        "each at its position after the left padding"
    )
    assert len(local["branches"]) == 2 and local["rewards"][0] == local["rewards"][1] in (0.0, 1.0)
    assert {"prompts", "responses", "response_mask", "rollout_log_probs", "rm_scores", "routed_experts"} <= set(
        local["fields"]
    )


def test_images_have_the_positions_that_verl_computes() -> None:
    """Needs no engine: verl's servers cannot be asked for images, but its output type has a place for them."""
    found = run_in_environment("verl", "verl_images.py")
    assert found["outputs"] >= 150 and found["images"] > 100 and found["wrong"] == 0
