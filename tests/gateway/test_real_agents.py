"""Agents of SDKs on a real engine, many at once: every trained token was sampled, with the logprob that it has."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from strands_sglang import SGLangClient, SGLangModel, replay, rollout
from strands_sglang.gateway import AgentProcess, Gateway, Network
from strands_sglang.proof import verify
from strands_sglang.proof.rescore import RescoreVerdict, rescore
from strands_sglang.provider.episode import EpisodeTokens
from strands_sglang.runs import EndReason, Limits, ReplayVerdict
from support.examples import SOAK, size
from support.families import tokenizer
from support.gateway.agents import WireAgent
from support.gateway.agents_script import agents_script
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
    over = [episode for episode in run if not episode.end_reason.failed]  # an agent may fail at what the policy writes
    sampled = sum(len(turn.sampled) for episode in over for turn in episode.tree if not turn.rejected)
    assert certificate.tokens.trained == sampled
    report = await rescore(tmp_path, tool_policy.url, tolerance=1e-3, all_versions=True)
    assert report.verdict is RescoreVerdict.AGREES, report.text()


async def test_another_model_is_asked_at_the_address_of_the_session(tool_policy: LabProcess, tmp_path: Path) -> None:
    def build(task: Any, model: Any, models: Any) -> AgentProcess:
        command = [sys.executable, PROGRAM, task.prompt, "--after-turn", "1", "consult"]
        return AgentProcess(command, models={"helper": models["helper"]}, network=Network.GATEWAY_ONLY)

    greedy = {"temperature": 0.0, "max_new_tokens": 64}
    run = await rollout(
        build,
        ["Compute 615 * 17, then - 88."],
        tokenizer=TOKENIZER,
        client=SGLangClient(tool_policy.url),
        sampling_params=greedy,
        limits=Limits(max_turns=6),
        models={"helper": SGLangModel(base_url=tool_policy.url, tokenizer=TOKENIZER, sampling_params=greedy)},
        directory=tmp_path,
    )
    (episode,) = run
    assert episode.end_reason is EndReason.ANSWERED, episode.failure
    told = json.loads(episode.text.splitlines()[0].removeprefix("consulted: "))
    assert "12 * 34" in told["tool_calls"][0]["function"]["arguments"]
    assert episode.metrics.other_model_calls == 1
    certificate = verify(tmp_path)
    assert certificate.proved, certificate.text()
    assert certificate.tokens.trained == sum(len(turn.sampled) for turn in episode.tree)
    (replayed,) = await replay(build, tmp_path, tokenizer=TOKENIZER)
    assert replayed.verdict is ReplayVerdict.IDENTICAL, replayed


@pytest.mark.parametrize("streams", [False, True])
async def test_a_disconnect_ends_the_turn_on_the_engine(streams: bool, tiny_qwen3: LabProcess) -> None:
    client, given = SGLangClient(tiny_qwen3.url), tokenizer("qwen3")
    model = SGLangModel(client=client, tokenizer=given, sampling_params={"max_new_tokens": 3500, "ignore_eos": True})

    async def running() -> int:
        return sum((await client.control.open_requests()).values())

    episode = EpisodeTokens("task/0")
    async with (
        client,
        Gateway() as gateway,
        aiohttp.ClientSession() as http,
        gateway.session(model, episode) as session,
    ):
        agent = WireAgent(http, gateway.base_url(session), "chat", streams=streams)
        agent.say("Tell a long story.")
        asking = asyncio.ensure_future(agent.ask())
        while not await running():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert await running() == 1 and not asking.done()
        closed = time.monotonic()
        asking.cancel()
        while await running():
            await asyncio.sleep(0.01)
        seconds = time.monotonic() - closed
        print(f"aborted after {seconds:.2f} s")
        assert seconds < size(10, 1)  # in CI the machine may be busy; the whole reply takes longer than that
        assert len(episode.tree) == 0
        agent.more = {"max_tokens": 4}
        await agent.ask()
        (turn,) = episode.tree
        assert len(turn.sampled) == 4 and not turn.rejected
        assert [sum(trajectory.loss_mask) for trajectory in episode.trajectories()] == [4]


@pytest.mark.soak
async def test_claude_code_on_a_real_engine(smollm2: LabProcess, tmp_path: Path) -> None:
    """Two invocations, the second of which continues the conversation of the first; its answers are nonsense."""
    script = agents_script()
    claude = script.program("claude")
    assert Path(claude).exists(), "run scripts/agents --install agents"
    told = f"{claude} -p 'What is a prime number?' {{0}} && {claude} -c -p 'Give an example.' {{0}}"
    command = ["sh", "-c", told.format("--output-format json --dangerously-skip-permissions")]
    run = await rollout(
        script.build(script.Agent(command, {"IS_SANDBOX": "1"}), tmp_path),
        ["What is a prime number?"],
        tokenizer=tokenizer("smollm2"),
        client=SGLangClient(smollm2.url),
        limits=Limits(max_turns=8, max_new_tokens=600, episode_timeout=900),  # it fails if replies are truncated
        sampling_params={"temperature": 0.3},
        directory=tmp_path / "run",
        audit_share=1.0,
        on_hidden_tools="allow",  # the template of SmolLM2 writes no tools, so it fits into its context
        tool_parser="hermes",
    )
    (episode,) = run
    assert episode.end_reason is EndReason.ANSWERED, (episode.failure, episode.text)
    turns = [turn for turn in episode.tree if not turn.rejected]
    assert len(turns) >= 2 and [turn.detail["protocol"] for turn in turns] == ["messages"] * len(turns)
    assert sum(turn.parent is not None for turn in turns) >= 1, "nothing continued"
    assert not episode.metrics.audit_differences
    certificate = verify(tmp_path / "run")
    assert certificate.proved, certificate.text()
    assert certificate.tokens.trained == sum(len(turn.sampled) for turn in turns)
    report = await rescore(tmp_path / "run", smollm2.url, tolerance=1e-3, all_versions=True)
    assert report.verdict is RescoreVerdict.AGREES, report.text()
    print(certificate.text(), [(turn.join.value, len(turn.sampled), turn.detail) for turn in episode.tree])


KILLED = """
import asyncio, os, signal, sys
from strands_sglang import Limits, SGLangClient, rollout
from strands_sglang.gateway import AgentProcess
url, tokenizer, directory, program, left = sys.argv[1:]
every, answered = int(left), 0

class Watched(SGLangClient):
    async def generate(self, *given, **more):
        global answered
        if every and answered >= every:  # an agent asks again only after its turn is on disk
            os.kill(os.getpid(), signal.SIGKILL)
        made = await super().generate(*given, **more)
        answered += 1
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
    assert certificate.tokens.trained == other.tokens.trained and certificate.tokens.rolled_back == 0
    left = subprocess.run(["pgrep", "-f", PROGRAM], capture_output=True, text=True)
    assert not left.stdout
