"""LoRA adapters for the lab's tool policy, in PEFT's format on disk: random ones, which change what it samples."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from support.lab_servers import LAB, LabProcess

CHECKPOINT = LAB / "tool_policy" / "canonical"
RANK = 4
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")
FLAGS = (
    *("--enable-lora", "--max-lora-rank", "16", "--lora-backend", "torch_native", "--max-loras-per-batch", "4"),
    *("--lora-target-modules", *MODULES, "gate_proj", "up_proj", "down_proj"),
)
"""Options of the server. The default backend is for GPUs."""


def serve_adapters(logs: Path, *flags: str) -> LabProcess:
    """Return a tool policy, not started, that takes adapters."""
    return LabProcess("tool-policy-lora", [str(LAB / "serve"), "tool-policy", *FLAGS, *flags], logs)


def write_adapter(folder: Path, seed: int, scale: float = 0.05) -> Path:
    """Write a random adapter; `scale` 0 has no effect, 0.05 changes many tokens and leaves a model that calls tools."""
    config = json.loads((CHECKPOINT / "config.json").read_text())
    width, head = config["hidden_size"], config["head_dim"]
    inner, shared = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {"q_proj": (width, inner), "k_proj": (width, shared), "v_proj": (width, shared), "o_proj": (inner, width)}
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for module, (before, after) in shapes.items():
            key = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{key}.lora_A.weight"] = rng.standard_normal((RANK, before)) * 0.05
            tensors[f"{key}.lora_B.weight"] = rng.standard_normal((after, RANK)) * scale
    folder.mkdir(parents=True, exist_ok=True)
    _write_safetensors(folder / "adapter_model.safetensors", tensors)
    about = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 8, "target_modules": MODULES}
    more = {"base_model_name_or_path": CHECKPOINT.name, "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": False}
    more |= {"inference_mode": True, "use_rslora": False, "use_dora": False, "modules_to_save": None}
    (folder / "adapter_config.json").write_text(json.dumps({**about, **more}))
    return folder


def _write_safetensors(path: Path, tensors: dict[str, npt.NDArray[np.float64]]) -> None:
    header, bodies, at = {}, [], 0
    for name, tensor in tensors.items():
        body = tensor.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + len(body)]}
        bodies.append(body)
        at += len(body)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(bodies))
