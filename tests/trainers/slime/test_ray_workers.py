"""slime's episodes on real Ray workers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from strands_sglang import SGLangModel
from strands_sglang.ledger.seal import seal
from strands_sglang.proof import verify
from strands_sglang.proof.finding import Verdict
from strands_sglang.runs import Episode, Task
from strands_sglang.trainers.slime import slime_rollout
from strands_sglang.trainers.slime.samples import METADATA_KEY
from support.local_ray import ray_here
from support.rollout.scripts import PromptEngine, steps
from support.trainers.slime_mirror import Sample, State, Status
from support.trainers.slime_validation import validate_sample
from trainers.slime.test_generate import SAMPLING, arguments, sample


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    with ray_here():
        yield


@tool
async def step(number: int) -> str:
    """Take a step."""
    await asyncio.sleep(0.1)
    return f"step {number}"


def build(task: Task, model: SGLangModel) -> Any:
    return Agent(model=model, tools=[step], callback_handler=None, conversation_manager=NullConversationManager())


def score(episode: Episode) -> float:
    return float(os.getpid())


async def test_episodes_on_ray_workers(tmp_path: Path, state: State) -> None:
    engine = PromptEngine(steps(5))
    generate = slime_rollout(
        build, reward=score, client=engine, tokenizer=engine.tokenizer, workers=2, directory=tmp_path
    )
    whole = await generate(arguments(), sample(0), dict(SAMPLING))
    assert whole.status is Status.COMPLETED and whole.reward != os.getpid() and not engine.calls
    validate_sample(whole)

    given: list[Any] = [sample(number) for number in range(1, 9)]
    running = [asyncio.ensure_future(generate(arguments(), one, dict(SAMPLING))) for one in given]
    await asyncio.sleep(0.35)
    state.aborted = True
    done = await asyncio.wait_for(asyncio.gather(*running), 20)
    aborted = [one for one in done if one.status is Status.ABORTED]
    assert aborted and all(one.metadata[METADATA_KEY]["record"] for one in aborted)
    assert any(one.response for one in aborted)
    state.aborted = False
    for one in await asyncio.gather(*(generate(arguments(), one, dict(SAMPLING)) for one in aborted)):
        validate_sample(one)
        assert isinstance(one, Sample) and one.status is Status.COMPLETED
        assert (one.tokens, one.loss_mask) == (whole.tokens, whole.loss_mask)
        assert "record" not in one.metadata[METADATA_KEY]
    folder = next(tmp_path.iterdir())
    seal(folder)
    certificate = verify(folder)
    assert certificate.verdict in (Verdict.PROVED, Verdict.UNFINISHED), certificate.text()
