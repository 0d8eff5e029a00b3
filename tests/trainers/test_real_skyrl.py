"""SkyRL 0.3.0 itself: its client, configuration, batches, checks and tensors, our generator, the lab's real engine."""

from __future__ import annotations

from typing import Any

import pytest

from lab_servers import LabProcess
from trainers.trainer_environment import python_of, said_by

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def said(request: pytest.FixtureRequest) -> Any:
    python_of("skyrl")  # before a server is started for nothing
    server: LabProcess = request.getfixturevalue("tool_policy")
    return said_by("skyrl", "skyrl_harness.py", server.url)


@pytest.mark.parametrize(("name", "rows"), [("plain", 16), ("mixed", 12)])
def test_batches_are_what_the_engine_sampled(said: Any, name: str, rows: int) -> None:
    batch = said[name]
    assert batch["rows"] == rows and batch["finite"]
    assert batch["worst_logprob"] < 1e-4, "a prefill of the whole row gives the logprobs that SkyRL was given"
    assert len({tuple(shape) for shape in batch["shapes"]}) == 1 and batch["shapes"][0][0] == rows
    assert batch["skyrl_metrics"]["avg_score"] == pytest.approx(sum(batch["rewards"]) / rows)
    assert 0 < sum(batch["rewards"]) < rows
    for trained, ended, reason in zip(batch["trained"], batch["ended"], batch["stop_reasons"], strict=True):
        assert (trained, ended, reason) == (0, "agent", "abort") or (trained > 10 and reason in ("stop", "length"))


def test_a_task_that_cannot_be_built_keeps_its_places(said: Any) -> None:
    assert said["mixed"]["ended"][4:8] == ["agent"] * 4 and "agent" not in said["mixed"]["ended"][:4]
    assert said["both"] == {"rows": 28, "failed": 4.0}


def test_sessions_and_salts(said: Any) -> None:
    server = said["server"]
    assert len(server["calls"]) == 24 and max(server["calls"]) >= 3, "all turns of an episode are one session"
    assert server["unfinished"] == 0 and server["finished"] == 28
    assert server["salts"] == ["0", "1"], "weights of another version have caches of their own"


def test_steps(said: Any) -> None:
    assert said["step_wise"] == {"rows": 4, "last": [True] * 4}
