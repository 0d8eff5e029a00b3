"""What an engine can do is what it declares, whatever its class."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strands import Agent

import strands_sglang
from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.engine import (
    Capability,
    FinishReason,
    Generation,
    Prefill,
    PromptImage,
    TokenIds,
    can,
    is_server,
    scores,
    streams,
)
from strands_sglang.errors import ConfigurationError, EngineUnreachableError
from strands_sglang.runs import Task, rollout, teacher_logprobs
from support.families import tokenizer
from support.rollout.scripts import PromptEngine, assert_proved, run

PACKAGE = Path(strands_sglang.__file__).parent


def build(task: Task, model: SGLangModel) -> Agent:
    return Agent(model=model, callback_handler=None)


def answers(prompt: str, before: int) -> str:
    return "the end"


class Least:
    """Has `generate` alone."""

    async def generate(self, input_ids: TokenIds, sampling_params: Any = None, **_: Any) -> Generation:
        return Generation(array("i", [1]), array("d", [-0.5]), FinishReason.STOP)


class Wrapped:
    """A proxy of a client, which is not an `SGLangClient`."""

    def __init__(self, client: SGLangClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class Scoring(PromptEngine):
    """Gives every token the logprob -0.25."""

    capabilities = frozenset({Capability.SCORING})

    async def score(
        self, input_ids: TokenIds, start: int, *, images: Sequence[PromptImage] = (), top: int = 0
    ) -> Prefill:
        rows = len(input_ids) - start
        return Prefill(np.full(rows, -0.25), np.zeros((rows, 0), np.int32), np.zeros((rows, 0)))


def test_client_has_every_capability_and_a_plain_engine_has_none() -> None:
    client = SGLangClient()
    assert all(can(client, one) for one in Capability) and is_server(client) and streams(client) and scores(client)
    assert not any(can(Least(), one) for one in Capability) and not is_server(Least())


def test_proxy_of_a_client_is_treated_as_the_client() -> None:
    proxy: Any = Wrapped(SGLangClient())
    with pytest.raises(ConfigurationError, match="no sampling parameter 'temprature'"):
        SGLangModel(tokenizer=tokenizer("qwen2.5"), client=proxy, sampling_params={"temprature": 1})


async def test_proxy_of_a_client_is_checked_before_a_run() -> None:
    proxy: Any = Wrapped(SGLangClient("http://127.0.0.1:9", max_retries=0, first_contact=0.1))
    with pytest.raises(EngineUnreachableError, match="nothing ever answered"):
        await rollout(build, ["go"], client=proxy, tokenizer=tokenizer("qwen2.5"))


async def test_teacher_is_any_engine_that_scores(tmp_path: Path) -> None:
    await run(build, [Task("go")], PromptEngine(answers), tmp_path / "run")
    report = await teacher_logprobs(tmp_path / "run", Scoring(answers))
    assert report.model == "Scoring" and report.url == "" and report.mean_logprob == -0.25
    assert_proved(tmp_path / "run")
    with pytest.raises(ConfigurationError, match="must score given tokens"):
        await teacher_logprobs(tmp_path / "run", Least())  # type: ignore[arg-type]


def test_no_module_above_asks_for_the_class() -> None:
    found = [path for path in PACKAGE.rglob("*.py") if re.search(r"isinstance\([^)]*SGLangClient", path.read_text())]
    assert not [path for path in found if path.parent.name != "engine"]
