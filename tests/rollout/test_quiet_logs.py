"""A healthy run logs no exceptions of the framework's, however its episodes end; a mistake is still to be seen."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from rollout.kinds import KINDS, plain
from rollout.scripts import PromptEngine, run, steps
from strands_sglang.rollout import Ended, Limits

SEVERAL = [kind for kind in KINDS if kind.name in ("tools", "helper", "nested", "graph")]
LIMITS = {
    "turns": Limits(turns=1),
    "tool_calls": Limits(tool_calls=1),
    "tokens_per_turn": Limits(tokens_per_turn=5),
    "tokens_per_episode": Limits(tokens_per_episode=30),
    "context": Limits(context=300),
}


def of_the_framework(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name.startswith("strands.") and one.levelno >= 30]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("kind", SEVERAL, ids=str)
async def test_a_limit_is_no_error(kind: Any, limits: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        (episode,) = await run(kind.build, ["go"], kind.engine(), limits=LIMITS[limits])
    assert episode.failure is None and not of_the_framework(caplog)


async def test_what_is_cut_short_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for kind in SEVERAL:
            engine = kind.engine()
            engine.delay = 0.02
            tasks = [f"go {number}" for number in range(4)]
            await run(kind.build, tasks, engine, samples_per_task=3, enough_samples=1, enough_groups=2)
    assert not of_the_framework(caplog)


async def test_a_mistake_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    def build(task: Any, model: Any) -> Any:
        agent = plain(model)

        def raising(event: Any) -> None:
            raise ZeroDivisionError("a mistake of the user's")

        from strands.hooks import BeforeToolCallEvent

        agent.hooks.add_callback(BeforeToolCallEvent, raising)
        return agent

    with caplog.at_level(logging.INFO):
        (episode,) = await run(build, ["go"], PromptEngine(steps(1)))
    assert episode.ended is Ended.AGENT or of_the_framework(caplog)


async def test_at_debug_nothing_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    graph = next(kind for kind in SEVERAL if kind.name == "graph")
    with caplog.at_level(logging.DEBUG, "strands"):
        await run(graph.build, ["go"], graph.engine(), limits=LIMITS["turns"])
    assert of_the_framework(caplog)
