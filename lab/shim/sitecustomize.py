"""Lets SGLang's wheel from the package index run on a machine without a GPU.

Python imports `sitecustomize` from PYTHONPATH in every process. Nothing heavy is imported here: a few modules are
patched right after their own import, if that ever comes.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

_libraries: list[object] = []  # torch drops an operator when its Library object is collected


def _declare_torchvision_operators(extension: ModuleType) -> None:
    """Give torchvision the two operators it registers fakes for unconditionally.

    The package index carries torchvision linked with CUDA. Its C++ part cannot load beside a CPU build of torch, which
    torchvision survives but for these two; the rest that SGLang imports is Python.
    """
    if extension._has_ops():
        return
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)


def _leave_host_memory_unpinned(pool: ModuleType) -> None:
    """Skip pinning the buffer of --enable-return-routed-experts: it goes through the CUDA runtime."""
    pool._cuda_host_register = lambda *args, **kwargs: None


def _let_torch_native_be_deterministic(choices: ModuleType) -> None:
    """Let --enable-deterministic-inference run on this attention backend, so that seeds of requests are used.

    It shows nothing about batch invariance: in float32, a small model gives the same tokens in any batch anyway.
    """
    choices.add_deterministic_attention_backend_choices(["torch_native"])
    choices.add_radix_supported_deterministic_attention_backend_choices(["torch_native"])


def _leave_operators_batch_variant(operators: ModuleType) -> None:
    """Skip the batch-invariant operators of --enable-deterministic-inference: they are Triton kernels."""
    operators.enable_batch_invariant_mode = lambda *args, **kwargs: None


def _leave_lora_unpinned(manager: ModuleType) -> None:
    """Make tensors of LoRA adapters without pinning them, which torch refuses without an accelerator."""
    import functools

    import torch

    def unpinned(make: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(make)
        def made(*args: object, **kwargs: object) -> object:
            kwargs.pop("pin_memory", None)
            return make(*args, **kwargs)

        return made

    for name in ("tensor", "zeros", "empty", "arange"):
        setattr(torch, name, unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self


def _fork_children(entry: ModuleType) -> None:
    """Fork the scheduler and the detokenizer. Spawned, each imports SGLang again: most of the CPU time of a start.

    SGLang spawns them because a forked process cannot use CUDA. No thread has been started at this point.
    """
    configure = entry._set_envs_and_config

    def configure_and_fork(*args: object, **kwargs: object) -> None:
        import multiprocessing

        configure(*args, **kwargs)
        multiprocessing.set_start_method("fork", force=True)

    entry._set_envs_and_config = configure_and_fork


_PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "torchvision.extension": _declare_torchvision_operators,
    "sglang.srt.mem_cache.pool_host.common": _leave_host_memory_unpinned,
    "sglang.srt.arg_groups.choices": _let_torch_native_be_deterministic,
    "sglang.srt.batch_invariant_ops": _leave_operators_batch_variant,
    "sglang.srt.lora.lora_manager": _leave_lora_unpinned,
    "sglang.srt.entrypoints.engine": _fork_children,
}


class _Patcher(importlib.abc.MetaPathFinder):
    """Finds the modules of _PATCHES as usual, and patches each once it has run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Answer for the modules to patch, once each; leave all others to the usual finders."""
        patch = _PATCHES.pop(fullname, None)
        spec = importlib.util.find_spec(fullname) if patch else None
        if patch is None or spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_patch(module: ModuleType) -> None:
            run(module)
            patch(module)

        spec.loader.exec_module = run_and_patch  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Patcher())
