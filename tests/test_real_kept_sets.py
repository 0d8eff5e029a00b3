"""Kept sets on a real engine: every token in its set, ratios of 1 with the sets, over aborts, streams and updates."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strands import Agent

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.proof.verify import verify
from strands_sglang.runs import Limits, Task, rollout
from strands_sglang.tokens import Origin, Trajectory
from support.examples import size
from support.lab_servers import LAB, LabProcess
from support.rollout_agent import TURNS, agent_for, build, tasks

pytestmark = [pytest.mark.engine]

TOKENIZER = str(LAB / "tool_policy" / "canonical")
VOCABULARY = 461
SAMPLING = {"max_new_tokens": 64, "temperature": 1.0, "top_p": 0.8}


async def ratios(client: SGLangClient, flat: Trajectory, width: int) -> tuple[list[float], list[float]]:
    """Return the ratio of a trainer to the behaviour policy at each sampled token, with and without its kept set.

    The trainer's logprobs come from one prefill that returns the `width` likeliest tokens at each position.
    """
    assert flat.kept is not None
    places = np.flatnonzero(flat.origins == Origin.SAMPLED)
    first = int(places[0])
    body = {
        "input_ids": flat.token_ids.tolist(),
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": first - 1,
        "top_logprobs_num": width,
    }
    meta = (await client.control.answer_to(body))["meta_info"]
    with_sets, without = [], []
    for place in map(int, places):
        row = {token: logprob for logprob, token, *_ in meta["input_top_logprobs"][place - first + 1]}
        own, token, *_ = meta["input_token_logprobs"][place - first + 1]
        assert token == flat.token_ids[place]
        row[token] = own
        mass = math.log(sum(math.exp(row[one]) for one in flat.kept.at(place)))
        behaviour = flat.kept.logprobs[place]
        with_sets.append(math.exp(own - mass - behaviour))
        without.append(math.exp(own - behaviour))
    return with_sets, without


def joined(found: list[tuple[list[float], list[float]]]) -> tuple[Any, Any]:
    with_sets, without = (np.concatenate(part) for part in zip(*found, strict=True))
    print(
        f"\n{len(with_sets)} tokens: ratio with sets {with_sets.mean():.6f}, without {without.mean():.4f}, "
        f"outside [0.9, 1.1] {np.mean(np.abs(without - 1) > 0.1):.2%}"
    )
    return with_sets, without


async def test_many_episodes(tool_policy: LabProcess, tmp_path: Path) -> None:
    async with SGLangClient(tool_policy.url) as client:
        run = await rollout(
            build, tasks(size(120, 500)), client=client, tokenizer=TOKENIZER, directory=tmp_path / "run",
            sampling_params=SAMPLING, kept_sets="auto", limits=Limits(max_turns=TURNS), concurrency=64,
        )  # fmt: skip
        certificate = verify(tmp_path / "run")
        assert certificate.proved, certificate.text()
        flats = [trajectory for episode in run for trajectory in episode.trajectories]
        assert all(flat.kept is not None for flat in flats)
        found = [await ratios(client, flat, VOCABULARY) for flat in flats[:60]]
    with_sets, _ = joined(found)
    assert len(with_sets) > 1000 and not any(episode.end_reason.failed for episode in run)
    assert np.abs(with_sets - 1).max() < 1e-4


async def test_real_english(smollm2: LabProcess, tmp_path: Path) -> None:
    from strands_sglang.chat.tokenization import load_tokenizer

    topics = ("a river", "two friends", "the moon", "an old car", "bread", "winter", "a letter", "a robot")

    def talk(task: Task, model: SGLangModel) -> Any:
        return Agent(model=model, callback_handler=None)

    async with SGLangClient(smollm2.url) as client:
        folder = str((await client.model_info() or {})["model_path"])
        run = await rollout(
            talk,
            [Task(f"Write a sentence about {topic}.", id=f"s{number}") for number, topic in enumerate(topics)],
            samples_per_task=4,
            client=client,
            tokenizer=load_tokenizer(folder),
            directory=tmp_path / "run",
            sampling_params={"max_new_tokens": 24, "temperature": 1.0, "top_p": 0.8, "top_k": 1024},
            kept_sets="auto",
            concurrency=32,
        )
        assert verify(tmp_path / "run").proved
        found = [await ratios(client, run[number].trajectories[0], 2048) for number in range(0, 32, 8)]
    with_sets, without = joined(found)
    assert np.abs(with_sets - 1).max() < 1e-3
    assert without.mean() < 0.95, "without the sets, every ratio is too small"


async def test_streamed_and_interrupted_turns(tool_policy: LabProcess) -> None:
    async with SGLangClient(tool_policy.url) as client:
        options: dict[str, Any] = {"sampling_params": SAMPLING, "kept_sets": "auto"}
        model = SGLangModel(tokenizer=TOKENIZER, client=client, streaming=True, **options)
        await agent_for(model).invoke_async("Compute 615 * 17, then - 88.", limits={"turns": TURNS})
        for turn in model.current_episode.tree:
            assert turn.kept is not None and len(turn.kept) == len(turn.sampled)

        async def pause() -> None:
            for _ in range(6):
                await asyncio.sleep(0.15)
                await client.control.pause()
                await client.control.resume()

        long = {"max_new_tokens": 200, "temperature": 1.0, "top_p": 0.9, "top_k": 256, "ignore_eos": True}
        turns = asyncio.gather(*(client.generate([1, 5, 7], long, kept_sets=True) for _ in range(8)))
        await asyncio.gather(turns, pause())
        for sampled in await turns:
            assert len(sampled) == 200 and sampled.kept is not None and len(sampled.kept) == 200
