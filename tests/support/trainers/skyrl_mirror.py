"""What our generator needs of SkyRL 0.3.0, typed as SkyRL types it: fields, defaults, signatures.

`tests/trainers/skyrl/test_real_skyrl.py` runs against the package itself; these stand in for it where it is not
installed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from support.rollout.scripts import PromptEngine
from support.trainers.stand_ins import installed


@dataclass
class TrajectoryID:
    """`skyrl.train.generators.base.TrajectoryID`."""

    instance_id: str
    repetition_id: int

    def to_string(self) -> str:
        return f"{self.instance_id}_{self.repetition_id}"


@dataclass
class SamplingParams:
    """`skyrl.train.config.SamplingParams`."""

    max_generate_length: int = 1024
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = -1
    logprobs: int | None = 1
    stop: list[str] | None = None
    additional_kwargs: dict[str, Any] | None = None


@dataclass
class InferenceEngineConfig:
    """`skyrl.train.config.InferenceEngineConfig`, as far as it is looked at."""

    enable_return_routed_experts: bool = False
    enable_return_sample_support_set: bool = False


@dataclass
class GeneratorConfig:
    """`skyrl.train.config.GeneratorConfig`, as far as it is looked at."""

    inference_engine: InferenceEngineConfig = field(default_factory=InferenceEngineConfig)
    max_turns: int = 1
    max_input_length: int | None = None
    chat_template: Any = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    zero_reward_on_non_stop: bool = False
    use_cache_salt: bool = True
    apply_overlong_filtering: bool = False
    step_wise_trajectories: bool = False


class GeneratorInterface(ABC):
    """`skyrl.train.generators.base.GeneratorInterface`."""

    @abstractmethod
    async def generate(self, input_batch: Any) -> Any: ...


def get_rollout_metrics(
    responses: list[list[int]],
    rewards: list[float],
    env_metrics: Any = None,
    env_classes: Any = None,
    loss_masks: Any = None,
    trajectory_completion_times: list[float] | None = None,
) -> dict[str, float]:
    """`skyrl.train.generators.utils.get_rollout_metrics`, as far as its arguments go."""
    assert len(responses) == len(rewards) == len(loss_masks) and trajectory_completion_times is not None
    return {"generate/avg_num_tokens": float(np.mean([len(one) for one in responses]))}


def skyrl_installed() -> AbstractContextManager[None]:
    """Let our generator be imported as if SkyRL were installed."""
    names: dict[str, dict[str, Any]] = {
        "skyrl": {},
        "skyrl.train": {},
        "skyrl.train.generators": {},
        "skyrl.train.generators.base": {"GeneratorInterface": GeneratorInterface},
        "skyrl.train.generators.utils": {
            "get_rollout_metrics": get_rollout_metrics,
            "get_custom_chat_template": lambda config: config,
        },
    }
    return installed("skyrl", names)


with skyrl_installed():
    adapter: Any = import_module("strands_sglang.trainers.skyrl")
"""Our adapter, imported as if its trainer were installed; for tests of the parts that need nothing of it."""


@dataclass
class Client:
    """SkyRL's client of its servers, which are one scripted engine; vLLM's words, vLLM's parameters."""

    engine: PromptEngine
    weight_version: int = 4
    syncs: bool = False
    experts: tuple[int, int] | None = None
    """Layers and top k of the routed experts that come with every answer; None: none do."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    models: list[str | None] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)

    async def generate(self, input_batch: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        self.requests.append(input_batch)
        self.models.append(model)
        ((ids,), sampling) = input_batch["prompt_token_ids"], input_batch["sampling_params"]
        assert "max_new_tokens" not in sampling and sampling["logprobs"] is not None
        got = await self.engine.generate(ids, {"max_new_tokens": sampling["max_tokens"]})
        self.weight_version += self.syncs
        output: dict[str, Any] = {
            "responses": [""],
            "response_ids": [list(got.token_ids)],
            "stop_reasons": [got.finish_reason.value],
            "response_logprobs": [list(got.logprobs)],
            "rollout_expert_indices": None,
        }
        if self.experts is not None:
            rows = np.arange(len(ids) + len(got)).reshape(-1, 1, 1) + np.arange(6).reshape(1, *self.experts)
            output["rollout_expert_indices"] = [rows.tolist()]
        if input_batch.get("return_sample_support"):
            assert sampling["top_k"] > 1, "the servers refuse it otherwise"
            sets = [[token, token + 1, token + 2][: 1 + token % 3] for token in got.token_ids]
            padded = [[*one, *[-1] * (sampling["top_k"] - len(one))] for one in sets]
            output["rollout_sample_support"] = [np.array(padded, np.int32)]
        return output

    async def finish_session(self, session_id: str) -> None:
        self.finished.append(session_id)
