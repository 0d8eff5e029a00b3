"""The engine of examples/other_engine, without a server: its run is proved, and SGLang gives the same logprobs."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from strands_sglang.proof.rescore import RescoreVerdict, rescore
from strands_sglang.proof.verify import verify
from support.lab_servers import LAB, LabProcess
from support.trainers.trainer_environment import python_of

pytestmark = [pytest.mark.engine]

EXAMPLE = LAB.parent / "examples" / "other_engine"


async def test_run_is_proved_and_sglang_agrees(tool_policy: LabProcess, tmp_path: Path) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(LAB.parent / "src")}
    command = [python_of("trl"), str(EXAMPLE / "run.py"), "--directory", str(tmp_path / "run"), "--tasks", "6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    own = re.search(
        r"12 episodes scored by TransformersEngine.*student minus teacher (\S+) per", done.stdout, re.DOTALL
    )
    assert own is not None and abs(float(own[1])) < 1e-5, done.stdout

    certificate = verify(tmp_path / "run")
    assert certificate.proved, certificate.text()
    assert "PROVED" in done.stdout
    report = await rescore(tmp_path / "run", tool_policy.url, tolerance=1e-3, all_versions=True)
    assert report.verdict is RescoreVerdict.AGREES, report.text()
    print(report.text())
