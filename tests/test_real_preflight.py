"""The look before a run, on real servers: what does not fit is named, and what fits costs next to nothing."""

from __future__ import annotations

import ast
import time
from pathlib import Path
from typing import Any

import pytest

from strands_sglang import SGLangClient
from strands_sglang.chat.tokenization import load_tokenizer
from strands_sglang.engine.request import KNOWN
from strands_sglang.errors import ConfigurationError, EngineUnavailableError
from strands_sglang.runs import Limits, rollout
from strands_sglang.runs import preflight as looks
from strands_sglang.runs.checks.setup import Setup
from strands_sglang.runs.preflight import SECONDS, preflight
from support.families import tokenizer
from support.lab_servers import LabProcess, engine
from support.rollout_agent import TOKENIZER, build, score, tasks

pytestmark = pytest.mark.engine

SAMPLING = {"max_new_tokens": 64, "temperature": 1.0}


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget which servers fitted in earlier tests."""
    monkeypatch.setattr(looks, "_passed", set())


def setup(client: SGLangClient, sampling: dict[str, Any] = SAMPLING, **about: Any) -> Setup:
    own = {"seconds": SECONDS, "tokenizer": load_tokenizer(TOKENIZER)}
    own |= {name: about.pop(name) for name in ("tokenizer", "limits") if name in about}
    return Setup(client, options={"sampling_params": sampling, **about}, **own)


def ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("strands_sglang")]


async def test_what_does_not_fit_is_named(tool_policy: LabProcess, caplog: pytest.LogCaptureFixture) -> None:
    async with SGLangClient(tool_policy.url) as client:
        with pytest.raises(ConfigurationError, match="Use the tokenizer of the served model") as caught:
            await preflight(setup(client, tokenizer=tokenizer("smollm2")))
        assert "canonical" in str(caught.value)  # where the right one is
        with pytest.raises(
            ConfigurationError, match=r"Limits\(max_context_tokens=1024\), or start the server with --context-length"
        ):
            await preflight(setup(client, limits=Limits(max_context_tokens=4096)))
        with pytest.raises(ConfigurationError, match="did you mean 'temperature'"):
            await preflight(setup(client, sampling={"temprature": 1.0}))
        with pytest.raises(ConfigurationError, match="temperature must be a non-negative"):
            await preflight(setup(client, sampling={"temperature": -1}))
        assert not ours(caplog)
        await preflight(setup(client, chat_template=tokenizer("smollm2").chat_template))
        assert "chat template differs from the server's" in caplog.text
    async with SGLangClient(tool_policy.url + "/v1") as client:
        with pytest.raises(ConfigurationError, match=f"base_url='{tool_policy.url}'$"):
            await preflight(setup(client))
    assert (await SGLangClient(tool_policy.url).health()) is True  # none of it did the server any harm


async def test_a_paused_server(tool_policy: LabProcess) -> None:
    async with SGLangClient(tool_policy.url) as client:
        await client.control.pause()
        try:
            with pytest.raises(EngineUnavailableError, match="/continue_generation"):
                for _ in range(10):  # on a machine so busy that the server's own words come late, it may only be busy
                    await preflight(setup(client))
        finally:
            await client.control.resume()
        await preflight(setup(client))


async def test_the_cost_where_all_is_well(
    tool_policy: LabProcess, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    async with SGLangClient(tool_policy.url) as client:
        began = time.monotonic()
        await preflight(setup(client))
        once = time.monotonic() - began
        given: dict[str, Any] = {"tokenizer": TOKENIZER, "client": client, "reward": score, "sampling_params": SAMPLING}
        run = await rollout(build, tasks(4, seed=77), limits=Limits(max_turns=6), **given)
    assert len(run.episodes) == 4 and not any("server=" in line for line in ours(caplog))
    with capsys.disabled():
        print(f"\n  the look before a run: {1000 * once:.0f} ms")


async def test_other_models_fit_their_own_tokenizers(
    smollm2: LabProcess, tiny_qwen3: LabProcess, caplog: pytest.LogCaptureFixture
) -> None:
    for server in (smollm2, tiny_qwen3):
        async with SGLangClient(server.url) as client:
            own = (await client.model_info() or {})["tokenizer_path"]
            await preflight(setup(client, tokenizer=load_tokenizer(own)))
    assert not any("chat template" in line or "tokenizer" in line for line in ours(caplog))


def test_the_names_are_those_of_the_engine() -> None:
    found = engine.environment()
    assert found is not None
    (source,) = Path(found).glob("lib/python3*/site-packages/sglang/srt/sampling/sampling_params.py")
    fields = {
        item.target.id
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.ClassDef) and node.name == "SamplingParams"
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    internal = {name for name in fields if name.endswith(("_strs", "_max_len", "_full_assistant"))} | {"is_normalized"}
    newer = {"watermark"} if engine.engine_version() != "0.5.21" else set()
    assert fields - internal == KNOWN | newer, "a name of a newer engine is passed with sampling_names"
