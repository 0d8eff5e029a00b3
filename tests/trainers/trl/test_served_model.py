"""Weights are only sent to a server that serves the trained model."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strands_sglang import SGLangClient
from strands_sglang.engine import retry
from strands_sglang.errors import ConfigurationError, EngineUnreachableError
from strands_sglang.trainers.trl import trl_rollout
from strands_sglang.trainers.trl.engine_thread import EngineThread
from strands_sglang.trainers.trl.rollout import check_served_model
from support.families import tokenizer
from support.scripted_sglang import Served
from support.trainers.trl_doubles import Trainer


@pytest.fixture(autouse=True)
def clear_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_histories", {})


def trainer_of(name: str | None) -> Trainer:
    trainer = Trainer()
    trainer.model.config = SimpleNamespace(_name_or_path=name)  # type: ignore[attr-defined]
    return trainer


@pytest.mark.parametrize(
    ("served", "trained", "fits"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B", True),
        ("/models/qwen3-8b/", "Qwen/Qwen3-8B", True),
        ("/hub/models--Qwen--Qwen3-8B/snapshots/0123abc", "/models/Qwen3-8B", True),
        ("/dev/shm/weights/weights-17", "Qwen/Qwen3-8B", True),  # an earlier training's
        ("Qwen/Qwen3-8B", None, True),  # unknown
        ("Qwen/Qwen3-4B", "Qwen/Qwen3-8B", False),
        ("/lab/canonical", "/lab/noncanonical", False),
    ],
)
def test_served_model_must_be_the_trained_one(served: str, trained: str | None, fits: bool) -> None:
    with Served(tokenizer("smollm2"), model_path=served).server() as server:
        engine = EngineThread(SGLangClient(server.url), owned=True)
        try:
            if fits:
                check_served_model(engine, trainer_of(trained))
            else:
                with pytest.raises(ConfigurationError, match=f"the trainer's model {trained}, got {served}"):
                    check_served_model(engine, trainer_of(trained))
        finally:
            engine.close()


def test_wrong_server_gets_no_weights(tmp_path: Path) -> None:
    served = Served(tokenizer("smollm2"), model_path="somebody/elses")
    trainer = trainer_of("our/model")
    prompts: list[Any] = [[{"role": "user", "content": "hello"}]]
    with served.server() as server:
        func = trl_rollout(lambda task, model: None, base_url=server.url, directory=tmp_path)
        with pytest.raises(ConfigurationError, match=r"RunOptions\(preflight=False\) to use this server"):
            func(prompts, trainer)
        func.close()
    assert not trainer.model.saved and not {"/update_weights_from_disk", "/generate"} & set(served.asked)


def test_wrong_address_raises_before_the_first_update() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        client = SGLangClient(f"http://127.0.0.1:{held.getsockname()[1]}", first_contact=0.3)
        func = trl_rollout(lambda task, model: None, client=client)
        with pytest.raises(EngineUnreachableError, match="is base_url right"):  # and not after ten minutes
            func([[{"role": "user", "content": "hello"}]], trainer_of("our/model"))
        func.close()
