"""On the real engine: no episode is lost or trained twice while workers and runner are killed and weights change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.own_servers, pytest.mark.soak]

CHAOS = Path(__file__).resolve().parent.parent / "scripts" / "chaos"
PLAN = {"episodes": 60, "runner_kills": 3, "engine_kills": 1, "weight_updates": 2, "outages": 0, "tool_outages": 1}


def test_sixty_episodes_through_kills_and_updates(engine_logs: Path) -> None:
    options = [part for name, count in PLAN.items() for part in (f"--{name.replace('_', '-')}", str(count))]
    # A process of its own, with workers of its own: those of other tests stay as they are.
    chaos = subprocess.run(
        [sys.executable, str(CHAOS), *options, "--seed", "7"],
        env={**os.environ, "STRANDS_SGLANG_TEST_LOGS": str(engine_logs)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
        check=False,
    )
    print(chaos.stdout)
    assert chaos.returncode == 0
    figures = json.loads(chaos.stdout.splitlines()[-1])
    assert {name: figures[name] for name in PLAN} == PLAN
    assert figures["verified"] == 60 and figures["verdict"] == "proved"
    assert (figures["lost"], figures["trained_twice"], figures["failed"]) == (0, 0, 0)
    assert figures["scored_in_outage"] == 0 and figures["unscored_in_tool_outage"] >= 1
    assert figures["turns"] >= 180
    # And it really happened: requests were lost with a worker, episodes went on in another process, versions changed.
    assert figures["requests_hit"] >= 1 and figures["interrupted_calls"] >= 1
    assert figures["resumed_episodes"] >= 1 and figures["under_way_when_killed"] >= 1
    assert {"default", "v1", "v2"} <= set(figures["versions_seen"])
