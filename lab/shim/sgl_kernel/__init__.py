"""Stands in for SGLang's compiled CPU kernels, in plain PyTorch.

The package index carries no CPU build of `sgl_kernel`. SGLang falls back to PyTorch for every layer when
`torch.ops.sgl_kernel.convert_weight_packed` is absent (its test for AMX kernels), so nothing here may define that name.
With SGLANG_USE_CPU_ENGINE=1 it still imports a few helpers unconditionally: the ones that text generation really calls
are here, any other name imports as a function that raises when called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch

__version__ = "0.0.0+lab"

_MASK = 0xFFFFFFFF


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write each request's new cache slots into its row, from its start to its end offset."""
    lengths = (end_offset - start_offset).long()
    total = int(lengths.sum())
    if total == 0:
        return
    rows = torch.repeat_interleave(req_pool_indices.long(), lengths)
    before = torch.cumsum(lengths, 0) - lengths
    columns = torch.repeat_interleave(start_offset.long() - before, lengths) + torch.arange(total)
    req_to_token[rows, columns] = out_cache_loc[:total].to(req_to_token.dtype)


def _rotate(x: torch.Tensor, bits: int) -> torch.Tensor:
    return ((x << bits) | (x >> (32 - bits))) & _MASK


def _mix(state: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    block = (_rotate((block * 0xCC9E2D51) & _MASK, 15) * 0x1B873593) & _MASK
    return (_rotate(state ^ block, 13) * 5 + 0xE6546B64) & _MASK


def _murmur_hash32(seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor) -> torch.Tensor:
    """MurmurHash3-32 over four blocks (low and high seed, position, column), as uint32 of shape (rows, columns).

    The arithmetic is int64, which wraps modulo 2**64: masking keeps the low 32 bits exact.
    """
    seed = seed.long()
    state = torch.zeros_like(seed)
    for block in (seed & _MASK, (seed >> 32) & _MASK, positions.long() & _MASK):
        state = _mix(state, block)
    state = _mix(state[:, None], (col_indices.long() & _MASK)[None, :]) ^ 16
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & _MASK
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & _MASK
    return (state ^ (state >> 16)).to(torch.uint32)


# Seeded sampling reaches it as torch.ops.sgl_kernel.murmur_hash32_cpu.
_library = torch.library.Library("sgl_kernel", "FRAGMENT")
_library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
_library.impl("murmur_hash32_cpu", _murmur_hash32, "CPU")


def _gemma_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * (1 + weight.float())).to(x.dtype)


def _qk_gemma_norm(
    q: torch.Tensor, k: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, eps: float, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both norms of Qwen3.5's attention, one row per head."""
    return (
        _gemma_norm(q.reshape(-1, head_dim), q_weight, eps),
        _gemma_norm(k.reshape(-1, head_dim), k_weight, eps),
    )


def _qk_gemma_norm_gate(
    q_gate: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    head_dim: int,
    num_heads: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same, with the output gate taken out of the queries: each head is its query, then its gate."""
    q, gate = q_gate.reshape(-1, num_heads, 2 * head_dim).split(head_dim, dim=-1)
    return (*_qk_gemma_norm(q, k, q_weight, k_weight, eps, head_dim), gate.reshape(-1, head_dim).contiguous())


def _sigmoid_mul(x: torch.Tensor, gate: torch.Tensor) -> None:
    x.mul_(torch.sigmoid(gate.reshape(x.shape)))


# The Qwen-VL processor imports Qwen3.5's model, which looks these up when it is imported.
_library.define("fused_sigmoid_mul_cpu(Tensor(a!) x, Tensor gate) -> ()")
_library.impl("fused_sigmoid_mul_cpu", _sigmoid_mul, "CPU")
_library.define(
    "fused_qk_gemma_rmsnorm_cpu(Tensor q, Tensor k, Tensor q_weight, Tensor k_weight, float eps, int head_dim)"
    " -> (Tensor, Tensor)"
)
_library.impl("fused_qk_gemma_rmsnorm_cpu", _qk_gemma_norm, "CPU")
_library.define(
    "fused_qk_gemma_rmsnorm_with_gate_cpu(Tensor q_gate, Tensor k, Tensor q_weight, Tensor k_weight, float eps,"
    " int head_dim, int num_heads) -> (Tensor, Tensor, Tensor)"
)
_library.impl("fused_qk_gemma_rmsnorm_with_gate_cpu", _qk_gemma_norm_gate, "CPU")
_library.define("fused_qkvzba_split_reshape_cat_contiguous_cpu(Tensor x) -> Tensor")  # linear attention: never called


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """Any other kernel: importable, not callable."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} has no plain PyTorch version in lab/shim")

    missing.__name__ = name
    return missing
