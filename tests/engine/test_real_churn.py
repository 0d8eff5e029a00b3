"""On the real engine: 512 calls at once through the router, while a worker dies and returns and the weights change.

Nothing is lost, nothing comes twice, and for every token it is known which weights sampled it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import pytest

from strands_sglang import Generation, SGLangClient
from strands_sglang.engine import FinishReason, PauseMode
from support.engine_probes import prefill_logprobs
from support.lab_servers import LAB, Routed

pytestmark = [pytest.mark.engine, pytest.mark.own_servers, pytest.mark.soak]

CALLS = 512
UPDATES = 10
CHECKPOINT = str(LAB / "tool_policy" / "canonical")
RESCORED = 24


def budgets() -> list[int]:
    rng = random.Random(3)
    return [rng.randrange(150, 320) for _ in range(CALLS)]


def prompts() -> list[list[int]]:
    rng = random.Random(4)
    return [[rng.randrange(10, 400) for _ in range(rng.randrange(8, 60))] for _ in range(CALLS)]


async def kill_and_restart(routed: Routed) -> float:
    """Kill a worker in the middle of its work and bring it back; return the seconds it was away."""
    worker = routed.workers[0]
    started = time.monotonic()
    worker.kill()
    worker.start()
    await asyncio.to_thread(worker.wait)
    return time.monotonic() - started


async def update_weights(client: SGLangClient, done: asyncio.Event) -> Counter[str]:
    """Update ten times over the run, in each mode in turn; count what the workers said."""
    said: Counter[str] = Counter()
    modes = list(PauseMode)
    for number in range(UPDATES):
        results = await client.control.swap_weights(CHECKPOINT, version=f"update-{number}", mode=modes[number % 3])
        said.update("updated" if result.ok else "was not there" for result in results)
        with_time = asyncio.create_task(done.wait())
        await asyncio.wait({with_time}, timeout=4.0)
        with_time.cancel()
    return said


@pytest.mark.timing  # how many updates the lost worker misses depends on how long it takes to return
async def test_512_calls_through_a_lost_worker_and_ten_updates(routed: Routed) -> None:
    done = asyncio.Event()
    wanted = budgets()
    asked = prompts()
    async with SGLangClient(routed.url, retry_delay=0.2, max_retry_delay=2.0, max_connections=CALLS) as client:

        async def call(number: int) -> tuple[int, Generation]:
            params = {"max_new_tokens": wanted[number], "temperature": 1.0, "ignore_eos": True}
            return number, await client.generate(asked[number], params, deadline=600)

        started = time.monotonic()
        calls = [asyncio.create_task(call(number)) for number in range(CALLS)]
        updating = asyncio.create_task(update_weights(client, done))
        await asyncio.sleep(5)
        away = await kill_and_restart(routed)
        results = await asyncio.gather(*calls)
        took = time.monotonic() - started
        done.set()
        said = await updating

        assert len(await client.control.workers()) == 2
        # The weights are always the same under new names, so one prefill of a whole turn confirms every logprob of
        # it, whichever worker and version sampled which part.
        interrupted = [(number, g) for number, g in results if g.continuations][:RESCORED]
        worst = 0.0
        for number, generation in interrupted:
            ids = asked[number] + list(generation.token_ids)
            second = await prefill_logprobs(routed.workers[1].url, ids, len(asked[number]))
            worst = max(worst, *(abs(a - b) for a, b in zip(generation.logprobs, second, strict=True)))

    generations = [generation for _, generation in results]
    tokens = sum(len(generation) for generation in generations)
    several = sum(len(generation.versions) > 1 for generation in generations)
    print(
        f"{CALLS} calls, {tokens} tokens in {took:.0f} s; worker away {away:.0f} s; {dict(said)}; "
        f"{sum(g.requests for g in generations)} requests, {sum(g.continuations for g in generations)} continuations, "
        f"{several} turns of several versions; rescored {len(interrupted)}, largest difference {worst:.1e}"
    )
    # Nothing lost, nothing twice, nothing short: each call its own turn of exactly its budget.
    assert [number for number, _ in results] == list(range(CALLS))
    assert [len(generation) for generation in generations] == wanted
    assert len({generation.rid for generation in generations}) == CALLS
    assert all(generation.finish_reason is FinishReason.LENGTH for generation in generations)
    assert all(generation.discarded_tokens == 0 for generation in generations)
    # The versions cover every token exactly, and only weights that existed are named.
    existed = {"default", None} | {f"update-{number}" for number in range(UPDATES)}
    for generation in generations:
        assert len(generation.versions_per_token()) == len(generation)
        assert generation.versions[0].start == 0 and generation.versions[-1].end == len(generation)
        assert all(a.end == b.start for a, b in zip(generation.versions, generation.versions[1:], strict=False))
        assert {span.version for span in generation.versions} <= existed | {str(w.port) for w in routed.workers}
    # And it really happened: updates took, turns were interrupted, requests were lost with the worker.
    assert said["updated"] >= UPDATES
    assert several > CALLS // 10
    assert sum(generation.requests - 1 - generation.continuations for generation in generations) > 0
    assert interrupted and worst <= 1e-3
