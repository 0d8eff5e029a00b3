"""What stands in for TRL and for an engine with weights: a trainer as far as it is looked at, and a scripted server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from strands_sglang.tokens import Join, TokenTree, VersionSpan
from support.scripted import ScriptedServer, Wire, answer


class Model:
    """A model that can be saved."""

    def __init__(self) -> None:
        self.training = True
        self.saved: list[Path] = []
        self.files = ("model.safetensors",)
        self.during: Callable[[Path], None] = lambda path: None
        """Called while it is being saved."""

    def save_pretrained(self, path: str) -> None:
        folder = Path(path)
        folder.mkdir(parents=True)
        self.during(folder)
        for name in self.files:
            (folder / name).write_bytes(b"weights")
        self.saved.append(folder)


class Accelerator:
    """One process of a training."""

    def __init__(self, processes: int = 1, index: int = 0, kind: str = "NO") -> None:
        self.num_processes, self.process_index = processes, index
        self.is_main_process = index == 0
        self.distributed_type = SimpleNamespace(value=kind)

    def unwrap_model(self, model: Any) -> Any:
        return model


def arguments(**given: Any) -> SimpleNamespace:
    """Return what is read of a `GRPOConfig`, with its defaults."""
    plain: dict[str, Any] = {
        "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0,
        "generation_kwargs": None, "max_completion_length": 256,
    }  # fmt: skip
    return SimpleNamespace(**{**plain, **given})


@dataclass(eq=False)
class Trainer:
    """What is read of a `GRPOTrainer`."""

    processing_class: Any = None
    train_dataset: Any = None
    eval_dataset: Any = None
    args: Any = field(default_factory=arguments)
    state: Any = field(default_factory=lambda: SimpleNamespace(global_step=0))
    model: Model = field(default_factory=Model)
    accelerator: Accelerator = field(default_factory=Accelerator)
    tools: Any = None
    environment_factories: Any = None


@dataclass
class Weights:
    """A server with weights that can be updated, and that tells whose tokens it samples."""

    ids: list[int] = field(default_factory=lambda: [11, 12])
    version: str = "default"
    samples_from: str | None = None
    """What it says beside tokens; None: the truth."""
    deaf: bool = False
    refusal: tuple[int, Any] | None = None
    """Status and body with which it answers an update; None: it does it."""
    refusals: int | None = None
    """How often it does so; None: always."""
    updates: list[dict[str, Any]] = field(default_factory=list)
    files: list[list[str]] = field(default_factory=list)

    def server(self) -> ScriptedServer:
        return ScriptedServer(self._handle)

    async def _handle(self, wire: Wire) -> None:
        received = await wire.read_body()
        path = received.path
        if path == "/generate":
            version = self.samples_from or self.version
            spans = [{"version": version, "start": 0, "end": len(self.ids)}]
            body: Any = answer(received, self.ids, weight_version=version, weight_versions=spans)
        elif path == "/v1/loads" and (self.refusal is None or self.refusal[0] != 503):
            body = {"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]}
        elif path == "/model_info":
            body = {"model_path": "m", "weight_version": self.version}
        elif path == "/update_weights_from_disk":
            self.updates.append(received.json())
            folder = Path(received.json()["model_path"])
            self.files.append(sorted(one.name for one in folder.iterdir()) if folder.is_dir() else [])
            if self.refusal is not None and (self.refusals is None or len(self.updates) <= self.refusals):
                await wire.reply(orjson.dumps(self.refusal[1]), self.refusal[0])
                return
            if not self.deaf:
                self.version = received.json()["weight_version"]
            body = {"success": True}
        elif path in ("/pause_generation", "/continue_generation", "/flush_cache", "/abort_request"):
            body = {"status": "ok"}
        else:
            await wire.reply(b"{}", 404)
            return
        await wire.reply(orjson.dumps(body))


def two_turns(first: str = "1", second: str = "1") -> TokenTree:
    """Return an episode of a prompt (1, 2), a turn (3, 4), a tool's result (5) and a turn (6, 7)."""
    tree = TokenTree()
    begun = tree.commit(
        tree.prepare(None, context=[1, 2], join=Join.ROOT), [3, 4], [-0.1, -0.2], [VersionSpan(first, 0, 2)]
    )
    tree.commit(tree.prepare(begun, context=[5], join=Join.PROVED), [6, 7], [-0.3, -0.4], [VersionSpan(second, 0, 2)])
    return tree
