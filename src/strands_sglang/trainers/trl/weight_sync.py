"""Updates the engine's weights whenever the trainer's step has changed, and checks the result: `WeightUpdater`.

Invariant: no episode of a step begins before every worker that responds has loaded that step's weights and the engine
reports their version. A failed update raises an error; a step never runs with old weights. A folder with a version's
name is complete; the trainer's model stays bit for bit the same.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeVar

import orjson

from strands_sglang.engine.adapters import MARK, version_with
from strands_sglang.engine.control import ControlResult, EngineControl
from strands_sglang.errors import ConfigurationError, EngineError, EngineUnavailableError, RequestRejectedError
from strands_sglang.runs.staleness import OLDEST, MaxStaleness
from strands_sglang.trainers.trl.engine_thread import EngineThread

logger = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE = 600.0
"""Seconds for which a request to an engine that does not respond is retried."""

_PAUSE, _LONGEST_PAUSE = 1.0, 15.0
_SHARDED = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "TP")


class DiskSync:
    """Saves the weights to a folder, has every worker load them, and removes the previous ones.

    Only the main process saves. Adapters (PEFT) are merged in the saved copy; the trainer's own weights do not change.

    Example:
        >>> rollouts = trl_rollout(build, reward=score, base_url=url, sync=DiskSync("/dev/shm/weights"))
    """

    def __init__(self, folder: str | Path | None = None, *, patience: float = PATIENCE) -> None:
        """Keep the settings; `patience` is the seconds for which an engine that does not respond is retried.

        Every worker must see `folder` under this path; one in memory (`/dev/shm/weights`) is fastest on one machine.
        None: a temporary folder, removed by `close`.
        """
        self.patience = patience
        self._folder = None if folder is None else Path(folder).absolute()
        self._temporary: Path | None = None
        self._last: Path | None = None

    def __call__(self, trainer: Any, version: str, engine: EngineThread) -> None:
        """Save the weights, have the engine load them, and remove the previous ones."""
        if (kind := sharded_by(trainer)) is not None:
            raise ConfigurationError(
                f"the model must be complete on the main process for sync='disk', got one sharded by {kind}: pass a "
                "function as sync=, called on every process as sync(trainer, version, engine), that gathers and saves "
                "the model, and calls engine.run(engine.control.swap_weights(path, version=version)) on one of them"
            )
        if not trainer.accelerator.is_main_process:
            return
        path = self._save(trainer, version)
        retry(lambda: engine.run(self._load(engine.control, path, version)), self.patience)
        if self._last is not None and self._last != path:
            shutil.rmtree(self._last, ignore_errors=True)
        self._last = path

    async def _load(self, control: EngineControl, path: Path, version: str) -> None:
        """Have every worker load what was saved."""
        results = await control.swap_weights(str(path), version=version)
        await _check_loaded(control, results, path, version)

    def close(self) -> None:
        """Remove saved weights."""
        for path in (self._last, self._temporary):
            if path is not None:
                shutil.rmtree(path, ignore_errors=True)
        self._last = self._temporary = None

    def _save(self, trainer: Any, version: str) -> Path:
        if self._folder is None and self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="strands-sglang-weights-"))
        folder = self._folder or self._temporary
        assert folder is not None
        folder.mkdir(parents=True, exist_ok=True)
        partial, path = folder / f".partial-{version}", folder / f"weights-{version}"
        for left in (partial, path):
            shutil.rmtree(left, ignore_errors=True)
        self._write(trainer.accelerator.unwrap_model(trainer.model), partial)
        partial.rename(path)
        return path

    def _write(self, model: Any, path: Path) -> None:
        save_weights(model, path)


class AdapterSync(DiskSync):
    """Saves the trainer's LoRA adapter alone, has every worker load it under a new name, and unloads the previous one.

    The engine keeps the base weights, so an update writes and loads little. The server needs `--enable-lora`,
    `--max-lora-rank` and `--lora-target-modules` that fit the adapter.

    Example:
        >>> rollouts = trl_rollout(build, reward=score, base_url=url, sync=AdapterSync("/dev/shm/adapters"))
    """

    def __init__(self, folder: str | Path | None = None, *, name: str = "", patience: float = PATIENCE) -> None:
        """Keep the settings, as for `DiskSync`; the adapter of a step is called `NAME-vSTEP`.

        `name` must be new for the server. "": one with random digits.
        """
        super().__init__(folder, patience=patience)
        self._name = name or f"policy-{uuid.uuid4().hex[:6]}"
        self.adapter: str | None = None
        """The adapter that was loaded last; None: none yet."""

    async def _load(self, control: EngineControl, path: Path, version: str) -> None:
        adapter = f"{self._name}-v{version}"
        results = await control.load_adapter(adapter, str(path))
        await _check_loaded(control, results, path, version)
        if self.adapter not in (None, adapter):
            await control.unload_adapter(str(self.adapter))
        self.adapter = adapter

    def _write(self, model: Any, path: Path) -> None:
        config: Any = getattr(model, "peft_config", {}).get(getattr(model, "active_adapter", None))
        kind = str(getattr(getattr(config, "peft_type", None), "value", "no adapter"))
        if kind != "LORA" or getattr(config, "modules_to_save", None):
            more = "" if kind != "LORA" else f" that also trains {config.modules_to_save} as a whole"
            raise ConfigurationError(
                f"the trainer must have a LoRA adapter for sync='adapter', got {kind}{more}: pass peft_config="
                "LoraConfig(...) to the trainer, or use sync='disk', which merges any adapter"
            )
        model.save_pretrained(str(path), selected_adapters=[model.active_adapter])


async def _check_loaded(control: EngineControl, results: Sequence[ControlResult], path: Path, version: str) -> None:
    """A worker that responds but does not load the weights is an error.

    One that does not respond samples nothing. If it comes back with older weights, what it samples is masked until
    the next update.
    """
    refused = {result.worker: result.message for result in results if not (result.ok and _succeeded(result.message))}
    if not refused:
        return
    messages = "; ".join(f"{worker}: {message}" for worker, message in refused.items())
    responding = await control.open_requests()
    if any(worker in responding for worker in refused):
        raise RequestRejectedError(
            f"all workers must load the weights, got {len(refused)} of {len(results)} that did not load {path}, which "
            f"they must see under that path: {messages:.1000}"
        )
    if len(refused) == len(results):
        raise EngineUnavailableError(f"no worker responds to load the weights of step {version}: {messages:.1000}")
    logger.warning(
        "gone=<%d>, of=<%d>, messages=<%.300s> | some workers do not respond, the others continue",
        len(refused),
        len(results),
        messages,
    )


def retry(work: Callable[[], T], seconds: float) -> T:
    """Call a function until it succeeds, the engine rejects it, or the time is over."""
    until, pause = time.monotonic() + seconds, _PAUSE
    while True:
        try:
            return work()
        except RequestRejectedError:
            raise
        except EngineError as error:
            if time.monotonic() + pause > until:
                raise
            logger.warning("error=<%.300s>, seconds=<%.0f> | engine does not respond, retrying", error, pause)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def sharded_by(trainer: Any) -> str | None:
    """Return the backend that shards the trainer's model over processes; None if each process has the whole model."""
    kind = str(getattr(getattr(trainer.accelerator, "distributed_type", None), "value", "NO"))
    return kind if kind in _SHARDED else None


def _succeeded(message: str) -> bool:
    try:
        response = orjson.loads(message)
    except orjson.JSONDecodeError:
        return True
    return not (isinstance(response, dict) and response.get("success") is False)


def save_weights(model: Any, path: Path) -> None:
    """Save a Hugging Face model, or a PEFT model with its adapters merged, as a checkpoint."""
    if hasattr(model, "get_base_model"):  # PEFT's
        with merged(model):
            model.get_base_model().save_pretrained(str(path), state_dict=_plain_state(model))
    else:
        model.save_pretrained(str(path))
    if not any(path.glob("*.safetensors")):
        raise ConfigurationError(
            f"{type(model).__name__}.save_pretrained must write safetensors, which the engine loads, got none in {path}"
        )


@contextmanager
def merged(model: Any) -> Iterator[None]:
    """Merge a PEFT model's adapters into its weights inside the context, then restore the weights.

    The weights are restored from a copy: subtracting the adapters again would accumulate rounding errors.
    """
    if not hasattr(model, "merge_adapter"):
        raise ConfigurationError(
            "adapters must be mergeable into the weights for sync='disk', got prompt learning: the engine would sample "
            "without them. Train LoRA or similar adapters, or pass your own sync="
        )
    layers = [module.base_layer for module in model.modules() if hasattr(module, "base_layer")]
    base = [parameter for layer in layers for parameter in layer.parameters(recurse=False)]
    if any(not parameter.dtype.is_floating_point for parameter in base):
        raise ConfigurationError(
            "the base model of the adapters must not be quantised for sync='disk': merged weights would be rounded "
            "and differ from those that are trained. Use a base model that is not quantised, or pass your own sync="
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
    plain: dict[str, Any] = {}
    for name, tensor in model.state_dict().items():
        if f".{model.prefix}" in name or ".original_module." in name:
            continue  # the adapters themselves, and originals of modules that are trained as a whole
        name = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
        parts = name.split(".")
        if "modules_to_save" in parts:
            at = parts.index("modules_to_save")
            del parts[at : at + 2]  # the second part is the adapter's name
        plain[".".join(parts)] = tensor
    return plain


class SyncKind(str, Enum):
    """How the engine gets the trainer's weights."""

    DISK = "disk"
    ADAPTER = "adapter"
    """Only the LoRA adapter; the engine keeps the base weights."""
    NONE = "none"


class WeightSync(Protocol):
    """A function that brings the trainer's weights to the engine. Called on every process, in the trainer's thread.

    Example:
        >>> def sync(trainer, version, engine):
        ...     path = gather_and_save(trainer)
        ...     if trainer.accelerator.is_main_process:
        ...         engine.run(engine.control.swap_weights(path, version=version))
    """

    def __call__(self, trainer: Any, version: str, engine: EngineThread) -> None:
        """Return when the engine samples from the weights of `trainer.model`, under the name `version`."""
        ...


class WeightUpdater:
    """Updates the engine's weights when the trainer's step has changed, and checks that it did."""

    def __init__(
        self,
        sync: WeightSync | SyncKind | str,
        engine: EngineThread,
        check: Callable[[EngineThread, Any], None] | None = None,
    ) -> None:
        """`check` is called once, on the main process, before the first update; it raises if it is the wrong engine."""
        try:
            kind = sync if callable(sync) else SyncKind(sync)
        except ValueError:
            raise ConfigurationError(
                f"sync must be 'disk', 'adapter', 'none', a DiskSync(...), an AdapterSync(...) or a function, "
                f"got {sync!r}"
            ) from None
        self._sync: WeightSync | None = None
        if kind is SyncKind.DISK:
            self._sync = DiskSync()
        elif kind is SyncKind.ADAPTER:
            self._sync = AdapterSync()
        elif not isinstance(kind, SyncKind):
            self._sync = kind
        self._engine, self._engine_check = engine, check
        self._done: tuple[weakref.ref[Any], int] | None = None  # a trainer and its step
        self.version: str | None = None
        self._places: dict[str, int] = {}
        if self._sync is not None:
            _ = engine.control  # raises now if weights cannot be updated

    def update(self, trainer: Any) -> float | None:
        """Update the engine's weights; return the seconds it took, None if the engine already had them."""
        step = int(trainer.state.global_step)
        if self._sync is None or (self._done is not None and self._done == (weakref.ref(trainer), step)):
            return None
        began = time.monotonic()
        version = str(_from_main(trainer, lambda: self._new_name(trainer, step)))
        failed: Exception | None = None
        try:
            self._sync(trainer, version, self._engine)
        except Exception as error:  # raised below, after the other processes know: they would wait forever
            failed = error
        on_record = str(_from_main(trainer, lambda: self._check(version, failed)))
        if failed is not None:
            raise failed
        self._done, self.version = (weakref.ref(trainer), step), on_record
        self._places[on_record] = len(self._places)
        seconds = time.monotonic() - began
        logger.info(
            "step=<%d>, version=<%s>, seconds=<%.2f> | engine loaded the trainer's weights", step, on_record, seconds
        )
        return seconds

    def place(self, version: str) -> int:
        """Return the number of updates before the one that gave weights this name; others are older than all."""
        return self._places.get(version, OLDEST)

    def fitted(self, rule: MaxStaleness) -> MaxStaleness:
        """Return a rule that knows the trainer's versions, unless the trainer does not update the engine's weights."""
        rule = replace(rule, stop_running=False)  # TRL needs every episode, and waits for all before the next update
        if self._sync is None:
            return rule
        return replace(rule, order=rule.order or self.place, current=rule.current or (lambda: self.version))

    def close(self) -> None:
        """Remove saved weights; the next `update` updates again."""
        self._done = self.version = None
        if isinstance(self._sync, DiskSync):
            self._sync.close()

    def _engine_version(self) -> str | None:
        return self._engine.run(self._engine.control.model_info()).weight_version

    def _new_name(self, trainer: Any, step: int) -> str:
        """The name differs from the engine's current one, to detect the change."""
        if self._engine_check is not None:
            self._engine_check(self._engine, trainer)
            self._engine_check = None
        name = str(step)
        current = retry(self._engine_version, getattr(self._sync, "patience", PATIENCE))
        return name if current != name else f"{name}-{uuid.uuid4().hex[:6]}"

    @property
    def adapter(self) -> str | None:
        """The LoRA adapter to sample with; None: the engine's weights as they are."""
        return None if self.version is None else self.version.partition(MARK)[2] or None

    def _check(self, version: str, failed: Exception | None) -> str:
        """Return the version of the tokens that are sampled from now on; raise if the update did not take place."""
        if failed is not None:
            raise failed
        now = self._engine_version()
        if (adapter := getattr(self._sync, "adapter", None)) is not None:
            return version_with(now, adapter)
        if now != version:
            raise EngineError(
                f"the engine must sample from the weights {version!r} after the update, but reports {now!r}: the "
                "update did not take place, or another process updates this engine too"
            )
        return version


def _from_main(trainer: Any, work: Callable[[], Any]) -> Any:
    accelerator = trainer.accelerator
    if getattr(accelerator, "num_processes", 1) == 1:
        return work()
    from accelerate.utils import broadcast_object_list

    outcome: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            outcome[0] = work()
        except Exception as error:
            outcome[1] = error
    # This also synchronises the processes: no episode begins before the update is complete.
    broadcast_object_list(outcome, from_process=0)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]
