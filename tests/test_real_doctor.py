"""On real servers: a healthy one passes, and what is really wrong is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strands_sglang import SGLangClient
from strands_sglang.doctor import Status, diagnose
from strands_sglang.runs import Limits
from support.families import tokenizer
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


async def test_wrong_tokenizer_and_template(tool_policy: LabProcess) -> None:
    report = await diagnose(tool_policy.url, tokenizer("smollm2"), timeout=SECONDS)
    assert report["tokenizer"].status is Status.FAIL and "canonical" in report["tokenizer"].advice
    other = tokenizer("smollm2").chat_template
    report = await diagnose(tool_policy.url, TOKENIZER, only=["template"], chat_template=other, timeout=SECONDS)
    assert report["template"].status is Status.WARN and "chat_template=" in report["template"].advice
    assert await SGLangClient(tool_policy.url).health()  # none of it did the server any harm


async def test_a_paused_server(tool_policy: LabProcess) -> None:
    async with SGLangClient(tool_policy.url) as client:
        await client.control.pause()
        try:
            report = await diagnose(tool_policy.url, TOKENIZER, timeout=SECONDS)
            assert report["sampling"].status in (Status.FAIL, Status.WARN)
            assert "/continue_generation" in report["sampling"].advice, report.text()
            assert report["logprobs"].status is Status.SKIP
        finally:
            await client.control.resume()


async def test_a_context_that_is_too_small(tool_policy: LabProcess) -> None:
    limits = Limits(max_context_tokens=4096)
    report = await diagnose(tool_policy.url, TOKENIZER, only=["context"], limits=limits, timeout=SECONDS)
    assert report["context"].status is Status.FAIL and "--context-length" in report["context"].advice


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


@pytest.fixture(scope="module")
def scattered(routed: Routed, engine_logs: Path) -> Iterator[LabProcess]:
    """A router in front of the same workers that does not keep conversations together."""
    router = route(list(routed.workers), engine_logs, policy="round_robin").start()
    try:
        yield router.wait()
    finally:
        router.kill()


async def test_a_router_without_stickiness(scattered: LabProcess) -> None:
    report = await diagnose(scattered.url, TOKENIZER, only=["router"], timeout=SECONDS)
    assert report["router"].status is Status.WARN and "--policy manual" in report["router"].advice, report.text()


@pytest.fixture(scope="module")
def bfloat16(engine_logs: Path) -> Iterator[LabProcess]:
    """A server with another number format; the last test that takes it kills it."""
    command = [str(LAB / "serve"), "tool-policy", "--dtype", "bfloat16"]
    server = LabProcess("tool-policy-bfloat16", command, engine_logs).start()
    try:
        yield server.wait()
    finally:
        server.kill()


async def test_another_number_format(bfloat16: LabProcess) -> None:
    report = await diagnose(bfloat16.url, TOKENIZER, only=["dtype"], dtype="float32", timeout=SECONDS)
    assert report["dtype"].status is Status.FAIL and "--dtype float32" in report["dtype"].advice, report.text()


async def test_a_dead_worker(tool_policy: LabProcess, bfloat16: LabProcess, engine_logs: Path) -> None:
    router = route([tool_policy, bfloat16], engine_logs).start().wait()
    try:
        bfloat16.kill()
        report = await diagnose(router.url, TOKENIZER, timeout=SECONDS)
        assert report["workers"].status is Status.FAIL and bfloat16.url in report["workers"].found, report.text()
        assert "restart them" in report["workers"].advice
    finally:
        router.kill()


async def test_no_engine() -> None:
    report = await diagnose("http://127.0.0.1:9", TOKENIZER, timeout=SECONDS)
    assert report["server"].status is Status.FAIL and report.exit_code == 1
