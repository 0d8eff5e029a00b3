"""slime's own `generate_rollout` with LoRA adapters: each batch's tasks name the adapter of their step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strands_sglang import SGLangClient
from strands_sglang.proof.finding import Verdict
from strands_sglang.proof.rescore import RescoreVerdict, rescore
from strands_sglang.proof.verify import verify
from strands_sglang.runs import Task
from strands_sglang.trainers.slime import slime_rollout
from support.adapters import write_adapter
from support.lab_servers import LabProcess
from support.rollout_agent import build, score
from support.trainers.slime_checks import check_batch
from support.trainers.slime_world import SlimeWorld

pytestmark = [pytest.mark.slime, pytest.mark.engine]


@pytest.fixture
def lora_world(lora: LabProcess, tmp_path: Path) -> Iterator[SlimeWorld]:
    with SlimeWorld(lora.url, tmp_path, alone=True) as made:
        yield made


def test_each_batch_is_sampled_by_the_adapter_of_its_step(lora_world: SlimeWorld, lora: LabProcess) -> None:
    world, step = lora_world, 0

    def task(sample: Any) -> Task:
        asked = {"questions": sample.metadata["questions"]}
        return Task(sample.prompt, answer=sample.label, data=asked, adapter=f"slime-v{step}")

    async def load(name: str) -> None:
        path = write_adapter(world.folder / name, 10 + step, scale=0.05)
        async with SGLangClient(lora.url) as client:
            assert all(result.ok for result in await client.control.load_adapter(name, str(path)))

    world.configure(slime_rollout(build, reward=score, task=task, directory=world.folder / "run"), groups=2)
    for step in range(2):
        name = f"slime-v{step}"
        asyncio.run(load(name))
        before = len(world.wire.generates)
        batch = world.step(step)
        check_batch(batch, rollouts=8)
        assert {one.asked["lora_path"] for one in world.wire.generates[before:]} == {name}
        assert {version for one in batch.samples for version in one.weight_versions} == {f"default+lora:{name}"}
    (run,) = (world.folder / "run").iterdir()
    certificate = verify(run)
    # Another step may follow, so there is no seal yet; every episode is proved.
    assert certificate.verdict is Verdict.UNFINISHED and "16: 16 proved" in certificate.text(), certificate.text()
    assert set(certificate.versions) == {"default+lora:slime-v0", "default+lora:slime-v1"}
    report = asyncio.run(rescore(run, lora.url))
    assert report.verdict is RescoreVerdict.AGREES and report.largest < 1e-3, report.text()
    swapped = asyncio.run(rescore(run, lora.url, adapters={"slime-v0": "slime-v1"}))
    assert swapped.verdict is RescoreVerdict.DIFFERS
