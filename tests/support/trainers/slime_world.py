"""slime's own rollout code on this machine: its arguments, data source, rollout functions, buffer and conversion.

Nothing of slime is imitated. Two things around it are: `slime.ray.rollout` and `slime.utils.arguments` import a few
names of `sglang` at their top, which servers need and no test does, and which get stand-ins where sglang is not
installed; and what would be put into Ray's object store is kept in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import importlib
import importlib.util
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from support.rollout_agent import TOKENIZER, tasks
from support.trainers.slime_wire import Wire

USER = "slime_user_code"
"""The module in which slime finds the functions of a test."""


def slime(name: str) -> Any:
    _stand_in_for_sglang()
    return importlib.import_module(f"slime.{name}")


def slime_trainer(name: str) -> Any:
    """Return a module of slime's Megatron backend, on one rank without a GPU.

    Where Megatron is not installed, its parallel state has a stand-in of one rank; what slime computes is its own.
    """
    if "megatron" not in sys.modules and importlib.util.find_spec("megatron") is None:
        ranks: Any = ModuleType("megatron.core.mpu")
        for kind in ("context_parallel", "tensor_model_parallel", "data_parallel", "virtual_pipeline_model_parallel"):
            setattr(ranks, f"get_{kind}_world_size", lambda *_, **__: 1)
            setattr(ranks, f"get_{kind}_rank", lambda *_, **__: 0)
            setattr(ranks, f"get_{kind}_group", lambda *_, **__: None)
        ranks.is_pipeline_last_stage = lambda *_, **__: True
        core: Any = ModuleType("megatron.core")
        core.mpu = ranks
        packed: Any = ModuleType("megatron.core.packed_seq_params")
        packed.PackedSeqParams = SimpleNamespace
        for module in (ModuleType("megatron"), core, ranks, packed):
            module.__path__ = []
            sys.modules[module.__name__] = module
    return slime(f"backends.megatron_utils.{name}")


def _stand_in_for_sglang() -> None:
    if "sglang" in sys.modules or importlib.util.find_spec("sglang") is not None:
        return

    class ServerArgs:
        @staticmethod
        def add_cli_args(parser: Any) -> None:  # of hundreds, those that rollouts read
            parser.add_argument("--dp-size", type=int, default=1)
            parser.add_argument("--speculative-algorithm", default=None)
            parser.add_argument("--enable-deterministic-inference", action="store_true")

    tags = dict.fromkeys(("GPU_MEMORY_TYPE_CUDA_GRAPH", "GPU_MEMORY_TYPE_KV_CACHE", "GPU_MEMORY_TYPE_WEIGHTS"), "")
    for name, inside in {
        "sglang": {},
        "sglang.srt": {},
        "sglang.srt.server_args": {"ServerArgs": ServerArgs},
        "sglang.srt.constants": tags,
        "sglang.srt.utils": {"kill_process_tree": None},
    }.items():
        module: Any = ModuleType(name)
        module.__path__ = []
        module.__dict__.update(inside)
        sys.modules[name] = module


@dataclass
class Batch:
    """What one rollout of slime gave."""

    groups: list[Any]
    samples: list[Any]
    train: dict[str, Any]
    ranks: list[dict[str, Any]]
    seconds: float
    since_abort: float
    """Seconds from when slime said that it has enough to when the last call of the function under test returned."""


class SlimeWorld:
    """slime in front of an engine, while in a `with` block: everything it keeps for a process is new in each."""

    def __init__(self, upstream: str, folder: Path, checkpoint: str = TOKENIZER, *, alone: bool = False) -> None:
        self.wire = Wire(upstream, alone=alone)
        self.checkpoint = checkpoint
        self.folder = folder
        self.aborted_at = 0.0
        """When slime last said that it has enough, on the monotonic clock."""
        self.returned_at = 0.0
        """When the function under test last returned."""
        self.args: Any = None
        self.source: Any = None
        self._numbers = itertools.count()

    # -- what a user gives slime --

    def path(self, function: Callable[..., Any]) -> str:
        """Return where slime can import a function."""
        name = f"function_{next(self._numbers)}"
        setattr(sys.modules[USER], name, function)
        return f"{USER}.{name}"

    def _timed(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(generate)  # slime looks at the signature
        async def timed(*given: Any, **named: Any) -> Any:
            try:
                return await generate(*given, **named)
            finally:
                self.returned_at = time.monotonic()

        return timed

    def prompts(self, count: int = 64, mark: Callable[[int], dict[str, Any]] | None = None) -> Path:
        """Write a dataset and return its file.

        Every second prompt has a label that no answer can have, so that wrong answers do not depend on luck.
        """
        file = self.folder / f"prompts-{next(self._numbers)}.jsonl"
        lines = [
            {
                "text": one.prompt,
                "label": str(one.answer) if number % 2 == 0 else "a secret",
                "metadata": {**one.data, **(mark(number) if mark else {})},
            }
            for number, one in enumerate(tasks(count))
        ]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return file

    def configure(
        self, generate: Callable[..., Any], *flags: Any, groups: int = 4, samples: int = 4, **more: Any
    ) -> Any:
        """Make slime's arguments from its own parser, and its data source from them."""
        arguments = slime("utils.arguments")
        parser = argparse.ArgumentParser()
        arguments.get_slime_extra_args_provider()(parser)
        slime("backends.sglang_utils.arguments").add_sglang_arguments(parser)
        plain: list[Any] = ["--hf-checkpoint", self.checkpoint, "--num-rollout", 100, "--rollout-num-gpus", 2]
        plain += ["--sglang-router-ip", "127.0.0.1", "--sglang-router-port", self.wire.port]
        plain += [
            "--sglang-server-concurrency",
            64,
            "--custom-generate-function-path",
            self.path(self._timed(generate)),
        ]
        plain += ["--prompt-data", self.prompts(), "--input-key", "text", "--label-key", "label"]
        plain += ["--rollout-batch-size", groups, "--n-samples-per-prompt", samples]
        plain += ["--global-batch-size", groups * samples, "--rollout-max-response-len", 256]
        plain += ["--use-dynamic-batch-size", "--max-tokens-per-gpu", 4096]  # else slime wants even numbers of samples
        args = parser.parse_args([str(flag) for flag in [*plain, *flags]])
        before = {"train_backend": "megatron", "debug_rollout_only": False, "debug_train_only": False}
        for name, value in {**before, "load_debug_rollout_data": None, **more}.items():
            setattr(args, name, value)
        arguments.slime_validate_args(args)
        self.args = args
        slime("utils.http_utils").init_http_client(args)
        self.source = slime("utils.misc").load_function(args.data_source_path)(args)
        return args

    # -- what slime does with it --

    def manager(self) -> Any:
        """Return slime's rollout manager without its actor, its servers and its trackers."""
        module = slime("ray.rollout")
        made = module.RolloutManager.__ray_metadata__.modified_class.__new__(
            module.RolloutManager.__ray_metadata__.modified_class
        )
        load = slime("utils.misc").load_function
        made.args, made.data_source = self.args, self.source
        made.generate_rollout = load(self.args.rollout_function_path)
        made.eval_generate_rollout = load(self.args.eval_function_path)
        for name in ("reward_post_process", "convert_samples_to_train_data"):
            path = getattr(self.args, f"custom_{name}_path")
            setattr(made, f"custom_{name}_func", load(path) if path is not None else None)
        made.train_parallel_config = {
            "dp_size": 2,
            "cp_size": 1,
            "vpp_size": 1,
            "microbatch_group_size_per_vp_stage": 1,
        }
        made._health_monitors = []
        return made

    def step(self, rollout_id: int = 0) -> Batch:
        """Do what slime's rollout manager does for one training step: roll out, log, convert, split."""
        manager = self.manager()
        kept: list[Any] = []
        taken: list[float] = []

        def rolled(args: Any, number: int, source: Any, evaluation: bool = False) -> Any:
            generate = slime("utils.misc").load_function(args.rollout_function_path)
            began = time.monotonic()
            output = generate(args, number, source, evaluation=evaluation)
            taken.extend((time.monotonic() - began, self.returned_at - self.aborted_at))
            kept.extend(getattr(output, "samples", output))
            return output

        manager.generate_rollout = rolled
        slime("rollout.sample_hooks").set_current_rollout_id(rollout_id)
        samples, metrics = manager._get_rollout_data(rollout_id)
        data = slime("observability.rollout_data_utils")
        data.save_debug_rollout_data(
            self.args.save_debug_rollout_data, samples, rollout_id=rollout_id, evaluation=False
        )
        slime("observability.rollout_metrics").log_rollout_data(rollout_id, self.args, samples, metrics, taken[0])
        train = manager._convert_samples_to_train_data(samples)
        with self.in_memory():
            ranks = [box.inner for box in manager._split_train_data_by_dp(train)]
        return Batch(kept, samples, train, ranks, *taken)

    def evaluate(self, rollout_id: int = 0) -> dict[str, Any]:
        """Do what slime's rollout manager does for an evaluation, and return what it logs with the data."""
        manager = self.manager()
        output = manager.eval_generate_rollout(self.args, rollout_id, self.source, evaluation=True)
        logged = slime("observability.rollout_metrics").log_eval_rollout_data(rollout_id, self.args, output.data, None)
        return {**output.data, "logged": logged}

    def run(self, coroutine: Any) -> Any:
        return slime("utils.async_utils").run(coroutine)

    @property
    def state(self) -> Any:
        return slime("rollout.sglang_rollout").GenerateState(self.args)

    @contextmanager
    def in_memory(self) -> Iterator[None]:
        """Keep in memory what slime would put into Ray's object store."""
        module = slime("ray.rollout")
        kept = module.ray
        module.ray = SimpleNamespace(put=lambda value: value)
        try:
            yield
        finally:
            module.ray = kept

    # -- a process of its own --

    def __enter__(self) -> SlimeWorld:
        self._forget()
        sys.modules[USER] = ModuleType(USER)
        self.wire.__enter__()
        rollout = slime("rollout.sglang_rollout")
        self._abort = rollout.abort

        async def abort(args: Any, rollout_id: int) -> Any:
            self.aborted_at = time.monotonic()
            return await self._abort(args, rollout_id)

        rollout.abort = abort
        return self

    def __exit__(self, *failed: Any) -> None:
        slime("rollout.sglang_rollout").abort = self._abort
        if self.args is not None:
            self.state.aborted = True  # what still runs in the fully asynchronous worker has no reader any more
        slime("rollout.fully_async_rollout")._stop_global_worker()
        loop = slime("utils.async_utils").async_loop
        if loop is not None:
            client = slime("utils.http_utils")._http_client
            if client is not None:
                loop.run(client.aclose())
            loop.run(_settle())
            loop.loop.call_soon_threadsafe(loop.loop.stop)
            loop._thread.join(10)
            loop.loop.close()
        self.wire.__exit__(None, None, None)
        self._forget()

    def _forget(self) -> None:
        slime("utils.async_utils").async_loop = None
        slime("utils.http_utils")._http_client = None
        slime("rollout.sglang_rollout").GenerateState.clear_instances()
        slime("rollout.sglang_rollout").EVAL_PROMPT_DATASET.clear()
        slime("utils.misc").load_function.cache_clear()
        sys.modules.pop(USER, None)


async def _settle() -> None:
    """Let what was cancelled or closed on this loop come to its end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=5)
