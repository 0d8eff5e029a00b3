"""On the real engine: agents through `SGLangModel`, checked at the wire, by re-scoring and by the engine's cache."""

from __future__ import annotations

import asyncio
import json
import math
import random
import urllib.request
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from strands import Agent
from transformers import AutoTokenizer

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.tokens import Join, TurnPurpose
from support.agent_episodes import (
    Played,
    calculator,
    check_against_the_wire,
    covered_by_cache,
    drift,
    largest_difference,
    play,
    play_tasks,
)
from support.examples import size
from support.lab_servers import LAB, LabProcess, task
from support.wire_tap import Tap

pytestmark = pytest.mark.engine

EPISODES = size(120, 500)
MARGIN = 2.25 / math.sqrt(EPISODES)
"""4.5 standard deviations of a share of so many episodes: luck is not among the reasons to fail."""
AT_ONCE = 64
SAMPLING = {"max_new_tokens": 64, "temperature": 1.0}


def show(name: str, figures: dict[str, Any]) -> None:
    """Print figures for the documentation; `pytest -s` shows them."""
    print(json.dumps({"episodes of": name, **figures}))


@pytest.mark.parametrize("checkpoint", ["canonical", "noncanonical"])
async def test_many_episodes(checkpoint: str, request: pytest.FixtureRequest) -> None:
    server: LabProcess = request.getfixturevalue("tool_policy" if checkpoint == "canonical" else "noncanonical")
    tokenizer = AutoTokenizer.from_pretrained(str(LAB / "tool_policy" / checkpoint))
    with Tap(server.url) as tap:
        async with SGLangClient(tap.url) as client:
            model = SGLangModel(tokenizer=tokenizer, client=client, sampling_params=SAMPLING)
            played = await play_tasks(model, EPISODES, AT_ONCE, seed=7_000)
    assert len(played) == EPISODES
    calls = check_against_the_wire(played, tap)
    assert calls > 2 * EPISODES, "the policy hardly called its tool"
    assert all(turn.join in (Join.ROOT, Join.PROVED) for one in played for turn in one.episode.tree)
    right = sum(one.reward for one in played) / EPISODES
    # About 55 % and 30 % come out right when every prompt is as it was in training; a wrong prompt would show here.
    assert right > (0.55 if checkpoint == "canonical" else 0.3) - MARGIN
    worst = await largest_difference(server.url, played)
    assert worst < 1e-3
    covered, total = covered_by_cache(played)
    assert covered >= 0.95 * total, f"{covered} of {total} turns found their prefix cached"
    seen = drift(played, tokenizer)
    if checkpoint == "noncanonical":
        # This policy exists to drift: were nothing found here, the measure itself would be broken.
        assert seen.by_decoding > 0.05 * seen.turns
    show(checkpoint, figures(played, calls, right, worst, covered, total, seen))


async def test_agents_without_an_episode_scope_share_one_model(tool_policy: LabProcess) -> None:
    """Told apart by what their messages say, and by nothing else."""
    tokenizer = AutoTokenizer.from_pretrained(str(LAB / "tool_policy" / "canonical"))
    async with SGLangClient(tool_policy.url) as client:
        model = SGLangModel(tokenizer=tokenizer, client=client, sampling_params=SAMPLING)
        agents = await unscoped(model, 64)
    tree = model.current_episode.tree
    trajectories = tree.trajectories()
    assert len(trajectories) == len(agents)
    answers = sorted(len([m for m in agent.messages if m["role"] == "assistant"]) for agent in agents)
    assert answers == sorted(trajectory.num_turns for trajectory in trajectories)
    for agent in agents:
        places = [m["metadata"]["metrics"]["sglang"] for m in agent.messages if m["role"] == "assistant"]
        turns = [place["turn"] for place in places]
        assert [turn.id for turn in tree.path(tree[turns[-1]])] == turns
        assert {place["branch"] for place in places} == {turns[0]}


async def unscoped(model: SGLangModel, count: int) -> list[Any]:
    """Run agents at once on one model, outside any episode; half of them are asked the same question."""
    agents = [Agent(model=model, tools=[calculator], callback_handler=None) for _ in range(count)]
    tasks = [task.sample_task(random.Random(number if number % 2 else 0)) for number in range(count)]
    await asyncio.gather(
        *(
            agent.invoke_async(asked.question, limits={"turns": task.MAX_TOOL_CALLS + 1})
            for agent, asked in zip(agents, tasks, strict=True)
        )
    )
    return agents


class Verdict(BaseModel):
    """What the agent is to say."""

    answer: Literal["yes", "no"]
    sure: bool


async def test_structured_output_is_decoded_under_its_schema_and_recorded(tool_policy: LabProcess) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(LAB / "tool_policy" / "canonical"))
    async with SGLangClient(tool_policy.url) as client:
        model = SGLangModel(tokenizer=tokenizer, client=client, sampling_params=SAMPLING)
        agent = Agent(model=model, callback_handler=None)
        result = await agent.invoke_async("Compute 7 + 8, then * 2.", structured_output_model=Verdict)
        outputs = [event async for event in model.structured_output(Verdict, [user("Compute 1 + 1.")])]
    assert isinstance(result.structured_output, Verdict)
    assert isinstance(outputs[-1]["output"], Verdict)
    *_, in_loop, side = model.current_episode.tree
    assert in_loop.detail["constrained"] == side.detail["constrained"] == "json_schema"
    assert (in_loop.purpose, side.purpose) == (TurnPurpose.CONSTRAINED, TurnPurpose.SIDE)
    text = str(tokenizer.decode(in_loop.sampled, skip_special_tokens=True))
    assert Verdict.model_validate_json(text) == result.structured_output


async def test_streaming_records_the_same_tokens(tool_policy: LabProcess) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(LAB / "tool_policy" / "canonical"))
    seen = []
    async with SGLangClient(tool_policy.url) as client:
        for streaming in (False, True):
            model = SGLangModel(
                tokenizer=tokenizer,
                client=client,
                sampling_params={"max_new_tokens": 64, "temperature": 0.0},
                streaming=streaming,
            )
            agent = Agent(model=model, tools=[calculator], callback_handler=None)
            pieces = [
                event["data"] async for event in agent.stream_async("Compute 615 * 17, then - 88.") if "data" in event
            ]
            contents = [_without_ids(message["content"]) for message in agent.messages]
            seen.append((model.token_manager.token_ids, model.token_manager.loss_mask, contents, "".join(pieces)))
            assert len(pieces) > 1 if streaming else len(pieces) == 1
    assert seen[0] == seen[1]


def user(text: str) -> Any:
    return {"role": "user", "content": [{"text": text}]}


def _without_ids(content: Any) -> Any:
    """Return content blocks without the ids of calls, which differ from run to run."""
    for block in content:
        for kind in ("toolUse", "toolResult"):
            if kind in block:
                block[kind]["toolUseId"] = ""
    return content


async def test_conversations_in_english(smollm2: LabProcess) -> None:
    with urllib.request.urlopen(smollm2.url + "/get_model_info", timeout=10) as answer:
        tokenizer = AutoTokenizer.from_pretrained(json.load(answer)["tokenizer_path"])
    count = size(10, 20)
    questions = ["Name a colour and say why you like it.", "Now say it in one sentence, like a pirate."]
    with Tap(smollm2.url) as tap:
        async with SGLangClient(tap.url) as client:
            model = SGLangModel(
                tokenizer=tokenizer,
                client=client,
                tool_parser="hermes",  # the template writes no calls, so it cannot tell
                on_hidden_tools="allow",  # nor does it write tools
                sampling_params={"max_new_tokens": 48, "temperature": 1.0},
            )
            played = list(await asyncio.gather(*(play(model, questions) for _ in range(count))))
    calls = check_against_the_wire(played, tap)
    assert calls == 2 * count
    cut = [turn for one in played for turn in one.episode.tree if turn.parent is not None and len(turn.closing)]
    assert cut, "some turns are cut by their budget and must be closed before the next"
    worst = await largest_difference(smollm2.url, played, at_once=4)
    assert worst < 1e-3
    covered, total = covered_by_cache(played)
    assert covered >= 0.95 * total
    seen = drift(played, tokenizer)
    show("smollm2", figures(played, calls, 0.0, worst, covered, total, seen))


def figures(
    played: list[Played], calls: int, right: float, worst: float, covered: int, total: int, seen: Any
) -> dict[str, Any]:
    return {
        "episodes": len(played),
        "turns": calls,
        "sampled_tokens": seen.tokens,
        "right": round(right, 3),
        "largest_logprob_difference": float(f"{worst:.2g}"),
        "turns_with_prefix_cached": round(covered / total, 4),
        "drift_by_decoding": round(seen.by_decoding / seen.turns, 4),
        "drift_by_rendering": round(seen.by_rendering / seen.turns, 4),
    }
