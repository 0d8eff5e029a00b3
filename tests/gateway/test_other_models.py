"""An agent over HTTP asks other models of its episode by name: recorded, replayed by content, never trained."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from strands_sglang import replay, rollout
from strands_sglang.engine.retry import Backoff, RetryPolicy
from strands_sglang.errors import ConfigurationError
from strands_sglang.gateway import RemoteAgent
from strands_sglang.ledger import Ledger
from strands_sglang.ledger.event import EventKind
from strands_sglang.proof import verify
from strands_sglang.runs import EndReason, ReplayVerdict, RunResult
from strands_sglang.runs.recording import other_models
from support.families import tokenizer
from support.gateway.agents import PATHS, WireAgent, WireError
from support.gateway.opened import opened
from support.rollout.other_models import Speaker, spoken
from support.scripted_engine import Reply, ScriptedEngine, tool_call


def script(prompt: str) -> str:
    return f"policy {prompt.count('<|im_start|>user')}"


class Talker(RemoteAgent):
    """Takes turns with a simulated user, whom it asks through its session."""

    def __init__(self, protocol: str, models: Mapping[str, Any], streams: bool = False) -> None:
        self.protocol, self.models, self.streams = protocol, models, streams

    async def run(self, session: Any, base_url: str, socket: Path | None) -> str:
        async with aiohttp.ClientSession() as http:
            policy, user = (
                WireAgent(http, base_url, self.protocol, self.streams, name) for name in (session.name, "user")
            )
            said = "Hello."
            for _ in range(2):
                policy.say(said)
                _, text = policy.add(await policy.ask())
                user.say(text)
                _, said = user.add(await user.ask())
        return said


def build_for(protocol: str, streams: bool) -> Any:
    return lambda task, model, models: Talker(protocol, {"user": models["user"]}, streams)


async def run(build: Any, speaker: Speaker, directory: Path, answers: Any = script) -> tuple[RunResult, ScriptedEngine]:
    engine = ScriptedEngine(tokenizer("qwen3"), answers)
    return await rollout(
        build, ["go"], tokenizer=tokenizer("qwen3"), client=engine, models={"user": speaker}, directory=directory
    ), engine


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("protocol", list(PATHS))
async def test_another_model_is_recorded_replayed_and_not_trained(protocol: str, streams: bool, tmp_path: Path) -> None:
    speaker, build = Speaker(), build_for(protocol, streams)
    run_result, _ = await run(build, speaker, tmp_path)
    (episode,) = run_result
    assert episode.end_reason is EndReason.ANSWERED, episode.failure
    assert episode.text == "answer 1 to policy 2" and len(speaker.asked) == 2
    assert [turn.join.value for turn in episode.tree] == ["root", "kept"]
    assert episode.metrics.other_model_calls == 2
    certificate = verify(tmp_path)
    assert certificate.proved and certificate.tokens.trained == sum(len(turn.sampled) for turn in episode.tree)
    kinds = [event.kind for event in Ledger(tmp_path).episode(episode.id).events]
    assert kinds.count(EventKind.MODEL) == 2
    (replayed,) = await replay(build, tmp_path, tokenizer=tokenizer("qwen3"))
    assert replayed.verdict is ReplayVerdict.IDENTICAL, replayed


async def test_a_resumed_run_does_not_ask_again(tmp_path: Path) -> None:
    stopped, speaker, build = asyncio.Event(), Speaker(), build_for("chat", False)

    def interrupted(prompt: str) -> Reply:
        if "answer 0" not in prompt:
            return Reply(script(prompt))
        stopped.set()
        return Reply(hangs=True)

    first = asyncio.ensure_future(run(build, speaker, tmp_path, interrupted))
    await stopped.wait()
    first.cancel()
    await asyncio.wait({first})
    run_result, engine = await run(build, speaker, tmp_path)
    assert next(iter(run_result)).text == "answer 1 to policy 2"
    assert (len(speaker.asked), len(engine.calls)) == (2, 1)
    certificate = verify(tmp_path)
    assert certificate.proved and certificate.tokens.rolled_back == 0


async def test_a_model_that_fails_ends_the_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_models, "RETRIES", RetryPolicy(0, Backoff(0.0, 0.0)))

    def fail(messages: list[Any], before: int) -> Any:
        return ValueError("no such model")

    run_result, _ = await run(build_for("messages", False), Speaker(fail), tmp_path)
    (episode,) = run_result
    assert episode.end_reason is EndReason.OTHER_MODEL_ERROR and episode.reward is None


@pytest.mark.parametrize("protocol", list(PATHS))
async def test_calls_and_truncation_are_those_of_the_model(protocol: str) -> None:
    call = {"toolUseId": "call-of-user", "name": "run"}
    events = spoken("Look.", "tool_use")
    events[-2:-2] = [
        {"contentBlockStart": {"start": {"toolUse": call}}},
        {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"command": "ls"}'}}}},
        {"contentBlockStop": {}},
    ]
    answers = [events, spoken("Cut", "max_tokens")]
    speaker = Speaker(lambda messages, before: answers[before])
    async with opened([], options={"models": {"user": speaker}}) as it:
        agent = it.agent(protocol, model="user")
        agent.say("Hello.")
        calls, text = agent.add(await agent.ask())
        assert (text, [(one["id"], one["input"]) for one in calls]) == ("Look.", [("call-of-user", {"command": "ls"})])
        agent.result("call-of-user", "a b")
        reply = await agent.ask()
        ends = {
            "chat": lambda: reply["choices"][0]["finish_reason"] == "length",
            "responses": lambda: reply["status"] == "incomplete",
            "messages": lambda: reply["stop_reason"] == "max_tokens",
        }
        assert ends[protocol]()
        assert speaker.asked[1][1]["content"][1]["toolUse"]["input"] == {"command": "ls"}
        assert len(it.episode.tree) == 0


async def test_a_model_is_asked_only_by_the_agents_that_it_was_given_to() -> None:
    judge = Speaker()
    async with opened(["A title"], options={"models": {"user": Speaker()}}) as it:
        async with it.http.get(it.gateway.base_url(it.session) + "/v1/models") as response:
            assert [one["id"] for one in (await response.json())["data"]] == ["policy", "user"]
        agent = it.agent("chat", model="judge", more={"tools": []})
        await agent.run("How many points?")
        assert not judge.asked and it.episode.tree[0].purpose.value == "side"
        schema = {"type": "json_schema", "json_schema": {"name": "points", "schema": {"type": "object"}}}
        agent = it.agent("chat", model="user", more={"response_format": schema})
        agent.say("Hello.")
        with pytest.raises(WireError, match="cannot be asked for JSON of a schema"):
            await agent.ask()


async def test_models_are_named_one_by_one() -> None:
    async with opened([]) as it:
        for models in (["user"], Talker("chat", {})):
            with pytest.raises(ConfigurationError, match="must be a dict of those that the agent may ask"):
                async with it.gateway.session(it.session.model, it.episode, models=models):  # type: ignore[arg-type]
                    pass
        with pytest.raises(ConfigurationError, match="must not have the name of the policy"):
            async with it.gateway.session(it.session.model, it.episode, models={"policy": Speaker()}):
                pass


async def test_the_policy_may_ask_too_and_its_calls_are_its_own() -> None:
    """An answer of another model is no echo: only turns of the policy are replaced by their record."""
    speaker = Speaker(lambda messages, before: "policy 1")
    async with opened([tool_call("run", command="ls"), "policy 1"], options={"models": {"user": speaker}}) as it:
        agent = it.agent("chat", model="user")
        agent.say("Hello.")
        agent.add(await agent.ask())
        agent.model = "policy"
        agent.say("And you?")
        agent.add(await agent.ask())
        assert it.joins == ["root"] and len(speaker.asked) == 1
