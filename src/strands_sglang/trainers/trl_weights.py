"""A model's weights on disk, adapters merged: `save_weights`.

Invariant: what is written is what the trainer's forward pass computes with; the model itself is bit for bit as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strands_sglang.errors import ConfigurationError


def save_weights(model: Any, path: Path) -> None:
    """Save a Hugging Face model, or a PEFT model with its adapters merged, as a checkpoint.

    Args:
        model: Unwrapped, whole on this process.
        path: Folder to make.

    Raises:
        ConfigurationError: The adapters cannot be merged exactly.
    """
    if hasattr(model, "get_base_model"):  # PEFT's
        with merged(model):
            model.get_base_model().save_pretrained(str(path), state_dict=_plain_state(model))
    else:
        model.save_pretrained(str(path))
    if not any(path.glob("*.safetensors")):
        raise ConfigurationError(f"{type(model).__name__}.save_pretrained wrote no safetensors, which the engine loads")


@contextmanager
def merged(model: Any) -> Iterator[None]:
    """Merge a PEFT model's adapters into its weights for a while.

    Taking the adapters out again by subtraction would leave rounding behind, step after step: the weights are put back
    as they were.
    """
    if not hasattr(model, "merge_adapter"):
        raise ConfigurationError(
            "adapters that are no part of the weights (prompt learning) cannot be merged into them, and the engine "
            "would sample without: train LoRA or its like, or give a sync= of your own"
        )
    layers = [module.base_layer for module in model.modules() if hasattr(module, "base_layer")]
    base = [parameter for layer in layers for parameter in layer.parameters(recurse=False)]
    if any(not parameter.dtype.is_floating_point for parameter in base):
        raise ConfigurationError(
            "the model under the adapters is quantised: merged weights would be rounded, and not those that are "
            "trained. Train adapters on a model that is not quantised, or give a sync= of your own"
        )
    before = [parameter.detach().to("cpu", copy=True) for parameter in base]
    model.merge_adapter()
    try:
        yield
    finally:
        model.unmerge_adapter()
        for parameter, value in zip(base, before, strict=True):
            parameter.data.copy_(value)


def _plain_state(model: Any) -> dict[str, Any]:
    """Return the tensors of a merged PEFT model under the names that they have without PEFT."""
    plain: dict[str, Any] = {}
    for name, tensor in model.state_dict().items():
        if f".{model.prefix}" in name or ".original_module." in name:
            continue  # the adapters themselves, and what a module that is trained whole has taken the place of
        name = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
        parts = name.split(".")
        if "modules_to_save" in parts:
            at = parts.index("modules_to_save")
            del parts[at : at + 2]  # and the adapter's name
        plain[".".join(parts)] = tensor
    return plain
