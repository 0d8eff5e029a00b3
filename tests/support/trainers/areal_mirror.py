"""The parts of AReaL 1.0.4 and torch that the workflow uses: fields, defaults, signatures.

`tests/trainers/areal/test_real_areal.py` runs against the packages themselves; these stand in where they are not
installed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from support.rollout.scripts import PromptEngine
from support.trainers.stand_ins import installed


@dataclass
class GenerationHyperparameters:
    """`areal.api.cli_args.GenerationHyperparameters`."""

    n_samples: int = 1
    max_new_tokens: int = 16384
    min_new_tokens: int = 0
    max_tokens: int = 32768
    greedy: bool = False
    top_p: float = 1.0
    top_k: int = int(1e8)
    temperature: float = 1.0
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    stop: list[str] | None = None
    frequency_penalty: float = 0.0
    lora_name: str = "default_lora"
    use_beam_search: bool = False

    def new(self, **kwargs: Any) -> GenerationHyperparameters:
        return GenerationHyperparameters(**{**asdict(self), **kwargs})

    def new_with_stop_and_pad_token_ids(self, tokenizer: Any) -> GenerationHyperparameters:
        more = [id for id in (tokenizer.pad_token_id, tokenizer.eos_token_id) if id not in self.stop_token_ids]
        return self.new(stop_token_ids=self.stop_token_ids + more)


@dataclass
class ModelRequest:
    """`areal.api.ModelRequest`."""

    rid: str = ""
    input_ids: list[int] = field(default_factory=list)
    gconfig: GenerationHyperparameters = field(default_factory=GenerationHyperparameters)
    metadata: dict[str, Any] = field(default_factory=dict)
    tokenizer: Any = None
    image_data: list[str] | None = field(default_factory=list)
    processor: Any = None
    vision_msg_vllm: list[Any] | None = None


@dataclass
class ModelResponse:
    """`areal.api.ModelResponse`."""

    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    output_versions: list[int] = field(default_factory=list)
    stop_reason: str = "stop"


class RolloutWorkflow(ABC):
    """`areal.api.RolloutWorkflow`."""

    @abstractmethod
    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any] | None: ...


@dataclass
class Stats:
    """`areal.utils.stats_tracker`: reported numbers, by scope."""

    reported: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def get(self, scope: str) -> Stats:
        self.scope = scope
        return self

    def scalar(self, **numbers: float) -> None:
        assert all(isinstance(number, (int, float)) for number in numbers.values())
        self.reported.setdefault(self.scope, []).append(numbers)


class Tensor:
    """A tensor of torch, as far as it is used here."""

    def __init__(self, values: Any, dtype: str) -> None:
        self.array, self.dtype = np.asarray(values, dtype), dtype

    def unsqueeze(self, at: int) -> Tensor:
        return Tensor(np.expand_dims(self.array, at), self.dtype)


class Torch:
    """The module itself, as far as it is used here."""

    int32, float32, bool = "int32", "float32", "bool"

    @staticmethod
    def tensor(values: Any, dtype: str) -> Tensor:
        return Tensor(values, dtype)

    @staticmethod
    def ones(count: int, dtype: str) -> Tensor:
        return Tensor(np.ones(count), dtype)


@contextmanager
def areal_installed() -> Iterator[Stats]:
    """Import the workflow as if AReaL and torch were installed; yield the statistics that it reports."""
    stats, context = Stats(), ModuleType("areal.workflow_context")
    vars(context).update(stat_scope=lambda: "rollout")
    names: dict[str, dict[str, Any]] = {
        "areal": {"workflow_context": context},
        "areal.api": {"ModelRequest": ModelRequest, "RolloutWorkflow": RolloutWorkflow},
        "areal.api.cli_args": {"GenerationHyperparameters": GenerationHyperparameters},
        "areal.utils": {"stats_tracker": stats},
    }
    with installed("areal", names):
        vars(import_module("strands_sglang.trainers.areal"))["_torch"] = lambda: Torch
        yield stats


with areal_installed():
    adapter: Any = import_module("strands_sglang.trainers.areal")
"""Our adapter, imported as if its trainer were installed; for tests of the parts that need nothing of it."""


@dataclass
class Engine:
    """AReaL's inference engine, backed by a scripted one. Weights change in the middle of every turn."""

    engine: PromptEngine
    requests: list[ModelRequest] = field(default_factory=list)
    version: int = 0

    async def agenerate(self, req: ModelRequest) -> ModelResponse:
        self.requests.append(req)
        budget = min(req.gconfig.max_tokens - len(req.input_ids), req.gconfig.max_new_tokens)
        if budget <= 0:
            raise RuntimeError("max_new_tokens is non-positive!")
        got = await self.engine.generate(req.input_ids, {"max_new_tokens": budget})
        half = len(got) // 2
        versions = [self.version] * half + [self.version + 1] * (len(got) - half)
        self.version += 1
        ids, logprobs = list(got.token_ids), list(got.logprobs)
        return ModelResponse(list(req.input_ids), ids, logprobs, versions, got.finish_reason.value)
