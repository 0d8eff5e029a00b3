"""SkyRL's own client, batches and checks, with our generator, on the lab's real server.

    python skyrl_harness.py http://127.0.0.1:30000     # in SkyRL's environment, with tests/ on PYTHONPATH

Only vLLM is replaced: `LabServer` speaks the two calls of SkyRL's vLLM servers that a rollout makes, and asks the lab's
SGLang server. Prints one line of JSON about what SkyRL made of it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
import torch
from aiohttp import web
from skyrl.backends.skyrl_train.inference_servers.engine_utils import get_sampling_params_for_backend
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import RemoteInferenceClient
from skyrl.backends.skyrl_train.utils.ppo_utils import compute_grpo_outcome_advantage
from skyrl.train.config import GeneratorConfig, SamplingParams
from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors
from skyrl.train.generators.utils import (
    concatenate_generator_outputs,
    get_metrics_from_generator_output,
    prepare_generator_input,
)
from skyrl.train.utils.trainer_utils import validate_generator_output
from transformers import AutoTokenizer

from strands_sglang import SGLangClient
from strands_sglang.trainers.skyrl import StrandsGenerator
from support.engine_probes import prefill_logprobs
from support.rollout_agent import TOKENIZER, build, score, tasks

SAMPLES = 4


class LabServer:
    """A vLLM server of SkyRL's, as far as a rollout asks it."""

    def __init__(self, url: str) -> None:
        self.client = SGLangClient(url)
        self.sessions: dict[str, int] = {}
        self.finished: list[str] = []
        self.salts: set[str] = set()

    async def generate(self, request: web.Request) -> web.Response:
        asked = await request.json()
        session = request.headers["X-Session-ID"]
        self.sessions[session] = self.sessions.get(session, 0) + 1
        self.salts.add(asked["cache_salt"])
        given = asked["sampling_params"]
        sampling = {name: given[name] for name in ("temperature", "top_p", "top_k", "min_p")}
        got = await self.client.generate(asked["token_ids"], {**sampling, "max_new_tokens": given["max_tokens"]})
        content = [{"logprob": logprob} for logprob in got.logprobs]
        choice = {"token_ids": list(got.token_ids), "finish_reason": got.finish_reason.value}
        return web.json_response({"choices": [{**choice, "logprobs": {"content": content}}]})

    async def finish(self, request: web.Request) -> web.Response:
        self.finished.append(request.query["session_id"])
        return web.json_response({})

    async def start(self) -> str:
        app = web.Application()
        app.router.add_post("/inference/v1/generate", self.generate)
        app.router.add_post("/finish_session", self.finish)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"


def may_break(task: Any, model: Any) -> Any:
    """Return the agent of a task; one of them cannot be built."""
    if task.data.get("broken"):
        raise RuntimeError("no such agent")
    return build(task, model)


def rows(count: int, broken: int | None = None) -> list[dict[str, Any]]:
    return [
        {
            "prompt": [{"role": "user", "content": one.prompt}],
            "env_class": None,
            "env_extras": {
                "reward_spec": {"method": "rule", "ground_truth": one.answer},
                "questions": one.data["questions"],
                "broken": number == broken,
            },
            "uid": one.id,
        }
        for number, one in enumerate(tasks(count))
    ]


async def checked(output: Any, uids: list[str], url: str, tokenizer: Any) -> dict[str, Any]:
    """Return what SkyRL makes of an output; logprobs of trained tokens are asked for again, past our client."""
    validate_generator_output(len(uids), output)
    worst = 0.0
    columns = (output[name] for name in ("prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs"))
    for prompt, response, mask, logprobs in zip(*columns, strict=True):
        if any(mask):
            again = await prefill_logprobs(url, prompt + response, len(prompt))
            worst = max(worst, *(abs(a - b) for a, b, m in zip(again, logprobs, mask, strict=True) if m))
    rewards = [
        [0.0] * (len(one) - 1) + [reward] for one, reward in zip(output["response_ids"], output["rewards"], strict=True)
    ]
    tensors = convert_prompts_responses_to_batch_tensors(
        tokenizer,
        output["prompt_token_ids"],
        output["response_ids"],
        rewards,
        output["loss_masks"],
        output["rollout_logprobs"],
    )
    advantages, _ = compute_grpo_outcome_advantage(tensors[3], tensors[2].float(), np.array(uids))
    return {
        "rows": len(output["response_ids"]),
        "rewards": output["rewards"],
        "trained": [sum(mask) for mask in output["loss_masks"]],
        "stop_reasons": output["stop_reasons"],
        "ended": [one["end_reason"] for one in output["env_metrics"]],
        "worst_logprob": worst,
        "shapes": [list(tensor.shape) for tensor in (tensors[2], tensors[4], tensors[5])],
        "finite": bool(torch.isfinite(advantages).all()),
        "skyrl_metrics": {
            name: float(value) for name, value in get_metrics_from_generator_output(output, uids).items()
        },
        "rollout_metrics": {name: float(value) for name, value in output["rollout_metrics"].items()},
    }


async def main(url: str) -> None:
    server, tokenizer = LabServer(url), AutoTokenizer.from_pretrained(TOKENIZER)
    proxy = await server.start()
    client = RemoteInferenceClient(
        proxy_url=proxy, server_urls=[proxy], data_parallel_size=1, model_name="policy", tokenizer=tokenizer
    )
    sampling = SamplingParams(max_generate_length=64)
    cfg = GeneratorConfig(max_turns=4, max_input_length=400, sampling_params=sampling)
    generator = StrandsGenerator(may_break, score, cfg, client, tokenizer)
    asked = get_sampling_params_for_backend("vllm", sampling)
    said, outputs, all_uids = {}, [], []
    for name, wanted in {"plain": rows(4), "mixed": rows(3, broken=1)}.items():
        given, uids = prepare_generator_input(wanted, SAMPLES, asked, "none", "train", 1)
        output = await generator.generate(given)
        said[name] = await checked(output, uids, url, tokenizer)
        outputs.append(output)
        all_uids += [f"{name}-{uid}" for uid in uids]
        client.increment_weight_version()
    both = concatenate_generator_outputs(outputs)
    validate_generator_output(len(all_uids), both)
    said["both"] = {"rows": len(both["response_ids"]), "failed": both["rollout_metrics"]["generate/failed_episodes"]}
    said["server"] = {
        "calls": sorted(server.sessions.values()),
        "finished": len(server.finished),
        "unfinished": len(set(server.sessions) - set(server.finished)),
        "salts": sorted(server.salts),
    }
    stepwise = GeneratorConfig(max_turns=4, max_input_length=400, sampling_params=sampling, step_wise_trajectories=True)
    given, uids = prepare_generator_input(rows(1), SAMPLES, asked, "none", "train", 1)
    output = await StrandsGenerator(may_break, score, stepwise, client, tokenizer).generate(given)
    validate_generator_output(len(uids), output, step_wise=True)
    said["step_wise"] = {"rows": len(output["response_ids"]), "last": output["is_last_step"]}
    await client.aclose()
    print(json.dumps(said))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
