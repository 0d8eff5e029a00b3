"""AReaL's own engine, workflow executor and groups, with our workflow, on the lab's real server.

    python areal_harness.py http://127.0.0.1:30000     # in AReaL's environment, with tests/ on PYTHONPATH

Nothing of AReaL is replaced: its SGLang engine asks the lab's server, and interrupts it as for a weight update. Prints
one line of JSON about what came out.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from typing import Any

import torch
from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig, NormConfig
from areal.engine.sglang_remote import RemoteSGLangEngine
from areal.infra.workflow_executor import check_trajectory_format
from areal.utils.data import Normalization, concat_padded_tensors

from support.engine_probes import prefill_logprobs
from support.rollout_agent import TOKENIZER, tasks

GROUP = 4
WORKFLOW = "strands_sglang.trainers.areal.StrandsWorkflow"


def broken(task: Any, model: Any) -> Any:
    raise RuntimeError("no such agent")


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "messages": [{"role": "user", "content": one.prompt}],
            "answer": one.answer,
            "questions": one.data["questions"],
        }
        for one in tasks(count)
    ]


def settings(**more: Any) -> dict[str, Any]:
    """Return the arguments of the workflow, as they stand in an experiment's file."""
    gconfig = GenerationHyperparameters(max_new_tokens=64, max_tokens=512, temperature=1.0)
    plain = {
        "build": "support.rollout_agent.build",
        "reward": "support.rollout_agent.score",
        "limits": {"max_turns": 4},
    }
    return {"gconfig": gconfig, "tokenizer": TOKENIZER, **plain, **more}


def checked(batches: list[dict[str, Any]], url: str) -> dict[str, Any]:
    """Return what trajectories say; logprobs of trained tokens are asked for again, in one prefill past our client."""
    for one in batches:
        check_trajectory_format(one)
    whole = concat_padded_tensors(batches)
    worst, versions, trained = 0.0, set(), []
    for row in range(len(whole["input_ids"])):
        count = int(whole["attention_mask"][row].sum())
        ids, mask = whole["input_ids"][row, :count].tolist(), whole["loss_mask"][row, :count].bool()
        mine = whole["versions"][row, :count]
        assert (mine[mask] >= 0).all(), "every trained token has a version"
        versions |= {tuple(sorted(set(mine[mask].tolist())))}
        trained.append(int(mask.sum()))
        if mask.any():
            start = int(mask.int().argmax())
            again = torch.tensor(asyncio.run(prefill_logprobs(url, ids, start)))
            worst = max(worst, float((again - whole["logprobs"][row, start:count])[mask[start:]].abs().max()))
    norm = Normalization(NormConfig(mean_level="group", std_level="group", group_size=GROUP))
    return {
        "rows": len(trained),
        "shapes": {name: list(tensor.shape) for name, tensor in whole.items()},
        "types": {name: str(tensor.dtype) for name, tensor in whole.items()},
        "rewards": whole["rewards"].tolist(),
        "trained": trained,
        "versions": sorted(versions),
        "worst_logprob": worst,
        "normalised": bool(torch.isfinite(norm(whole["rewards"])).all()),
    }


def main(url: str) -> None:
    config = InferenceEngineConfig(
        backend="sglang:d1", experiment_name="lab", trial_name="0", max_concurrent_rollouts=16, consumer_batch_size=4,
        max_head_offpolicyness=1000, check_trajectory_format=True, pause_grace_period=0.1, setup_timeout=60,
    )  # fmt: skip
    engine, said = RemoteSGLangEngine(config), {}
    engine.initialize(addr=url.removeprefix("http://"), train_data_parallel_size=1)
    try:

        def rollout(count: int, **more: Any) -> dict[str, Any]:
            asked = {"workflow": WORKFLOW, "workflow_kwargs": settings(**more), "group_size": GROUP}
            return checked(engine.rollout_batch(rows(count), **asked), url)

        said["plain"] = rollout(4)
        said["broken"] = rollout(1, build="areal_harness.broken")
        over = threading.Event()

        def updates() -> None:
            version = 0
            while not over.wait(0.3):
                engine.pause_generation()
                version += 1
                engine.set_version(version)
                engine.continue_generation()

        updating = threading.Thread(target=updates)
        updating.start()
        time.sleep(0.1)
        try:
            said["updated"] = rollout(6)
        finally:
            over.set()
            updating.join()
        said["stats"] = {
            name: value for name, value in engine.export_stats().items() if "rollout" in name or "/" in name
        }
    finally:
        engine.destroy()
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1])
