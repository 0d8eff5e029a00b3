"""The session cache on the real engine: prompts of running episodes stay in a small cache beside other traffic."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from strands_sglang import SGLangClient
from strands_sglang.ledger.reader import Ledger
from strands_sglang.runs import Limits, rollout
from support.examples import size
from support.lab_servers import LabProcess
from support.rollout_agent import SAMPLING, TOKENIZER, TURNS, build, tasks

pytestmark = [pytest.mark.engine, pytest.mark.own_servers]

TURNS_MADE = size(3, 6)
PROMPT, OTHERS = 600, 400
GREEDY = {"max_new_tokens": 8, "temperature": 0.0, "ignore_eos": True}
CACHE = 6000
"""Tokens of the cache of the server (`lora` in conftest.py)."""


async def conversation(client: SGLangClient, session: str | None, seed: int) -> tuple[list[list[int]], list[float]]:
    """Play turns with more traffic between them than fits the cache; return their tokens, and the cached shares."""
    rng = random.Random(seed)
    ids = [rng.randrange(5, 400) for _ in range(PROMPT)]
    sampled, shares = [], []
    for turn in range(TURNS_MADE):
        answer = await client.generate(ids, GREEDY, session=session)
        sampled.append(answer.token_ids.tolist())
        shares.append((answer.cached_tokens or 0) / len(ids))
        ids = [*ids, *answer.token_ids, 7, 8, 9]
        for number in range(1 + CACHE // OTHERS):
            other = random.Random(f"{seed} {session} {turn} {number}")
            await client.generate([other.randrange(5, 400) for _ in range(OTHERS)], {**GREEDY, "max_new_tokens": 2})
    return sampled, shares


async def test_prompt_stays_cached_beside_other_traffic(lora: LabProcess) -> None:
    async with SGLangClient(lora.url, session_cache=True) as client:
        await client.control.flush_cache()
        without, before = await conversation(client, None, 1)
        await client.control.flush_cache()
        within, after = await conversation(client, "one", 1)
        await client.close_session("one")
    print(f"cached without a session {before}, with one {after}")
    assert without == within, "the same tokens"
    assert max(before) == 0.0 and min(after[1:]) > 0.95


async def test_closed_session_gives_its_place_up(lora: LabProcess) -> None:
    prompt = [random.Random(5).randrange(5, 400) for _ in range(1)] + list(range(5, 5 + PROMPT // 2)) * 2

    async with SGLangClient(lora.url, session_cache=True) as client:
        await client.control.flush_cache()
        await client.generate(prompt, GREEDY, session="two")
        await client.close_session("two")
        for number in range(1 + CACHE // OTHERS):
            other = random.Random(f"closed {number}")
            await client.generate([other.randrange(5, 400) for _ in range(OTHERS)], {**GREEDY, "max_new_tokens": 2})
        assert (await client.generate(prompt, GREEDY)).cached_tokens == 0


async def test_episodes_of_a_run_are_sessions(lora: LabProcess, tmp_path: Path) -> None:
    async with SGLangClient(lora.url, session_cache=True) as client:
        run = await rollout(
            build,
            tasks(4, seed=4_300),
            tokenizer=TOKENIZER,
            client=client,
            limits=Limits(max_turns=TURNS),
            directory=tmp_path / "run",
            sampling_params=SAMPLING,
        )
        assert not any(one.end_reason.failed for group in run.groups for one in group.episodes)
        assert not client._sessions, "all are closed"
    assert len(Ledger(tmp_path / "run")) == 4
