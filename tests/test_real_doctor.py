"""On real servers: a healthy one passes, and what is really wrong is found."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strands_sglang import SGLangClient
from strands_sglang.doctor import Status, diagnose
from strands_sglang.runs import Limits
from support.lab_servers import LAB, LabProcess, Routed, route
from support.rollout_agent import SAMPLING, TOKENIZER, build

pytestmark = [pytest.mark.engine, pytest.mark.own_servers]

CHECKPOINT = str(LAB / "tool_policy" / "canonical")
SECONDS = 60.0
"""A busy machine may take long for one check."""
TASK = {"prompt": "Compute 615 * 17.", "questions": ["Compute 615 * 17."]}


async def test_a_healthy_server_passes(tool_policy: LabProcess) -> None:
    report = await diagnose(
        tool_policy.url, TOKENIZER, agent=build, task=TASK, timeout=SECONDS, sampling_params=SAMPLING
    )
    bad = [check for check in report.checks if check.status in (Status.WARN, Status.FAIL)]
    # The lab's tool policy has no tools in its prompt: its template writes calls only.
    assert {check.name for check in bad} <= {"sandbox", "soundness"}, report.text()
    for name in ("server", "versions", "tokenizer", "template", "logprobs", "prefix cache", "stop tokens", "clock"):
        assert report[name].status is Status.PASS, report.text()
    assert report["abort"].status in (Status.PASS, Status.SKIP), report.text()
    assert await SGLangClient(tool_policy.url).health()


async def test_too_small_a_context_and_another_number_format(tool_policy: LabProcess) -> None:
    limits = Limits(max_context_tokens=4096)
    report = await diagnose(
        tool_policy.url, TOKENIZER, only=["context", "dtype"], limits=limits, dtype="bfloat16", timeout=SECONDS
    )
    assert report["context"].status is Status.FAIL and "--context-length" in report["context"].advice
    assert report["dtype"].status is Status.FAIL and "--dtype bfloat16" in report["dtype"].advice, report.text()


async def test_workers_with_different_weights(routed: Routed) -> None:
    await _name_weights(routed, "before", "after")
    report = await diagnose(routed.url, TOKENIZER, only=["weight version"], timeout=SECONDS)
    assert report["weight version"].status is Status.FAIL, report.text()
    assert "after, before" in report["weight version"].found and "swap_weights" in report["weight version"].advice


async def test_a_router_that_keeps_conversations_together(routed: Routed) -> None:
    await _name_weights(routed, "after", "after")  # other tests of the run leave names of their own
    report = await diagnose(routed.url, TOKENIZER, timeout=SECONDS)
    for name in ("server", "workers", "router", "prefix cache", "weight version"):
        assert report[name].status is Status.PASS, report.text()


async def _name_weights(routed: Routed, *versions: str) -> None:
    for worker, version in zip(routed.workers, versions, strict=True):
        async with SGLangClient(worker.url) as client:
            (result,) = await client.control.swap_weights(CHECKPOINT, version=version)
            assert result.ok, result.message


async def test_a_router_without_stickiness(routed: Routed, engine_logs: Path) -> None:
    router = route(list(routed.workers), engine_logs, policy="round_robin").start()
    try:
        await asyncio.to_thread(router.wait)
        report = await diagnose(router.url, TOKENIZER, only=["router"], timeout=SECONDS)
    finally:
        router.kill()
    assert report["router"].status is Status.WARN and "--policy manual" in report["router"].advice, report.text()
