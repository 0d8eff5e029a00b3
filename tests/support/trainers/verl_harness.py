"""verl's own agent loop manager, workers, load balancer and client, with our agent loop, on the lab's real server.

    python verl_harness.py http://127.0.0.1:30000 SCRATCH     # in verl's environment, with tests/ on PYTHONPATH

Only verl's GPU servers are replaced: `LabServer` is a Ray actor with the `generate` of verl's SGLang server, which asks
the lab's. Prints one line of JSON about what verl made of it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import verl.trainer.config
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf, open_dict
from verl.experimental.agent_loop import AgentLoopManager, AgentLoopWorker
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import agg_loss, compute_grpo_outcome_advantage
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from strands_sglang import SGLangClient
from support.engine_probes import prefill_logprobs
from support.rollout_agent import TOKENIZER, agent_for, tasks

PROMPT, RESPONSE = 160, 192
AGENTS = """
- name: calculator
  _target_: strands_sglang.trainers.verl.StrandsAgentLoop
  build: support.rollout_agent.build
  reward: support.rollout_agent.score
  limits: {max_turns: 4, episode_timeout: 60}
- name: helped
  _target_: strands_sglang.trainers.verl.StrandsAgentLoop
  build: verl_harness.helped
  reward: support.rollout_agent.score
  branches: all
- name: broken
  _target_: strands_sglang.trainers.verl.StrandsAgentLoop
  build: verl_harness.broken
  reward: support.rollout_agent.score
"""


def broken(task: Any, model: Any) -> Any:
    raise RuntimeError("no such agent")


def helped(task: Any, model: Any) -> Any:
    """A function that asks two agents one after the other: two branches."""
    agents = [agent_for(model), agent_for(model)]

    async def ask() -> str:
        for agent in agents:
            result = await agent.invoke_async(task.prompt, limits={"turns": 4})
        return str(result).strip()

    return ask


class LabServer:
    """What verl's SGLang server actor is to a client, without a GPU. Every `cut_every`-th call is cut by an update."""

    def __init__(self, url: str, cut_every: int) -> None:
        self.client, self.cut_every, self.calls, self.step = SGLangClient(url), cut_every, 0, 7

    async def cut(self, every: int) -> None:
        self.cut_every = every

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **_: Any
    ) -> TokenOutput:
        self.calls += 1
        cut = bool(self.cut_every) and self.calls % self.cut_every == 0
        sampling = dict(sampling_params)
        wants = sampling.pop("logprobs", False)
        budget = sampling["max_new_tokens"]
        if cut:
            sampling["max_new_tokens"] = min(3, budget)
        step, got = self.step, await self.client.generate(prompt_ids, sampling)
        reason = got.finish_reason.value
        if cut and reason == "length":
            reason, self.step = "abort", self.step + 1
        return TokenOutput(
            token_ids=list(got.token_ids),
            log_probs=list(got.logprobs) if wants else None,
            stop_reason=reason,
            extra_fields={"global_steps": step},
        )


def config_of(url: str, scratch: Path) -> Any:
    (scratch / "agents.yaml").write_text(AGENTS)
    with initialize_config_dir(str(Path(verl.trainer.config.__file__).parent), version_base=None):
        return compose(
            "ppo_trainer",
            [
                f"actor_rollout_ref.model.path={TOKENIZER}",
                "actor_rollout_ref.rollout.name=sglang",
                f"data.max_prompt_length={PROMPT}",
                f"data.max_response_length={RESPONSE}",
                f"actor_rollout_ref.rollout.agent.agent_loop_config_path={scratch / 'agents.yaml'}",
                "actor_rollout_ref.rollout.agent.default_agent_loop=calculator",
                "actor_rollout_ref.rollout.agent.num_workers=1",
                "actor_rollout_ref.rollout.calculate_log_probs=True",
            ],
        )


def batch_of(count: int, samples: int, agent: str | None = None) -> DataProto:
    """Return rows as verl's dataset and trainer make them: each task so many times, one behind the other."""
    wanted = [one for one in tasks(count) for _ in range(samples)]
    columns: dict[str, list[Any]] = {
        "raw_prompt": [[{"role": "user", "content": one.prompt}] for one in wanted],
        "reward_model": [{"style": "rule", "ground_truth": one.answer} for one in wanted],
        "extra_info": [{"questions": np.array(one.data["questions"], object), "split": "train"} for one in wanted],
        "data_source": ["lab/calculator"] * len(wanted),
        "uid": [one.id for one in wanted],
        "index": [number // samples for number in range(len(wanted))],
    }
    if agent:
        columns["agent_name"] = [agent] * len(wanted)
    arrays = {name: _objects(values) for name, values in columns.items()}
    return DataProto(batch=None, non_tensor_batch=arrays, meta_info={"global_steps": 7, "validate": False})


def _objects(values: list[Any]) -> Any:
    made = np.empty(len(values), object)
    made[:] = values
    return made


def checked(out: DataProto, url: str) -> dict[str, Any]:
    """Return what a batch says; the logprobs of trained tokens are asked for again, in one prefill past our client."""
    worst, rewards, trained = 0.0, [], []
    for row in range(len(out)):
        one = out.batch[row]
        ids = one["input_ids"][one["attention_mask"].bool()].tolist()
        responded = one["attention_mask"][PROMPT:].bool()
        mask = one["response_mask"][responded].bool()
        start = len(ids) - int(responded.sum())
        rewards.append(float(one["rm_scores"].sum()))
        trained.append(int(mask.sum()))
        if mask.any():
            again = torch.tensor(asyncio.run(prefill_logprobs(url, ids, start)))
            worst = max(worst, float((again - one["rollout_log_probs"][responded])[mask].abs().max()))
    advantages, _ = compute_grpo_outcome_advantage(
        out.batch["rm_scores"], out.batch["response_mask"].float(), np.array(out.non_tensor_batch["uid"])
    )
    loss = agg_loss(-advantages * out.batch["response_mask"], out.batch["response_mask"], "token-mean")
    extra = out.non_tensor_batch
    return {
        "rows": len(out),
        "shapes": sorted(
            {tuple(out.batch[name].shape) for name in ("responses", "response_mask", "rollout_log_probs")}
        ),
        "rewards": rewards,
        "trained": trained,
        "turns": extra["__num_turns__"].tolist(),
        "ended": extra["strands_end_reason"].tolist(),
        "failures": extra["strands_failure"].tolist(),
        "steps": [extra["min_global_steps"].tolist(), extra["max_global_steps"].tolist()],
        "worst_logprob": worst,
        "loss_finite": bool(torch.isfinite(loss)),
    }


class Direct:
    """A client of one server in this process, which knows routed experts."""

    def __init__(self, url: str) -> None:
        self.server = LabServer(url, 0)

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: Any) -> TokenOutput:
        output = await self.server.generate(prompt_ids, sampling_params, request_id)
        rows = np.arange(len(prompt_ids) + len(output.token_ids) - 1, dtype=np.int32)
        output.routed_experts = rows.reshape(-1, 1, 1) % 100 + np.arange(6, dtype=np.int32).reshape(1, 3, 2)
        return output


def in_this_process(config: Any, url: str) -> dict[str, Any]:
    """Return what verl's own worker makes of routed experts, and its v1 trainer's fields of several branches."""
    with open_dict(config):
        rollout = config.actor_rollout_ref.rollout
        rollout.enable_rollout_routing_replay = True
    agents = OmegaConf.load(rollout.agent.agent_loop_config_path)
    for agent in agents:
        agent.expert_shape = [3, 2]
    OmegaConf.save(agents, rollout.agent.agent_loop_config_path)
    worker = AgentLoopWorker(config, Direct(url))
    both = DataProto.concat([batch_of(1, 2, "broken"), batch_of(1, 2, "calculator")])
    whole = asyncio.run(worker.generate_sequences(both))
    experts, mask = whole.batch["routed_experts"][-1], whole.batch["attention_mask"][-1].bool()
    told = experts[mask][:-1, 0, 0].tolist()
    loop = instantiate(
        next(agent for agent in agents if agent.name == "helped"),
        trainer_config=DictConfigWrap(config),
        server_manager=Direct(url),
        tokenizer=worker.tokenizer,
        processor=None,
        dataset_cls=worker.dataset_cls,
        data_config=DictConfigWrap(config.data),
    )
    row = {name: values[0] for name, values in batch_of(1, 1).non_tensor_batch.items()}
    outputs = asyncio.run(loop.run({"temperature": 1.0, "logprobs": True}, global_steps=7, **row))
    stacked = list_of_dict_to_tensordict([output.as_dict() for output in outputs])
    return {
        "experts": list(whole.batch["routed_experts"].shape),
        "positions": told == [place % 100 for place in range(len(told))],
        "branches": [len(output.response_ids) for output in outputs],
        "rewards": [output.reward_score for output in outputs],
        "fields": sorted(stacked.keys()),
    }


def main(url: str, scratch: Path) -> None:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    config, said = config_of(url, scratch), {}

    def manager_of(kind: type, cut_every: int) -> tuple[Any, list[Any]]:
        servers = {f"server-{number}": ray.remote(LabServer).remote(url, cut_every) for number in range(2)}
        balancer = ray.remote(GlobalRequestLoadBalancer).remote(servers=servers)
        client = kind(config, load_balancer_handle=balancer)
        return AgentLoopManager.create(config=config, llm_client=client), list(servers.values())

    manager, servers = manager_of(LLMServerClient, 0)
    said["broken"] = checked(manager.generate_sequences(batch_of(1, 2, "broken")), url)
    said["plain"] = checked(manager.generate_sequences(batch_of(4, 4)), url)
    mixed = DataProto.concat([batch_of(1, 2, "broken"), batch_of(2, 2, "calculator")])
    said["mixed"] = checked(manager.generate_sequences(mixed), url)
    ray.get([server.cut.remote(2) for server in servers])
    said["cut"] = checked(manager.generate_sequences(batch_of(2, 4)), url)
    manager, _ = manager_of(FullyAsyncLLMServerClient, 2)  # verl's own client that goes on behind a cut
    said["resumed_by_verl"] = checked(manager.generate_sequences(batch_of(2, 4)), url)
    said["in_this_process"] = in_this_process(config, url)
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
