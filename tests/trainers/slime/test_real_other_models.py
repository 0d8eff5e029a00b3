"""slime's own `generate_rollout` with other models in its episodes: a simulated user, whom the reward asks too."""

from __future__ import annotations

from typing import Any

import pytest
from strands import Agent

from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.reader import Ledger
from strands_sglang.proof.finding import Verdict
from strands_sglang.proof.verify import verify
from strands_sglang.trainers.slime import slime_rollout
from support.lab_servers import Routed
from support.trainers.slime_checks import check_witnessed, checked_step
from support.trainers.slime_world import SlimeWorld
from support.user_simulation import ROUNDS, SETTINGS, build, user_on

pytestmark = [pytest.mark.slime, pytest.mark.engine]


async def judged(episode: Any, models: Any) -> float:
    verdict = await Agent(model=models["user"], callback_handler=None).invoke_async(f"Compute 1 + {episode.sample}.")
    return float(len(str(verdict)))


def test_user_is_in_the_samples_and_not_trained(world: SlimeWorld, routed: Routed) -> None:
    folder, rollouts = world.folder / "run", 4
    generate = slime_rollout(
        build,
        reward=judged,
        models={"user": user_on(routed.workers[0].url, "sglang")},
        limits=SETTINGS["limits"],
        directory=folder,
    )
    world.configure(generate, "--rollout-max-response-len", 900, groups=2, samples=2)
    batch = checked_step(world, rollouts=rollouts)
    made = world.wire.generates  # of the policy: the user is asked past the wire
    used = check_witnessed(batch.samples, made)
    assert sum(used.values()) == sum(len(one.sampled) for one in made), "all that the policy sampled, and nothing else"
    assert all(reward > 0 for reward in batch.train["raw_reward"])
    for sample in batch.samples:
        assert sample.response.count("<|im_start|>user\nCompute") == ROUNDS - 1, "the words of the user are in it"
    (run,) = folder.iterdir()
    certificate = verify(run)
    assert certificate.episodes == {Verdict.PROVED: rollouts}, certificate.text()
    assert certificate.other_models == {"user": rollouts * (ROUNDS + 1)}
    assert certificate.tokens.trained == sum(sum(mask) for mask in batch.train["loss_masks"]) == sum(used.values())
    for record in Ledger(run).episodes():
        said = [str(event.data["answer"]) for event in record.events if event.kind is EventKind.MODEL]
        assert len(said) == ROUNDS + 1 and all(said)
