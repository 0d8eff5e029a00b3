"""On the real engine: outages longer than every limit cost no episode, whichever way the engine is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strands_sglang import SGLangClient
from strands_sglang.doctor import Status, diagnose
from strands_sglang.errors import EngineError
from strands_sglang.proof.verify import verify
from strands_sglang.runs import EndReason, Limits, RunResult, rollout
from support.lab_servers import LabProcess, route, serve
from support.rollout_agent import SAMPLING, TOKENIZER, TURNS, build, score, tasks

pytestmark = [pytest.mark.engine, pytest.mark.own_servers]

EPISODES = 32
LIMIT = 20.0
"""Seconds of an episode; it takes about one where nothing happens, and several on a busy machine."""
QUESTIONS = 4
"""Of each task: episodes long enough to be hit."""


@pytest.fixture(scope="module")
def victim(engine_logs: Path) -> Iterator[LabProcess]:
    """A server that may be killed; not started."""
    server = serve("tool-policy", engine_logs)
    yield server
    server.kill()


async def played(url: str, directory: Path, ended: list[str], **settings: Any) -> RunResult:
    async with SGLangClient(url, retry_delay=0.2, max_retry_delay=1.0, max_retries=600) as client:
        return await rollout(
            build,
            tasks(EPISODES, questions=QUESTIONS),
            tokenizer=TOKENIZER,
            client=client,
            directory=directory,
            reward=score,
            concurrency=8,
            limits=Limits(max_turns=TURNS * QUESTIONS, episode_timeout=LIMIT),
            sampling_params=SAMPLING,
            on_episode=lambda episode: ended.append(episode.id),
            **settings,
        )


async def until(ended: list[str], count: int, running: asyncio.Future[Any]) -> None:
    while len(ended) < count:
        assert not running.done(), running.exception() or "it was over before anything happened"
        await asyncio.sleep(0.02)


def check(done: RunResult, directory: Path) -> None:
    reasons = {episode.end_reason for episode in done}
    slow = [(e.id, e.metrics.seconds, e.metrics.engine_seconds) for e in done if e.end_reason is EndReason.TIMEOUT]
    assert not slow
    assert len(done) == EPISODES and not reasons & {EndReason.TIMEOUT, EndReason.ENGINE_ERROR, EndReason.AGENT_ERROR}, (
        reasons
    )
    assert all(episode.reward is not None for episode in done)
    certificate = verify(directory)
    assert certificate.proved, certificate.text()


@pytest.mark.soak
async def test_an_engine_that_is_away_at_first_freezes_and_is_killed(victim: LabProcess, tmp_path: Path) -> None:
    server, ended = victim, list[str]()
    began = time.monotonic()
    with pytest.raises(EngineError, match="base_url"):  # gone from the start: said, and nothing is scored
        await played(server.url, tmp_path / "run", ended)
    assert time.monotonic() - began < 30 and not ended
    server.start()
    await asyncio.to_thread(server.wait)
    running = asyncio.ensure_future(played(server.url, tmp_path / "run", ended))
    try:
        await until(ended, 4, running)
        server.freeze()
        await asyncio.sleep(1.25 * LIMIT)
        server.thaw()
        await until(ended, 12, running)
        server.kill()
        await asyncio.sleep(LIMIT)
        server.start()
        await asyncio.to_thread(server.wait)  # and that takes longer than any episode may
        check(await running, tmp_path / "run")
    finally:
        running.cancel()


async def test_one_of_two_workers_is_gone(
    tool_policy: LabProcess, victim: LabProcess, tmp_path: Path, engine_logs: Path
) -> None:
    """It is the one that the test before left running; the doctor finds it dead."""
    try:
        await asyncio.to_thread(victim.wait)
    except RuntimeError:  # this test alone
        victim.start()
        await asyncio.to_thread(victim.wait)
    router = route([tool_policy, victim], engine_logs).start()
    try:
        await asyncio.to_thread(router.wait)
        ended = list[str]()
        running = asyncio.ensure_future(played(router.url, tmp_path, ended))
        try:
            await until(ended, 4, running)
            victim.kill()
            check(await running, tmp_path)
        finally:
            running.cancel()
        assert ended
        report = await diagnose(router.url, TOKENIZER, timeout=60.0)
        assert report["workers"].status is Status.FAIL and victim.url in report["workers"].found, report.text()
        assert "restart them" in report["workers"].advice
    finally:
        router.kill()
