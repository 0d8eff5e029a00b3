"""verl 0.9.1 itself: its manager, workers, load balancer and client in Ray, our agent loop, the lab's real engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab_servers import LabProcess
from trainers.trainer_environment import python_of, said_by

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    python_of("verl")  # before a server is started for nothing
    server: LabProcess = request.getfixturevalue("tool_policy")
    return said_by("verl", "verl_harness.py", server.url, str(Path(tmp_path_factory.mktemp("verl"))))


@pytest.mark.parametrize("name", ["plain", "mixed", "cut", "resumed_by_verl"])
def test_batches_are_what_the_engine_sampled(said: Any, name: str) -> None:
    batch = said[name]
    assert batch["worst_logprob"] < 1e-4, "a prefill of the whole row gives the logprobs that verl was given"
    assert batch["loss_finite"] and batch["shapes"] == [[batch["rows"], 192]]
    for trained, ended, turns in zip(batch["trained"], batch["ended"], batch["turns"], strict=True):
        assert (trained, ended, turns) == (0, "agent", 0) or (trained > 10 and turns in (2, 4, 6, 8))
    assert batch["turns"].count(6) >= len(batch["turns"]) // 2, "two tool calls and an answer, as a rule"


def test_the_policy_solves_tasks_inside_verl(said: Any) -> None:
    assert len(said["plain"]["rewards"]) == 16 and 0 < sum(said["plain"]["rewards"]) < 16


def test_weights_that_change_under_a_turn_are_told(said: Any) -> None:
    for name in ("cut", "resumed_by_verl"):
        first, last = said[name]["steps"]
        assert set(first) <= set(range(7, 30)) and all(a <= b for a, b in zip(first, last, strict=True))
        assert any(a < b for a, b in zip(first, last, strict=True))
    assert said["plain"]["steps"] == [[7] * 16, [7] * 16]


def test_an_agent_that_cannot_be_built_is_masked(said: Any) -> None:
    broken = said["broken"]
    assert broken["trained"] == [0, 0] == broken["rewards"]
    assert set(broken["failures"]) == {"RuntimeError: no such agent"}
    assert None not in [*broken["steps"][0], *said["mixed"]["steps"][0]], "verl computes with them"


def test_routed_experts_and_several_branches(said: Any) -> None:
    told = said["in_this_process"]
    assert told["experts"] == [4, 160 + 192, 3, 2] and told["positions"], "each at its place, behind the left padding"
    assert len(told["branches"]) == 2 and told["rewards"][0] == told["rewards"][1] in (0.0, 1.0)
    assert {"prompts", "responses", "response_mask", "rollout_log_probs", "rm_scores", "routed_experts"} <= set(
        told["fields"]
    )
