"""slime's `Sample` without slime: the same fields, defaults and status, for tests. Facts of slime 0.3.1."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any


class Status(Enum):
    """What became of a sample."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class SpecInfo:
    """Speculative decoding, summed over requests."""

    spec_accept_token_num: int = 0
    spec_draft_token_num: int = 0
    spec_verify_ct: int = 0
    completion_token_num: int = 0


@dataclass
class PrefixCacheInfo:
    """Prompt tokens, and those of them that were cached, summed over requests."""

    cached_tokens: int = 0
    total_prompt_tokens: int = 0


@dataclass
class Sample:
    """A sample."""

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    multimodal_train_inputs: dict[str, Any] | None = None
    multimodal_train_input_id: str | None = None
    apply_chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_top_p_token_ids: Any = None
    rollout_top_p_token_offsets: Any = None
    rollout_routed_experts: Any = None
    remove_sample: bool = False
    teacher_log_probs: list[float] | None = None
    status: Any = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    generate_function_path: str | None = None
    custom_rm_path: str | None = None
    train_metadata: dict[str, Any] | None = None
    session_id: str | None = None
    non_generation_time: float = 0.0
    spec_info: SpecInfo = field(default_factory=SpecInfo)
    prefix_cache_info: PrefixCacheInfo = field(default_factory=PrefixCacheInfo)


def good(**changed: Any) -> Sample:
    """Return a sample that slime trains: three tokens of prompt, four of response, one of them a tool's."""
    plain: dict[str, Any] = {
        "group_index": 0, "index": 0, "tokens": [5, 6, 7, 8, 9, 10, 11], "response": "text", "response_length": 4,
        "reward": 1.0, "loss_mask": [1, 1, 0, 1], "rollout_log_probs": [-0.5, -0.25, 0.0, -1.0],
        "weight_versions": ["1"], "status": Status.COMPLETED,
    }  # fmt: skip
    return Sample(**{**plain, **changed})


def slime_args(**changed: Any) -> SimpleNamespace:
    """Return slime's arguments, as far as they matter to samples."""
    plain: dict[str, Any] = {
        "reward_key": None, "rollout_top_p": 1.0, "rollout_max_response_len": None, "rollout_max_context_len": None,
        "use_rollout_routing_replay": False, "num_layers": 2, "moe_router_topk": 2, "advantage_estimator": "grpo",
        "rewards_normalization": True, "grpo_std_normalization": True, "n_samples_per_prompt": 2,
        "rollout_batch_size": 2, "global_batch_size": 1,
    }  # fmt: skip
    return SimpleNamespace(**{**plain, **changed})


class State:
    """slime's state of a rollout, as far as it is read."""

    def __init__(self) -> None:
        self.raised = threading.Event()

    @property
    def aborted(self) -> bool:
        return self.raised.is_set()

    @aborted.setter
    def aborted(self, value: bool) -> None:
        (self.raised.set if value else self.raised.clear)()
