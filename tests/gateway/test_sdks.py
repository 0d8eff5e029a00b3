"""Agents of SDKs and frameworks, as other programs without a network: the examples, and others on each protocol.

`scripts/agents --install sdks` installs them, into environments of their own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from strands_sglang import rollout
from strands_sglang.gateway import AgentProcess, Network
from strands_sglang.proof import verify
from support.families import tokenizer
from support.gateway.sdk_programs import COMMANDS, is_installed
from support.scripted_engine import ScriptedEngine, thought, tool_call

CALL = tool_call("calculator", expression="615 * 17")


def script(prompt: str) -> str:
    """Two calls, then an answer."""
    results = prompt.count("<tool_response>")
    if results == 0:
        return thought("Multiply.", "Let me compute.\n" + CALL)
    if results == 1:
        return thought("Subtract.", tool_call("calculator", expression="10455 - 88"))
    return thought("Done.", f"It is {prompt.rpartition('<tool_response>')[2].split()[0]}.")


@pytest.mark.parametrize("name", list(COMMANDS))
async def test_an_agent_of_an_sdk_gets_one_branch(name: str, tmp_path: Path) -> None:
    if not is_installed(name):
        assert "CI" not in os.environ, "run scripts/agents --install sdks"
        pytest.skip("not installed: scripts/agents --install sdks")
    engine = ScriptedEngine(tokenizer("qwen3"), script)

    def build(task: Any, model: Any) -> AgentProcess:
        env = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "OTEL_SDK_DISABLED": "true", "PYTHONPATH": ""}
        return AgentProcess([*COMMANDS[name], task.prompt], env=env, network=Network.GATEWAY_ONLY)

    run = await rollout(
        build,
        ["Compute 615 * 17, then - 88."],
        tokenizer=tokenizer("qwen3"),
        client=engine,
        directory=tmp_path,
        audit_share=1.0,
    )
    (episode,) = run
    assert episode.text.endswith("It is 10367."), episode.failure
    assert [turn.join.value for turn in episode.tree] == ["root", "proved", "proved"]
    assert len(engine.calls) == 3 and not episode.tree.rejected
    assert (episode.metrics.audits, episode.metrics.audit_differences) == (1, 0)
    certificate = verify(tmp_path)
    assert certificate.proved
    assert certificate.tokens.trained == sum(len(turn.sampled) for turn in episode.tree)
