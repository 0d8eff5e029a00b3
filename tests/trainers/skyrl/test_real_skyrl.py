"""The generator in SkyRL 0.3.0, with its client, configuration, checks and tensors, on the lab's real engine."""

from __future__ import annotations

from typing import Any

import pytest

from support.lab_servers import LabProcess
from support.trainers.trainer_environment import python_of, run_in_environment

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest) -> Any:
    python_of("skyrl")  # before a server is started for nothing
    server: LabProcess = request.getfixturevalue("tool_policy")
    return run_in_environment("skyrl", "skyrl_harness.py", server.url)


@pytest.mark.parametrize(("name", "rows"), [("plain", 16), ("mixed", 12)])
def test_batches_are_what_the_engine_sampled(report: Any, name: str, rows: int) -> None:
    batch = report[name]
    assert batch["rows"] == rows and batch["finite"]
    assert batch["worst_logprob"] < 1e-4, "a prefill of the whole row gives the logprobs that SkyRL was given"
    assert len({tuple(shape) for shape in batch["shapes"]}) == 1 and batch["shapes"][0][0] == rows
    assert batch["skyrl_metrics"]["avg_score"] == pytest.approx(sum(batch["rewards"]) / rows)
    assert 0 < sum(batch["rewards"]) < rows
    for trained, ended, stop in zip(batch["trained"], batch["ended"], batch["stop_reasons"], strict=True):
        assert (trained, ended, stop) == (0, "agent_error", "abort") or (trained > 10 and stop in ("stop", "length"))


def test_failed_task_keeps_its_rows(report: Any) -> None:
    assert report["mixed"]["ended"][4:8] == ["agent_error"] * 4 and "agent_error" not in report["mixed"]["ended"][:4]
    assert report["both"] == {"rows": 28, "failed": 4.0}


def test_sessions_and_salts(report: Any) -> None:
    server = report["server"]
    assert len(server["calls"]) == 24 and max(server["calls"]) >= 3, "all turns of an episode are one session"
    assert server["unfinished"] == 0 and server["finished"] == 28
    assert server["salts"] == ["0", "1"], "weights of another version have caches of their own"


def test_step_wise_rows(report: Any) -> None:
    assert report["step_wise"] == {"rows": 4, "last": [True] * 4}
