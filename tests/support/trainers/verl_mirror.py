"""What our agent loop needs of verl 0.9.1, typed as verl types it: fields, defaults, signatures.

`tests/trainers/verl/test_real_verl.py` runs against the package itself; these stand in for it where it is not
installed.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from pydantic import BaseModel, ConfigDict

from support.rollout.scripts import PromptEngine
from support.trainers.stand_ins import installed

MODULE = "verl.experimental.agent_loop.agent_loop"


class TokenOutput(BaseModel):
    """`verl.workers.rollout.replica.TokenOutput`."""

    token_ids: list[int]
    log_probs: list[float] | None = None
    routed_experts: Any | None = None
    stop_reason: str | None = None
    num_preempted: int | None = None
    extra_fields: dict[str, Any] = {}


class AgentLoopMetrics(BaseModel):
    """`AgentLoopMetrics`."""

    generate_sequences: float = 0.0
    tool_calls: float = 0.0
    compute_score: float = 0.0
    num_preempted: int = -1


class AgentLoopOutput(BaseModel):
    """`AgentLoopOutput`; unlike verl's own, it takes no field that it does not know."""

    model_config = ConfigDict(extra="forbid")

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None = None
    routed_experts: Any | None = None
    multi_modal_data: dict[str, Any] | None = None
    reward_score: float | None = None
    num_turns: int = 0
    metrics: AgentLoopMetrics
    extra_fields: dict[str, Any] = {}
    mm_processor_kwargs: dict[str, Any] | None = None
    mm_processor_output: list[dict[str, Any]] | None = None


class Config(dict[str, Any]):
    """A configuration as OmegaConf gives it: by name and by key."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class AgentLoopBase:
    """`AgentLoopBase`, without what it does for agent loops that render messages themselves."""

    def __init__(
        self,
        trainer_config: Any,
        server_manager: Any,
        tokenizer: Any,
        processor: Any,
        dataset_cls: type,
        data_config: Any,
        hf_model_type: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.config = trainer_config.config
        self.rollout_config = self.config.actor_rollout_ref.rollout
        self.server_manager = server_manager
        self.tokenizer = tokenizer
        self.processor = processor
        self.dataset_cls = dataset_cls
        self.data_config = data_config.config
        self.apply_chat_template_kwargs = self.data_config.get("apply_chat_template_kwargs", {})


def verl_installed() -> AbstractContextManager[None]:
    """Let our agent loop be imported as if verl were installed."""
    packages: dict[str, dict[str, Any]] = {MODULE.rsplit(".", cut)[0]: {} for cut in range(3, 0, -1)}
    content = {"AgentLoopBase": AgentLoopBase, "AgentLoopOutput": AgentLoopOutput}
    return installed("verl", {**packages, MODULE: content})


with verl_installed():
    adapter: Any = import_module("strands_sglang.trainers.verl")
"""Our adapter, imported as if its trainer were installed; for tests of the parts that need nothing of it."""


@dataclass
class Servers:
    """verl's client of its servers, which are one scripted engine."""

    engine: PromptEngine
    step: int | None = 3
    """Global step of the weights; None: a server that was not told."""
    cut_every: int = 0
    """Every so many calls one is cut behind two tokens, and the step goes up; 0: none is."""
    completed: bool = False
    ids: list[str] = field(default_factory=list)
    params: list[dict[str, Any]] = field(default_factory=list)

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        assert not kwargs
        self.ids.append(request_id)
        self.params.append(dict(sampling_params))
        cut = bool(self.cut_every) and len(self.ids) % self.cut_every == 0
        budget = sampling_params["max_new_tokens"]
        got = await self.engine.generate(prompt_ids, {"max_new_tokens": min(2, budget) if cut else budget})
        reason, step = got.finish_reason.value, self.step
        if cut and reason == "length":
            reason = "abort"
            self.step = None if self.step is None else self.step + 1
        if self.completed:
            reason = {"stop": "completed", "length": "completed", "abort": "aborted"}[reason]
        told = {"global_steps": step, "min_global_steps": step, "max_global_steps": step}
        return TokenOutput(
            token_ids=list(got.token_ids), log_probs=list(got.logprobs), stop_reason=reason, extra_fields=told
        )


def given(servers: Any, tokenizer: Any, **rollout: Any) -> dict[str, Any]:
    lengths = {"prompt_length": 400, "response_length": 600, "multi_turn": Config(max_assistant_turns=None)}
    config = Config(actor_rollout_ref=Config(rollout=Config(lengths | rollout)))
    return {
        "trainer_config": SimpleNamespace(config=config),
        "server_manager": servers,
        "tokenizer": tokenizer,
        "processor": None,
        "dataset_cls": object,
        "data_config": SimpleNamespace(config=Config()),
        "hf_model_type": "qwen2",
        "tools": SimpleNamespace(tools=[]),
        "name": "an entry of the configuration has a name",
    }
