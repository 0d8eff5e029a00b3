"""What `scripts/chaos` counts does not depend on how busy the machine is; `test_real_chaos.py` runs it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.ledger.record import EpisodeRecord
from support.ledger.episodes import Recorder

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "chaos"


@pytest.fixture(scope="module")
def chaos() -> Any:
    loader = importlib.machinery.SourceFileLoader("chaos", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("chaos", loader))  # type: ignore[arg-type]
    sys.modules["chaos"] = module  # its dataclasses look their module up
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("seconds", "outages", "counted"),
    [
        (121.0, [], False),  # the machine was busy
        (121.0, [(400.0, 550.0), (1010.0, 1160.0)], False),
        (271.0, [(760.0, 910.0)], False),  # the outage was left out of its time
        (260.0, [(700.0, 910.0), (990.0, 1140.0)], True),
        (121.0, [(920.0, 1070.0)], True),
    ],
)
def test_only_a_timeout_that_counted_an_outage_is_wrong(
    chaos: Any, seconds: float, outages: list[tuple[float, float]], counted: bool
) -> None:
    recorder = Recorder(lambda event: None)
    recorder.call(None, context=[1], sampled=[2])
    recorder.reward(0.0)
    end = recorder.end("timeout", time=1000.0, metrics={"seconds": seconds})
    record = EpisodeRecord(recorder.id, tuple(recorder.events))
    assert chaos.outage_counted(end, outages) is counted
    assert chaos.scored_although_hurt(record, outages) is counted


def test_busy_process_ends_with_the_script(chaos: Any) -> None:
    start = "import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid())])"
    command = [sys.executable, "-c", start, chaos.BUSY]
    # The pipe is closed once the last process that has it open has ended.
    assert subprocess.run(command, capture_output=True, timeout=60, check=True).stdout == b""
