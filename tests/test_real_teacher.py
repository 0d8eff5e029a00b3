"""A teacher on a real engine: ids matched, logprobs equal to a prefill, the student itself as teacher, SIGKILL."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from strands_sglang import SGLangClient
from strands_sglang.ledger.reader import Ledger
from strands_sglang.proof.verify import verify
from strands_sglang.runs import Limits, rollout, teacher_logprobs
from strands_sglang.tokens import Origin
from strands_sglang.trainers.rows import branches_of
from strands_sglang.trainers.slime.samples import samples_of
from support.engine_probes import prefill_logprobs
from support.lab_servers import LabProcess, Routed
from support.rollout_agent import SAMPLING, TOKENIZER, TURNS, build, score, tasks
from support.trainers.slime_mirror import Sample

pytestmark = [pytest.mark.engine]

EPISODES = 100


@pytest.fixture(scope="module")
def recorded(tool_policy: LabProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("teacher") / "run"
    asyncio.run(
        rollout(
            build, tasks(EPISODES, seed=9_000), tokenizer=TOKENIZER, base_url=tool_policy.url, reward=score,
            concurrency=32, limits=Limits(max_turns=TURNS), directory=directory, sampling_params=SAMPLING,
        )
    )  # fmt: skip
    return directory


async def test_a_hundred_episodes(recorded: Path, noncanonical: LabProcess) -> None:
    report = await teacher_logprobs(recorded, noncanonical.url, top=8)
    print(f"\n{report.text()}")
    assert report.episodes == EPISODES and not report.failures
    certificate = verify(recorded)
    assert certificate.proved and certificate.teacher_tokens == report.tokens == certificate.tokens.sampled
    flats = [branch.trajectory for branch in branches_of(recorded)]
    differences = []
    for flat in flats[:20]:
        assert flat.teacher is not None
        first = flat.prompt_length
        again = np.array(await prefill_logprobs(noncanonical.url, flat.token_ids.tolist(), first))
        sampled = (flat.origins == Origin.SAMPLED)[first:]
        differences.append(np.abs(np.asarray(flat.teacher.logprobs)[first:] - again)[sampled].max())
        rows = flat.teacher.top_logprob_rows[flat.origins == Origin.SAMPLED]
        assert (np.diff(rows, axis=1) <= 0).all()
    assert max(differences) < 1e-4


async def test_the_student_as_its_own_teacher(recorded: Path, tool_policy: LabProcess) -> None:
    report = await teacher_logprobs(recorded, tool_policy.url, again=True)
    assert report.episodes == EPISODES
    for branch in branches_of(recorded):
        flat = branch.trajectory
        assert flat.teacher is not None
        assert np.abs(np.asarray(flat.teacher.logprobs) - flat.logprobs).max() < 1e-4


async def test_a_killed_command_resumes(recorded: Path, noncanonical: LabProcess) -> None:
    before = sum(len(record.events) for record in Ledger(recorded).episodes())
    command = [sys.executable, "-m", "strands_sglang.cli", "teacher", str(recorded), noncanonical.url]
    command += ["--top", "16", "--at-once", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while sum(len(record.events) for record in Ledger(recorded).episodes()) < before + 5:
        assert time.monotonic() < until and process.poll() is None
        await asyncio.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    report = await teacher_logprobs(recorded, noncanonical.url, top=16)
    assert report.known >= 5 and report.known + report.episodes == EPISODES and not report.failures
    assert verify(recorded).proved, verify(recorded).text()


@pytest.mark.own_servers
async def test_through_a_router(recorded: Path, routed: Routed) -> None:
    """sglang-router drops the wish for flat answers: the likeliest ids come as lists."""
    ids = [record.id for record in Ledger(recorded).episodes()][:10]
    async with SGLangClient(routed.router.url) as client:
        report = await teacher_logprobs(recorded, client, top=4, episodes=ids, again=True)
    assert report.episodes == 10 and not report.failures, report.text()


async def test_slime_samples(tool_policy: LabProcess, noncanonical: LabProcess) -> None:
    run = await rollout(
        build, tasks(8, seed=9_500), tokenizer=TOKENIZER, base_url=tool_policy.url, reward=score,
        limits=Limits(max_turns=TURNS), sampling_params=SAMPLING,
    )  # fmt: skip
    await teacher_logprobs(run, noncanonical.url)
    for episode in run:
        sample = samples_of(Sample(), episode, decode=lambda ids: "", needs_teacher=True)[0]
        assert sample.teacher_log_probs is not None and len(sample.teacher_log_probs) == sample.response_length
        assert sum(value != 0.0 for value in sample.teacher_log_probs) >= sum(sample.loss_mask or [])
        assert not sample.remove_sample
