"""A row as AReaL's trajectory: one tensor a name, each with a first dimension of 1.

Invariant: all of one row's per-token tensors have one length; versions are -1 wherever nothing was sampled.
"""

from __future__ import annotations

from typing import Any

from strands_sglang.trainers.plain_row import PlainRow


def trajectory(row: PlainRow) -> dict[str, Any]:
    """Return a row as the dict of tensors that AReaL's workflows give back."""
    torch = _torch()
    before, ids = len(row.prompt_ids), row.token_ids
    versions = [-1] * before + [-1 if version is None else int(version) for version in row.versions]
    tensors = {
        "input_ids": torch.tensor(ids, dtype=torch.int32),
        "loss_mask": torch.tensor([0] * before + row.loss_mask, dtype=torch.int32),
        "logprobs": torch.tensor([0.0] * before + row.logprobs, dtype=torch.float32),
        "versions": torch.tensor(versions, dtype=torch.int32),
        "attention_mask": torch.ones(len(ids), dtype=torch.bool),
        "rewards": torch.tensor(row.reward, dtype=torch.float32),
    }
    return {name: tensor.unsqueeze(0) for name, tensor in tensors.items()}


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError("AReaL's trajectories are tensors of torch: pip install torch") from error
    return torch
