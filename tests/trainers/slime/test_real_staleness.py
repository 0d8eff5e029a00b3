"""slime's own `generate_rollout` with a limit of staleness: the weights are updated while a tool of an episode works.

The weights stay what they are; their versions change.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from strands import tool

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.ledger.reader import Ledger
from strands_sglang.proof.finding import Verdict
from strands_sglang.proof.verify import verify
from strands_sglang.runs import MaxStaleness, Task
from strands_sglang.trainers.slime import slime_rollout
from support.lab_servers import Routed, task
from support.rollout_agent import TOKENIZER, agent_for, calculator, score
from support.trainers.slime_checks import check_witnessed, checked_step
from support.trainers.slime_world import SlimeWorld

pytestmark = [pytest.mark.slime, pytest.mark.engine]

LIMIT = 1
DECIDED = {"drop": "dropped", "retry": "retried", "mask": "masked"}


@pytest.fixture
def weights(routed: Routed) -> Iterator[SGLangClient]:
    """A client of the two workers, whose weights have the version of their start before and after a test."""
    client = SGLangClient(routed.url)
    asyncio.run(update(client, "default"))
    yield client
    asyncio.run(update(client, "default"))


async def update(client: SGLangClient, version: str) -> None:
    async with SGLangClient(client.base_url) as own:
        results = await own.control.swap_weights(TOKENIZER, version=version)
    assert len(results) == 2 and all(result.ok for result in results), results


@pytest.mark.parametrize("action", DECIDED)
def test_old_tokens_are_not_trained(action: str, world: SlimeWorld, weights: SGLangClient) -> None:
    """The first tool call updates the weights twice; what was sampled before is too old. A second step has no such."""
    updated = asyncio.Event()

    def waiting(given: Task, model: SGLangModel) -> Any:
        @tool(name="calculator", description=calculator.tool_spec["description"])
        async def updating(expression: str) -> str:
            if not updated.is_set():
                updated.set()
                for version in ("1", "2"):
                    await update(weights, version)
            return task.calculate(expression)

        return agent_for(model, tools=[updating])

    folder, trained, old = world.folder / "run", 0, 0
    rule = MaxStaleness(LIMIT, action)
    world.configure(slime_rollout(waiting, reward=score, max_staleness=rule, directory=folder), groups=2)
    for step in range(2):
        before = len(world.wire.generates)
        batch = checked_step(world, rollouts=8, number=step)
        made = world.wire.generates[before:]
        (run,) = folder.iterdir()
        certificate = verify(run)
        decided = {record.id: record.staleness for record in Ledger(run).episodes()}
        assert certificate.episodes == {Verdict.PROVED: len(decided)}, certificate.text()
        counted = Counter(str(event.data["decision"]) for event in decided.values() if event is not None)
        assert counted == certificate.staleness and sum(counted.values()) == len(decided)
        trained += sum(sum(mask) for mask in batch.train["loss_masks"])
        removed = [sample.metadata["strands_sglang"]["removed"] for sample in batch.samples]
        print(f"slime, {action}, step {step}: {dict(counted)}, {trained} tokens trained, removed {removed}")
        assert trained == certificate.tokens.trained and certificate.tokens.stale > 0
        if action != "mask" or step:  # a turn may be masked in part
            used = check_witnessed(batch.samples, made)
        if step == 0:
            old = counted[DECIDED[action]]
            assert old > 0 and (action == "mask" or removed.count("stale") == counted["dropped"])
        else:
            assert counted[DECIDED[action]] == old and not any(removed)
            assert sum(used.values()) == sum(len(one.sampled) for one in made)
            assert {version for sample in batch.samples for version in sample.weight_versions} == {"2"}
