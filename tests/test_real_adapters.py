"""LoRA adapters on the real engine: several at once, on record, and recomputed."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strands_sglang import SGLangClient
from strands_sglang.engine import ControlResult
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.reader import Ledger
from strands_sglang.proof.rescore import NotCompared, RescoreVerdict, rescore
from strands_sglang.proof.verify import verify
from strands_sglang.runs import EndReason, Limits, Task, rollout
from strands_sglang.runs.offline.replay import ReplayVerdict, replay
from support.adapters import write_adapter
from support.examples import size
from support.lab_servers import LabProcess
from support.rollout_agent import SAMPLING, TOKENIZER, TURNS, build, score, tasks

pytestmark = [pytest.mark.engine, pytest.mark.own_servers]

NAMES = ("policy-v1", "policy-v2", "policy-v3")
TASKS = size(2, 8)  # of each adapter, with two samples: 12 episodes, or 48


async def post(url: str, path: str, body: dict[str, Any]) -> ControlResult:
    """Send a control call as another process would, so that nothing here knows of it."""
    async with SGLangClient(url) as client:
        (result,) = await client.control._send(path, body)
    return result


@pytest.fixture(scope="module")
def recorded(lora: LabProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose tasks name three adapters; the same questions for each, and for the base weights."""
    folder = tmp_path_factory.mktemp("adapters")

    async def record() -> None:
        async with SGLangClient(lora.url) as client:
            for number, name in enumerate(NAMES):
                path = write_adapter(folder / name, number, scale=0.03 * (number + 1))
                assert all(result.ok for result in await client.control.load_adapter(name, str(path)))
            asked = [Task.of(one) for one in tasks(TASKS, seed=4_000)]
            given = [replace(one, id=f"{one.id}-{name}", adapter=name) for name in (*NAMES, None) for one in asked]
            run = await rollout(
                build,
                given,
                tokenizer=TOKENIZER,
                client=client,
                reward=score,
                samples_per_task=2,
                limits=Limits(max_turns=TURNS),
                directory=folder / "run",
                sampling_params=SAMPLING,
            )
            assert not any(one.end_reason.failed for group in run.groups for one in group.episodes)

    asyncio.run(record())
    return folder / "run"


def test_every_turn_has_its_adapter_on_record(recorded: Path) -> None:
    certificate = verify(recorded)
    assert certificate.proved, certificate.text()
    assert set(certificate.versions) == {"default", *(f"default+lora:{name}" for name in NAMES)}
    assert "adapters     as they were asked for" in certificate.text()
    for record in Ledger(recorded).episodes():
        assert record.begin is not None
        asked = record.begin.data["task"].get("adapter")
        assert {call.data["detail"].get("adapter") for call in record.calls} == {asked}
        for turn in record.tree().turns:
            assert {span.version for span in turn.versions} == {"default" if asked is None else f"default+lora:{asked}"}
    assert len(Ledger(recorded)) == 8 * TASKS


async def test_rescored_with_the_right_adapter_and_not_with_a_wrong_one(lora: LabProcess, recorded: Path) -> None:
    report = await rescore(recorded, lora.url)
    assert report.verdict is RescoreVerdict.AGREES and report.largest < 1e-3, report.text()
    assert report.tokens == verify(recorded).tokens.trained and not +report.not_compared
    print(f"episodes {report.episodes}, tokens {report.tokens}, largest {report.largest:.2g}")
    for wrong in ({"policy-v2": "policy-v3"}, {"policy-v3": ""}, {"policy-v1": "policy-v2"}):
        other = await rescore(recorded, lora.url, adapters=wrong)
        (name,) = wrong
        assert other.verdict is RescoreVerdict.DIFFERS, other.text()
        assert {score.episode.rsplit("/")[0].endswith(name) for score in other.turns if score.beyond} == {True}
        print(f"{wrong}: largest {other.largest:.2g}")
    missing = await rescore(recorded, lora.url, adapters={"policy-v2": "never-loaded"})
    assert missing.verdict is RescoreVerdict.NOTHING and missing.not_compared[NotCompared.NO_ADAPTER] > 0


async def test_replay_needs_no_adapter(recorded: Path) -> None:
    results = await replay(build, recorded, tokenizer=TOKENIZER, limits=Limits(max_turns=TURNS))
    assert len(results) == 8 * TASKS and {one.verdict for one in results} == {ReplayVerdict.IDENTICAL}


async def test_adapter_swapped_under_its_name_is_noticed(lora: LabProcess, recorded: Path, tmp_path: Path) -> None:
    """Another process loads other weights under a name, even from the same path: no answer of the server tells."""
    path = recorded.parent / "swapped"
    shutil.copytree(recorded.parent / "policy-v1", path)
    assert (await post(lora.url, "load_lora_adapter", {"lora_name": "swapped", "lora_path": str(path)})).ok
    async with SGLangClient(lora.url) as client:
        await rollout(
            build,
            [Task.of(one) for one in tasks(2, seed=4_100)],
            tokenizer=TOKENIZER,
            client=client,
            limits=Limits(max_turns=TURNS),
            directory=tmp_path / "run",
            sampling_params=SAMPLING,
            adapter="swapped",
        )
    assert (await rescore(tmp_path / "run", lora.url)).verdict is RescoreVerdict.AGREES
    assert (await post(lora.url, "unload_lora_adapter", {"lora_name": "swapped"})).ok
    write_adapter(path, seed=99, scale=0.1)
    assert (await post(lora.url, "load_lora_adapter", {"lora_name": "swapped", "lora_path": str(path)})).ok
    report = await rescore(tmp_path / "run", lora.url)
    assert report.verdict is RescoreVerdict.DIFFERS and report.largest > 1e-2, report.text()
    assert verify(tmp_path / "run").versions.keys() == {"default+lora:swapped"}


async def test_unloaded_adapter_is_refused_and_the_episode_not_scored(
    lora: LabProcess, recorded: Path, tmp_path: Path
) -> None:
    """The server would load it again without a word."""
    async with SGLangClient(lora.url) as client:
        path = str(write_adapter(tmp_path / "gone", 7))
        await client.control.load_adapter("gone", path)
        prompt = [5, 6, 7]
        await client.generate(prompt, {"max_new_tokens": 2}, adapter="gone")
        assert all(result.ok for result in await client.control.unload_adapter("gone"))
        run = await rollout(
            build,
            [replace(Task.of(one), adapter="gone") for one in tasks(1, seed=4_200)],
            tokenizer=TOKENIZER,
            client=client,
            reward=score,
            limits=Limits(max_turns=TURNS),
            directory=tmp_path / "run",
            sampling_params=SAMPLING,
        )
        (episode,) = run.groups[0].episodes
        assert episode.end_reason is EndReason.ENGINE_ERROR and episode.reward is None and not len(episode.tree)
        assert "was unloaded by this process" in str(episode.failure)
    (record,) = Ledger(tmp_path / "run").episodes()
    assert [event.kind for event in record.events].count(EventKind.CALL_ERROR) == 1
    # What the server itself does, with a request that the client did not check:
    async with SGLangClient(lora.url) as client:
        body = {"input_ids": prompt, "lora_path": "gone", "sampling_params": {"max_new_tokens": 1}}
        assert (await client.control.answer_to(body))["output_ids"]
