"""TRL has no place for an agent's images or for kept sets; this fails when a version of TRL has one."""

from __future__ import annotations

import pytest

from support.trainers.trainer_environment import run_in_environment

pytestmark = pytest.mark.engine  # the job that has TRL's environment


def test_rollout_functions_cannot_return_images() -> None:
    found = run_in_environment("trl", "trl_images.py", seconds=120)
    assert found["required"] == ["prompt_ids", "completion_ids", "logprobs"], found
    assert found["no_images"] and found["dataset_images"] and found["rendered_without_the_agent"], found
    assert not found["sets"], found
