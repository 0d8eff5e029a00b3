"""Measures how long a new Ray worker takes until it can run episodes: `python -m growth.worker_start` in `bench`."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import ray

from played_agent import TOKENIZER, build
from strands_sglang import SGLangClient
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.workers.ray_pool import RayWorker
from strands_sglang.runs.workers.spec import RunSpec


def main() -> None:
    """Start three workers, one after another, and print the shortest time."""
    logging.disable(logging.WARNING)
    here = str(Path(__file__).resolve().parent.parent)
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    run_spec = RunSpec(build, None, str(TOKENIZER), SGLangClient("http://127.0.0.1:9"), Limits())
    times = []
    for number in range(3):
        began = time.perf_counter()
        worker: Any = ray.remote(num_cpus=0)(RayWorker).remote(run_spec, f"ray{number}")
        ray.get(worker.ready.remote())
        times.append(time.perf_counter() - began)
        ray.kill(worker)
    print(json.dumps({"seconds": round(min(times), 2), "all": [round(one, 2) for one in times]}))


if __name__ == "__main__":
    main()
