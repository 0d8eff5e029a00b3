"""Weight updates of the engine: order, version names, files on disk, errors."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import orjson
import pytest

from strands_sglang import SGLangClient
from strands_sglang.errors import ConfigurationError, EngineError
from strands_sglang.trainers.trl import weight_sync as disk_sync
from strands_sglang.trainers.trl.engine_thread import EngineThread
from strands_sglang.trainers.trl.weight_sync import AdapterSync, DiskSync, WeightUpdater
from support.scripted import ScriptedServer, Wire
from support.trainers.trl_doubles import Accelerator, Trainer, Weights


@pytest.fixture
def weights() -> Weights:
    return Weights()


@pytest.fixture
def engine(weights: Weights) -> Any:
    with weights.server() as server:
        engine = EngineThread(SGLangClient(server.url, max_retries=0), owned=True)
        engine.server = server  # type: ignore[attr-defined]
        yield engine
        engine.close()


def test_every_step_is_loaded_once_under_its_own_name(weights: Weights, engine: Any, tmp_path: Path) -> None:
    trainer, updater = Trainer(), WeightUpdater(DiskSync(tmp_path, patience=0), engine)
    for step in (0, 0, 1, 1, 2):
        trainer.state.global_step = step
        before = len(weights.updates)
        seconds = updater.update(trainer)
        assert (seconds is None) == (len(weights.updates) == before), "what took no update took time"
        assert weights.version == updater.version == str(step)
    assert [update["weight_version"] for update in weights.updates] == ["0", "1", "2"]
    assert weights.files == [["model.safetensors"]] * 3
    assert [one.name for one in tmp_path.iterdir()] == ["weights-2"], "older weights are left on disk"
    updater.close()
    assert not list(tmp_path.iterdir())


def test_other_trainer_at_the_same_step_is_synced(weights: Weights, engine: Any, tmp_path: Path) -> None:
    updater, first, second = WeightUpdater(DiskSync(tmp_path, patience=0), engine), Trainer(), Trainer()
    assert updater.update(first) is not None and updater.update(first) is None
    assert updater.update(second) is not None and len(weights.updates) == 2


def test_paused_and_flushed_before_weights_change(engine: Any, tmp_path: Path) -> None:
    WeightUpdater(DiskSync(tmp_path, patience=0), engine).update(Trainer())
    paths = [path for path in engine.server.paths() if path != "/model_info" and not path.startswith("/workers")]
    assert paths == ["/pause_generation", "/flush_cache", "/update_weights_from_disk", "/continue_generation"]


def test_folder_is_renamed_when_it_is_complete(engine: Any, tmp_path: Path) -> None:
    trainer, seen = Trainer(), list[str]()
    trainer.model.during = lambda path: seen.append(path.name)
    (tmp_path / "weights-0").mkdir()
    (tmp_path / "weights-0" / "half.safetensors").touch()
    WeightUpdater(DiskSync(tmp_path, patience=0), engine).update(trainer)
    assert seen == [".partial-0"]
    assert [one.name for one in (tmp_path / "weights-0").iterdir()] == ["model.safetensors"]


def test_default_folder_is_removed(weights: Weights, engine: Any) -> None:
    updater = WeightUpdater("disk", engine)
    updater.update(Trainer())
    folder = Path(weights.updates[0]["model_path"])
    assert folder.is_dir()
    updater.close()
    assert not folder.exists() and not folder.parent.exists()


def test_version_name_of_the_engine_is_not_reused(weights: Weights, engine: Any, tmp_path: Path) -> None:
    weights.version = "0"
    updater = WeightUpdater(DiskSync(tmp_path, patience=0), engine)
    updater.update(Trainer())
    assert updater.version == weights.version != "0" and weights.version.startswith("0-")


def test_update_without_effect_raises(weights: Weights, engine: Any, tmp_path: Path) -> None:
    weights.deaf = True
    updater = WeightUpdater(DiskSync(tmp_path, patience=0), engine)
    with pytest.raises(EngineError, match="from the weights '0' after the update, but reports 'default'"):
        updater.update(Trainer())
    weights.deaf = False
    assert updater.update(Trainer()) is not None, "a failed update counts as done"


@pytest.mark.parametrize("status", [200, 400])
def test_refusal_of_a_worker_raises_with_its_message(
    weights: Weights, engine: Any, tmp_path: Path, status: int
) -> None:
    weights.refusal = (status, {"success": False, "message": "no such folder"})
    with pytest.raises(EngineError, match=r"1 of 1 that did not load.*no such folder"):
        WeightUpdater(DiskSync(tmp_path), engine).update(Trainer())
    assert "/continue_generation" in engine.server.paths(), "the engine stays paused"


def test_unavailable_engine_is_retried(
    weights: Weights, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_sync, "_PAUSE", 0.01)
    weights.refusal, weights.refusals = (503, {"message": "starting"}), 2
    updater, trainer = WeightUpdater(DiskSync(tmp_path), engine), Trainer()
    assert updater.update(trainer) is not None and weights.version == "0"
    assert len(weights.updates) == 3 and len(trainer.model.saved) == 1


def test_one_of_several_workers_may_be_missing(
    weights: Weights, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def listed(wire: Wire) -> None:
        await wire.read_body()
        urls = [server.url, "http://127.0.0.1:9"]
        body = {"workers": [{"url": url, "is_healthy": True} for url in urls]}
        await wire.reply(orjson.dumps(body), 200 if wire.received.path == "/workers" else 404)

    with weights.server() as server, ScriptedServer(listed) as router:
        engine = EngineThread(SGLangClient(router.url), owned=True)
        updater = WeightUpdater(DiskSync(tmp_path), engine)
        assert updater.update(Trainer()) is not None and weights.version == "0"
        assert "gone=<1>, of=<2>" in caplog.text
        weights.refusal = (400, {"message": "no such folder"})
        with pytest.raises(EngineError, match=r"2 of 2 that did not load .*no such folder"):
            updater.update(Trainer())
        engine.close()


def test_unreachable_engine_raises(tmp_path: Path) -> None:
    gone = EngineThread(SGLangClient("http://127.0.0.1:9", max_retries=0), owned=True)
    with pytest.raises(EngineError):
        WeightUpdater(DiskSync(tmp_path, patience=0), gone).update(Trainer())
    gone.close()


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED"])
def test_sharded_model_is_refused(engine: Any, tmp_path: Path, kind: str) -> None:
    trainer = Trainer(accelerator=Accelerator(kind=kind))
    with pytest.raises(ConfigurationError, match=f"sharded by {kind}.*sync=, called on every process"):
        WeightUpdater(DiskSync(tmp_path, patience=0), engine).update(trainer)
    assert not trainer.model.saved


def test_custom_sync_function_is_checked(weights: Weights, engine: Any) -> None:
    versions: list[str] = []

    def working(trainer: Any, version: str, engine: EngineThread) -> None:
        versions.append(version)
        weights.version = version

    updater = WeightUpdater(working, engine)
    trainer = Trainer(accelerator=Accelerator(kind="FSDP"))
    assert updater.update(trainer) is not None and updater.version == "0" and versions == ["0"]
    with pytest.raises(EngineError, match="after the update, but reports"):
        WeightUpdater(lambda trainer, version, engine: None, engine).update(trainer)


def test_none_sends_no_request(engine: Any) -> None:
    updater = WeightUpdater("none", engine)
    assert updater.update(Trainer()) is None and updater.version is None
    assert not engine.server.received


def test_invalid_sync_is_refused(engine: Any) -> None:
    with pytest.raises(ConfigurationError, match="'disk', 'adapter', 'none'"):
        WeightUpdater("nccl", engine)


@pytest.mark.parametrize("trained", [None, ["lm_head"]])
def test_adapter_sync_needs_a_lora_adapter_alone(trained: Any, engine: Any, tmp_path: Path) -> None:
    """Nothing is loaded that would leave out a part of what is trained."""
    trainer: Any = Trainer()
    if trained is not None:
        config = SimpleNamespace(peft_type=SimpleNamespace(value="LORA"), modules_to_save=trained)
        trainer.model.peft_config, trainer.model.active_adapter = {"default": config}, "default"
    with pytest.raises(ConfigurationError, match="must have a LoRA adapter for sync='adapter', got"):
        WeightUpdater(AdapterSync(tmp_path, patience=0), engine).update(trainer)
    assert "/load_lora_adapter" not in engine.server.paths()


def test_client_without_control_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="sync='none'"):
        WeightUpdater("disk", EngineThread(object()))  # type: ignore[arg-type]


class ProcessGroup:
    """Messages between two processes that run one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages: list[list[Any]] = []
        self.read_count = 0
        self.main = True
        utils = ModuleType("accelerate.utils")
        utils.broadcast_object_list = self._broadcast  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "accelerate", ModuleType("accelerate"))
        monkeypatch.setitem(sys.modules, "accelerate.utils", utils)

    def _broadcast(self, values: list[Any], from_process: int) -> None:
        assert from_process == 0
        if self.main:
            self.messages.append(list(values))
        else:
            values[:] = self.messages[self.read_count]
            self.read_count += 1


def test_main_process_updates_for_all(
    weights: Weights, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wires = ProcessGroup(monkeypatch)
    first, second = (
        WeightUpdater(DiskSync(tmp_path, patience=0), engine),
        WeightUpdater(DiskSync(tmp_path, patience=0), engine),
    )
    one = Trainer(accelerator=Accelerator(2, 0, "MULTI_CPU"))
    two = Trainer(accelerator=Accelerator(2, 1, "MULTI_CPU"))
    first.update(one)
    wires.main = False
    second.update(two)
    assert wires.read_count == len(wires.messages) == 2
    assert first.version == second.version == "0" and len(weights.updates) == 1 and not two.model.saved


def test_failure_of_the_main_process_is_raised_in_all(
    weights: Weights, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wires = ProcessGroup(monkeypatch)
    weights.refusal = (400, {"message": "no such folder"})
    for index in (0, 1):
        wires.main = index == 0
        with pytest.raises(EngineError, match="no such folder"):
            WeightUpdater(DiskSync(tmp_path, patience=0), engine).update(
                Trainer(accelerator=Accelerator(2, index, "MULTI_CPU"))
            )


@pytest.fixture
def engine_thread() -> Any:
    engine = EngineThread(SGLangClient("http://127.0.0.1:9"), owned=True)
    yield engine
    engine.close()


async def loop_and_thread() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    return asyncio.get_running_loop(), threading.current_thread()


def test_every_call_runs_on_the_same_loop(engine_thread: EngineThread) -> None:
    loop, thread = engine_thread.run(loop_and_thread())
    assert engine_thread.run(loop_and_thread()) == (loop, thread)
    assert thread is not threading.current_thread() and thread.daemon


def test_interrupted_wait_cancels_the_call(engine_thread: EngineThread) -> None:
    ended, waiting = threading.Event(), threading.main_thread().ident
    assert waiting is not None

    async def endless() -> None:
        threading.Timer(0.2, signal.pthread_kill, (waiting, signal.SIGINT)).start()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)  # as an abort on the engine takes a moment
            ended.set()

    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a process that runs tests for another ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            engine_thread.run(endless())
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.is_set(), "what was cancelled had no time to end"
    assert engine_thread.run(loop_and_thread())


def test_close_ends_the_thread_and_allows_reuse(engine_thread: EngineThread) -> None:
    _, thread = engine_thread.run(loop_and_thread())
    engine_thread.close()
    thread.join(5)
    assert not thread.is_alive()
    loop, other = engine_thread.run(loop_and_thread())
    assert other is not thread and not loop.is_closed()
    engine_thread.close()
    engine_thread.close()
