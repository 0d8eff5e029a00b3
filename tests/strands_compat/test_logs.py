"""A normal run logs no exceptions of the framework, however its episodes end; unexpected errors are still logged."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import pytest

from strands_sglang._strands_compat.logs import LOGGERS
from strands_sglang.runs import EndReason, Limits
from support.rollout.agent_kinds import KINDS, plain
from support.rollout.scripts import PromptEngine, run, steps

SEVERAL = [kind for kind in KINDS if kind.name in ("tools", "helper", "nested", "graph")]
LIMITS = {
    "turns": Limits(max_turns=1),
    "tool_calls": Limits(max_tool_calls=1),
    "max_new_tokens": Limits(max_new_tokens=5),
    "max_episode_tokens": Limits(max_episode_tokens=30),
    "context": Limits(max_context_tokens=300),
}


def of_the_framework(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name.startswith("strands.") and one.levelno >= 30]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("kind", SEVERAL, ids=str)
async def test_a_reached_limit_logs_no_error(kind: Any, limits: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        (episode,) = await run(kind.build, ["go"], kind.engine(), limits=LIMITS[limits])
    assert episode.failure is None and not of_the_framework(caplog)


async def test_a_stopped_episode_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for kind in SEVERAL:
            engine = kind.engine()
            engine.delay = 0.02
            tasks = [f"go {number}" for number in range(4)]
            await run(kind.build, tasks, engine, samples_per_task=3, min_samples_per_task=1, stop_after_groups=2)
    assert not of_the_framework(caplog)


def test_canary_the_loggers_are_those_of_modules() -> None:
    for name in LOGGERS:
        try:
            logger = importlib.import_module(name).logger
        except (ImportError, AttributeError):
            logger = None
        assert isinstance(logger, logging.Logger) and logger.name == name, (
            f"{name} is no module of the SDK with a logger any more: find where its errors are logged now, and name "
            "that module in LOGGERS of _strands_compat/logs.py"
        )


async def test_unexpected_errors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    def build(task: Any, model: Any) -> Any:
        agent = plain(model)

        def raising(event: Any) -> None:
            raise ZeroDivisionError("a mistake of the user's")

        from strands.hooks import BeforeToolCallEvent

        agent.hooks.add_callback(BeforeToolCallEvent, raising)
        return agent

    with caplog.at_level(logging.INFO):
        (episode,) = await run(build, ["go"], PromptEngine(steps(1)))
    assert episode.end_reason is EndReason.AGENT_ERROR or of_the_framework(caplog)


async def test_at_debug_level_nothing_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    graph = next(kind for kind in SEVERAL if kind.name == "graph")
    with caplog.at_level(logging.DEBUG, "strands"):
        await run(graph.build, ["go"], graph.engine(), limits=LIMITS["turns"])
    assert of_the_framework(caplog)
