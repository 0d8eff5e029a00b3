"""Agents of SDKs on a real engine, many at once: every trained token was sampled, with the logprob that it has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from strands_sglang import SGLangClient, rollout
from strands_sglang.gateway import AgentProcess, Network
from strands_sglang.proof import verify
from strands_sglang.proof.rescore import RescoreVerdict, rescore
from strands_sglang.runs import EndReason, Limits
from support.examples import SOAK, size
from support.gateway.sdk_programs import COMMANDS, is_installed
from support.lab_servers import LAB, LabProcess

pytestmark = pytest.mark.engine

TOKENIZER = str(LAB / "tool_policy" / "canonical")
PROGRAM = str(Path(__file__).parents[1] / "support" / "gateway" / "programs" / "calculator.py")
NAMES = ["openai_loop", "anthropic", "openai_agents", "pydantic_chat", "pydantic_responses", "pydantic_messages"]
NAMES += ["strands", "strands_ts"]


@pytest.mark.parametrize(
    "name",
    [name if name in ("openai_loop", "strands_ts") else pytest.param(name, marks=pytest.mark.soak) for name in NAMES],
)
async def test_each_trained_token_was_sampled(name: str, tool_policy: LabProcess, tmp_path: Path) -> None:
    if not is_installed(name):
        assert "CI" not in os.environ, "run scripts/agents --install sdks"
        pytest.skip("not installed: scripts/agents --install sdks")

    def build(task: Any, model: Any) -> AgentProcess:
        env = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "OTEL_SDK_DISABLED": "true", "PYTHONPATH": ""}
        return AgentProcess([*COMMANDS[name], task.prompt], env=env, network=Network.GATEWAY_ONLY)

    run = await rollout(
        build,
        [f"Compute {600 + number} * 17, then - 88." for number in range(size(4, 32))],
        tokenizer=TOKENIZER,
        client=SGLangClient(tool_policy.url),
        limits=Limits(max_turns=6, max_new_tokens=64),
        directory=tmp_path,
        audit_share=1.0,
    )
    ends = {episode.end_reason for episode in run}
    assert ends <= {EndReason.ANSWERED, EndReason.TURN_LIMIT, EndReason.AGENT_ERROR}, ends
    assert sum(episode.end_reason is EndReason.ANSWERED for episode in run) > len(run) / 2
    assert {turn.join.value for episode in run for turn in episode.tree} <= {"root", "proved", "kept"}
    assert not sum(episode.metrics.audit_differences for episode in run)
    certificate = verify(tmp_path)
    assert certificate.proved, certificate.text()
    sampled = sum(len(turn.sampled) for episode in run for turn in episode.tree if not turn.rejected)
    assert certificate.tokens.trained == sampled
    report = await rescore(tmp_path, tool_policy.url, tolerance=1e-3, all_versions=True)
    assert report.verdict is RescoreVerdict.AGREES, report.text()


KILLED = """
import asyncio, os, signal, sys
from strands_sglang import Limits, SGLangClient, rollout
from strands_sglang.gateway import AgentProcess
url, tokenizer, directory, program, left = sys.argv[1:]
left = int(left)

def turn(counts):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

class Watched(SGLangClient):
    async def generate(self, *given, **more):
        made = await super().generate(*given, **more)
        turn(None)
        return made

def build(task, model):
    return AgentProcess([sys.executable, program, task.prompt], env={"PYTHONPATH": ""})

run = asyncio.run(rollout(build, [f"Compute {600 + n} * 17, then - 88." for n in range(4)], tokenizer=tokenizer,
                          client=Watched(url), directory=directory, limits=Limits(max_turns=6, max_new_tokens=64),
                          sampling_params={"temperature": 0.0}))
print(sum(len(episode.tree) for episode in run))
"""


@pytest.mark.parametrize("every", range(1, 8) if SOAK else [5])
def test_a_run_that_is_killed_again_and_again_is_resumed(every: int, tool_policy: LabProcess, tmp_path: Path) -> None:
    """Agents of a killed run end with it; the next run answers them from the record."""
    command = [sys.executable, "-c", KILLED, tool_policy.url, TOKENIZER, str(tmp_path / "run"), PROGRAM]
    for _ in range(40):
        done = subprocess.run([*command, str(every)], capture_output=True, text=True, timeout=180)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    whole = subprocess.run(
        [*command[:5], str(tmp_path / "whole"), PROGRAM, "0"], capture_output=True, text=True, timeout=180
    )
    assert done.stdout == whole.stdout, (done.stderr, whole.stderr)
    certificate, other = verify(tmp_path / "run"), verify(tmp_path / "whole")
    assert certificate.proved and other.proved
    assert certificate.tokens.trained == other.tokens.trained
    left = subprocess.run(["pgrep", "-f", PROGRAM], capture_output=True, text=True)
    assert not left.stdout
