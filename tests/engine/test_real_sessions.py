"""The session cache on the real engine: prompts of running episodes stay in a small cache beside other traffic."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from strands import tool

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.ledger.reader import Ledger
from strands_sglang.proof.verify import verify
from strands_sglang.runs import Limits, Task, rollout
from support.examples import size
from support.lab_servers import LabProcess, route, serve, task
from support.rollout_agent import SAMPLING, TOKENIZER, TURNS, agent_for, build, calculator, tasks
from support.trainers.slime_wire import Wire
from support.wire_tap import Tap

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
        await fill(client, f"{seed} {session} {turn}")
    return sampled, shares


async def fill(client: SGLangClient, seed: str) -> None:
    """Ask for more than fits the cache, outside any session."""
    for number in range(1 + CACHE // OTHERS):
        other = random.Random(f"{seed} {number}")
        await client.generate([other.randrange(5, 400) for _ in range(OTHERS)], {**GREEDY, "max_new_tokens": 2})


async def cached(url: str, prompt: list[int], seed: str) -> int | None:
    """Return how many tokens of a prompt a worker still has, behind traffic that fills its cache."""
    async with SGLangClient(url) as client:
        await fill(client, seed)
        return (await client.generate(prompt, GREEDY)).cached_tokens


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
    assert await cached(lora.url, prompt, "closed") == 0


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


class ForwardingRouter(Wire):
    """Stands for a router that forwards every field of a request, and has no `/close_session`."""

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=404) if request.path == "/close_session" else await super()._pass(request)


async def test_session_behind_a_router_that_forwards_it_gives_its_place_up(lora: LabProcess) -> None:
    prompt = [random.Random(6).randrange(5, 400) for _ in range(PROMPT)]
    with ForwardingRouter(lora.url, alone=True) as router:
        async with SGLangClient(router.url, session_cache=True) as client:
            await client.control.flush_cache()
            await client.generate(prompt, GREEDY, session="three", routing_key="three")
            held = await cached(lora.url, prompt, "held")
            await client.close_session("three")
    assert held and held > 0.95 * PROMPT
    assert await cached(lora.url, prompt, "given up") == 0


@pytest.fixture
def workers(engine_logs: Path) -> Iterator[tuple[LabProcess, LabProcess]]:
    """Two workers with sessions and a small prefix cache."""
    flags = "--enable-session-radix-cache", "--max-total-tokens", str(CACHE)
    made = serve("tool-policy", engine_logs, *flags), serve("tool-policy", engine_logs, *flags)
    try:
        for worker in made:
            worker.start()
        yield made[0].wait(), made[1].wait()
    finally:
        for worker in made:
            worker.kill()


@pytest.mark.soak
async def test_episodes_behind_the_real_router(
    workers: tuple[LabProcess, LabProcess], engine_logs: Path, tmp_path: Path
) -> None:
    """Each is a session of one worker, has its prompts there beside other traffic, and leaves nothing."""

    def busy(given: Task, model: SGLangModel) -> Any:
        @tool(name="calculator", description=calculator.tool_spec["description"])
        async def among_others(expression: str) -> str:
            for worker in workers:
                async with SGLangClient(worker.url) as others:
                    await fill(others, f"{given.id} {expression}")
            return task.calculate(expression)

        return agent_for(model, tools=[among_others])

    with Tap(workers[0].url) as one, Tap(workers[1].url) as other:
        router = route([one, other], engine_logs).start()
        try:
            async with SGLangClient(router.wait().url, session_cache=True) as client:
                run = await rollout(
                    busy,
                    tasks(8, seed=4_400),
                    tokenizer=TOKENIZER,
                    client=client,
                    limits=Limits(max_turns=TURNS),
                    directory=tmp_path / "run",
                    sampling_params=SAMPLING,
                    concurrency=4,
                )
                assert not client._sessions, "all are closed"
        finally:
            router.kill()
    assert len(run) == 8 and verify(tmp_path / "run").proved
    sessions = [{call.session for call in tap.calls.values()} for tap in (one, other)]
    assert None not in sessions[0] | sessions[1], "no call went without its session"
    assert sessions[0].isdisjoint(sessions[1]) and len(sessions[0] | sessions[1]) == 8
    shares = []
    for record in Ledger(tmp_path / "run").episodes():
        for call in record.calls[1:]:
            shares.append((call.data["detail"]["cached_tokens"] or 0) / call.data["prompt_tokens"])
    print(f"episodes of the workers {[len(each) for each in sessions]}, cached of further turns {sorted(shares)}")
    assert len(shares) >= 8 and min(shares) > 0.5
    for worker, tap in zip(workers, (one, other), strict=True):
        if tap.calls:
            longest = max((call.input_ids for call in tap.calls.values()), key=len)
            assert await cached(worker.url, longest, "over") == 0
