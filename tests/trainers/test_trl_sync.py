"""Weights into the engine: in which order, under which names, what is left on disk, and what is an error."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pytest

from scripted import ScriptedServer, Wire
from strands_sglang import SGLangClient
from strands_sglang.errors import ConfigurationError, EngineError
from strands_sglang.trainers import trl_disk
from strands_sglang.trainers.trl_disk import DiskSync
from strands_sglang.trainers.trl_link import EngineLink
from strands_sglang.trainers.trl_sync import Syncer
from trainers.trl_doubles import Accelerator, Trainer, Weights


@pytest.fixture
def weights() -> Weights:
    return Weights()


@pytest.fixture
def link(weights: Weights) -> Any:
    with weights.server() as server:
        link = EngineLink(SGLangClient(server.url, max_retries=0), ours=True)
        link.server = server  # type: ignore[attr-defined]
        yield link
        link.close()


def test_every_step_is_loaded_once_under_its_own_name(weights: Weights, link: Any, tmp_path: Path) -> None:
    trainer, syncer = Trainer(), Syncer(DiskSync(tmp_path, patience=0), link)
    for step in (0, 0, 1, 1, 2):
        trainer.state.global_step = step
        before = len(weights.updates)
        seconds = syncer.update(trainer)
        assert (seconds is None) == (len(weights.updates) == before), "what took no update took time"
        assert weights.version == syncer.version == str(step)
    assert [update["weight_version"] for update in weights.updates] == ["0", "1", "2"]
    assert weights.files == [["model.safetensors"]] * 3
    assert [one.name for one in tmp_path.iterdir()] == ["weights-2"], "older weights are left on disk"
    syncer.close()
    assert not list(tmp_path.iterdir())


def test_another_trainer_at_the_same_step_has_other_weights(weights: Weights, link: Any, tmp_path: Path) -> None:
    syncer, first, second = Syncer(DiskSync(tmp_path, patience=0), link), Trainer(), Trainer()
    assert syncer.update(first) is not None and syncer.update(first) is None
    assert syncer.update(second) is not None and len(weights.updates) == 2


def test_paused_and_flushed_before_weights_change(link: Any, tmp_path: Path) -> None:
    Syncer(DiskSync(tmp_path, patience=0), link).update(Trainer())
    told = [path for path in link.server.paths() if path != "/model_info" and not path.startswith("/workers")]
    assert told == ["/pause_generation", "/flush_cache", "/update_weights_from_disk", "/continue_generation"]


def test_a_folder_has_its_name_only_when_it_is_whole(link: Any, tmp_path: Path) -> None:
    trainer, seen = Trainer(), list[str]()
    trainer.model.during = lambda path: seen.append(path.name)
    (tmp_path / "weights-0").mkdir()
    (tmp_path / "weights-0" / "half.safetensors").touch()
    Syncer(DiskSync(tmp_path, patience=0), link).update(trainer)
    assert seen == [".partial-0"]
    assert [one.name for one in (tmp_path / "weights-0").iterdir()] == ["model.safetensors"]


def test_without_a_folder_of_ones_own_nothing_stays(weights: Weights, link: Any) -> None:
    syncer = Syncer("disk", link)
    syncer.update(Trainer())
    folder = Path(weights.updates[0]["model_path"])
    assert folder.is_dir()
    syncer.close()
    assert not folder.exists() and not folder.parent.exists()


def test_a_name_the_engine_bears_already_is_not_used_again(weights: Weights, link: Any, tmp_path: Path) -> None:
    weights.version = "0"
    syncer = Syncer(DiskSync(tmp_path, patience=0), link)
    syncer.update(Trainer())
    assert syncer.version == weights.version != "0" and weights.version.startswith("0-")


def test_an_update_that_changed_nothing_is_an_error(weights: Weights, link: Any, tmp_path: Path) -> None:
    weights.deaf = True
    syncer = Syncer(DiskSync(tmp_path, patience=0), link)
    with pytest.raises(EngineError, match="told to load the weights '0', but says that it samples from 'default'"):
        syncer.update(Trainer())
    weights.deaf = False
    assert syncer.update(Trainer()) is not None, "a failed update counts as done"


@pytest.mark.parametrize("status", [200, 400])
def test_a_worker_that_refuses_is_an_error_with_its_words(
    weights: Weights, link: Any, tmp_path: Path, status: int
) -> None:
    weights.refusal = (status, {"success": False, "message": "no such folder"})
    with pytest.raises(EngineError, match=r"1 of 1 workers did not load.*no such folder"):
        Syncer(DiskSync(tmp_path), link).update(Trainer())
    assert "/continue_generation" in link.server.paths(), "the engine stays paused"


def test_an_engine_that_comes_back_in_time_is_waited_for(
    weights: Weights, link: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trl_disk, "_PAUSE", 0.01)
    weights.refusal, weights.refusals = (503, {"message": "starting"}), 2
    syncer, trainer = Syncer(DiskSync(tmp_path), link), Trainer()
    assert syncer.update(trainer) is not None and weights.version == "0"
    assert len(weights.updates) == 3 and len(trainer.model.saved) == 1


def test_of_several_workers_one_may_be_gone(weights: Weights, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def listed(wire: Wire) -> None:
        await wire.read_body()
        urls = [server.url, "http://127.0.0.1:9"]
        body = {"workers": [{"url": url, "is_healthy": True} for url in urls]}
        await wire.reply(orjson.dumps(body), 200 if wire.received.path == "/workers" else 404)

    with weights.server() as server, ScriptedServer(listed) as router:
        link = EngineLink(SGLangClient(router.url), ours=True)
        syncer = Syncer(DiskSync(tmp_path), link)
        assert syncer.update(Trainer()) is not None and weights.version == "0"
        assert "gone=<1>, of=<2>" in caplog.text
        weights.refusal = (400, {"message": "no such folder"})
        with pytest.raises(EngineError, match=r"2 of 2 workers did not load .*no such folder"):
            syncer.update(Trainer())
        link.close()


def test_an_engine_that_is_gone_is_an_error(tmp_path: Path) -> None:
    gone = EngineLink(SGLangClient("http://127.0.0.1:9", max_retries=0), ours=True)
    with pytest.raises(EngineError):
        Syncer(DiskSync(tmp_path, patience=0), gone).update(Trainer())
    gone.close()


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED"])
def test_a_model_in_pieces_is_refused(link: Any, tmp_path: Path, kind: str) -> None:
    trainer = Trainer(accelerator=Accelerator(kind=kind))
    with pytest.raises(ConfigurationError, match=f"in pieces .{kind}.*sync=, called on every process"):
        Syncer(DiskSync(tmp_path, patience=0), link).update(trainer)
    assert not trainer.model.saved


def test_a_function_of_ones_own_is_held_to_its_word(weights: Weights, link: Any) -> None:
    asked: list[str] = []

    def honest(trainer: Any, version: str, link: EngineLink) -> None:
        asked.append(version)
        weights.version = version

    syncer = Syncer(honest, link)
    trainer = Trainer(accelerator=Accelerator(kind="FSDP"))
    assert syncer.update(trainer) is not None and syncer.version == "0" and asked == ["0"]
    with pytest.raises(EngineError, match="says that it samples from"):
        Syncer(lambda trainer, version, link: None, link).update(trainer)


def test_none_asks_nobody(link: Any) -> None:
    syncer = Syncer("none", link)
    assert syncer.update(Trainer()) is None and syncer.version is None
    assert not link.server.received


def test_what_is_no_way_to_sync_is_refused(link: Any) -> None:
    with pytest.raises(ConfigurationError, match="'disk', 'none'"):
        Syncer("nccl", link)


def test_a_client_without_control_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="sync='none'"):
        Syncer("disk", EngineLink(object()))  # type: ignore[arg-type]


class Wires:
    """What two processes say to each other, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[list[Any]] = []
        self.heard = 0
        self.main = True
        utils = ModuleType("accelerate.utils")
        utils.broadcast_object_list = self._broadcast  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "accelerate", ModuleType("accelerate"))
        monkeypatch.setitem(sys.modules, "accelerate.utils", utils)

    def _broadcast(self, values: list[Any], from_process: int) -> None:
        assert from_process == 0
        if self.main:
            self.said.append(list(values))
        else:
            values[:] = self.said[self.heard]
            self.heard += 1


def test_of_several_processes_the_first_updates_and_all_know(
    weights: Weights, link: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wires = Wires(monkeypatch)
    first, second = Syncer(DiskSync(tmp_path, patience=0), link), Syncer(DiskSync(tmp_path, patience=0), link)
    one = Trainer(accelerator=Accelerator(2, 0, "MULTI_CPU"))
    two = Trainer(accelerator=Accelerator(2, 1, "MULTI_CPU"))
    first.update(one)
    wires.main = False
    second.update(two)
    assert wires.heard == len(wires.said) == 2
    assert first.version == second.version == "0" and len(weights.updates) == 1 and not two.model.saved


def test_what_fails_on_the_first_fails_on_all(
    weights: Weights, link: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wires = Wires(monkeypatch)
    weights.refusal = (400, {"message": "no such folder"})
    for index in (0, 1):
        wires.main = index == 0
        with pytest.raises(EngineError, match="no such folder"):
            Syncer(DiskSync(tmp_path, patience=0), link).update(Trainer(accelerator=Accelerator(2, index, "MULTI_CPU")))
