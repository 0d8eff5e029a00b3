"""`workers=N` on a Ray cluster that is already there, as deploy/ starts one: RAY_ADDRESS names it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strands_sglang.errors import ConfigurationError
from support.lab_servers import free_port
from support.rollout.agent_kinds import build
from support.rollout.scripts import PromptEngine, run, steps

TESTS = Path(__file__).resolve().parents[2]
DRIVER = """
import asyncio
import ray
from support.rollout.agent_kinds import build
from support.rollout.scripts import PromptEngine, run, steps

found = asyncio.run(run(build, ["one", "two"], PromptEngine(steps(1)), workers=1))
print(len(ray.nodes()), sorted(episode.end_reason.value for episode in found))
"""


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A head, as in deploy/kubernetes/rollout.yaml."""
    address = f"127.0.0.1:{free_port()}"
    options = ["--head", "--block", "--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats"]
    with (folder / "head.log").open("w") as log:
        process = subprocess.Popen(
            [Path(sys.executable).with_name("ray"), "start", *options, f"--port={address.partition(':')[2]}",
             "--node-ip-address=127.0.0.1", f"--temp-dir={folder}"],
            env={**os.environ, "PYTHONPATH": str(TESTS)}, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            while "Local node IP" not in (folder / "head.log").read_text():
                assert process.poll() is None, (folder / "head.log").read_text()
                time.sleep(0.2)
            yield address
        finally:
            process.terminate()
            process.wait()


@pytest.mark.soak  # a cluster beside others needs a machine that is not busy
def test_episodes_run_on_the_cluster_that_ray_address_names() -> None:
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # short: Ray has Unix sockets below it
        with cluster(Path(folder)) as address:
            environment = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(TESTS)}
            done = subprocess.run([sys.executable, "-c", DRIVER], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1 ['answered', 'answered']"


async def test_no_cluster_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    with pytest.raises(ConfigurationError, match="RAY_ADDRESS=nowhere: start it, or unset RAY_ADDRESS"):
        await run(build, ["one"], PromptEngine(steps(1)), workers=1)
