"""Ray on this machine, whose workers find the modules of these tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

TESTS = Path(__file__).resolve().parent.parent


@contextmanager
def ray_here() -> Iterator[None]:
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    env = {"env_vars": {"PYTHONPATH": path}}
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1", runtime_env=env)
    try:
        yield
    finally:
        ray.shutdown()
