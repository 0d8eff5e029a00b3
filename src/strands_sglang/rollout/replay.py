"""`replay`: recorded episodes once more through the agent's code, without an engine.

The agent is built and driven as it was; engine and tools answer from the record. What comes out must be what is on
record, byte for byte. Where the agent's code has changed, this says from which event on it goes another way.

Invariant: nothing is sampled and no recorded tool is run. A verdict of IDENTICAL means equal trajectories.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

from strands_sglang.engine import Generation
from strands_sglang.errors import ConfigurationError, DivergedError
from strands_sglang.ledger.ledger import Ledger
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.rollout.bounds import Limits
from strands_sglang.rollout.collector import calm_collector
from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.job import Setup
from strands_sglang.rollout.journal import Journal
from strands_sglang.rollout.pace import Pace
from strands_sglang.rollout.play import Play
from strands_sglang.rollout.prompt_difference import PromptDifference, prompt_difference
from strands_sglang.rollout.quiet_logs import quiet_logs
from strands_sglang.rollout.recorded import Recorded
from strands_sglang.rollout.resume import task_of
from strands_sglang.rollout.scribe import Mode
from strands_sglang.rollout.telemetry import quiet_tracing
from strands_sglang.rollout.threads import tool_threads
from strands_sglang.tokens import Trajectory

_LOOK = 0.1  # seconds between two looks at an agent that may never end
_STILL = 10  # looks without a turn or a tool call after which it does not


class ReplayVerdict(str, Enum):
    """What a replay has shown."""

    IDENTICAL = "identical"
    """The same trajectories, byte for byte; of an episode without an end on record, the same turns."""
    DIVERGED = "diverged"
    """The agent did something else than what is on record."""
    DIFFERENT = "different"
    """The agent did the same, but its trajectories are others: some turns were thrown away only once."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One episode that was replayed."""

    id: str
    """Id of the episode."""
    verdict: ReplayVerdict
    """What came out."""
    event: int | None = None
    """Number of the first event on record that was not repeated; None where nothing was missed."""
    message: str = ""
    """What happened there."""
    trajectories: tuple[Trajectory, ...] = field(default=(), repr=False)
    """What the replayed agent made."""
    difference: PromptDifference | None = None
    """Where its prompt leaves the one on record; None where that is not what happened."""

    @property
    def why(self) -> str:
        """What happened, without the names and numbers of this episode: others it happened to have the same."""
        if self.difference is not None:
            return f"the agent asks for another prompt: {self.difference.cause}"
        return re.sub(r"\d+", "...", self.message.removeprefix(f"episode {self.id} diverges from its record at "))


class NoEngine:
    """The engine of a replay, which is never asked."""

    async def generate(self, *args: Any, **kwargs: Any) -> Generation:
        """Refuse."""
        return _refused()


def _refused() -> NoReturn:
    raise DivergedError("a replay asked an engine")


async def replay(
    build: Callable[..., Any],
    directory: str | Path,
    *,
    tokenizer: Any,
    limits: Limits | None = None,
    episodes: Collection[str] | None = None,
    concurrency: int = 64,
    **model_options: Any,
) -> list[Replayed]:
    """Run recorded episodes again without an engine, and compare.

    Args:
        build: As it was given to `rollout`.
        directory: The run's.
        tokenizer: As it was given to `rollout`.
        limits: As they were given to `rollout`.
        episodes: Ids of the episodes to replay; None: all.
        concurrency: Episodes at once.
        **model_options: As they were given to `rollout`.

    Returns:
        What came out, in the order of the ledger.

    Raises:
        ConfigurationError: No such episode.
    """
    setup = Setup(build, None, tokenizer, NoEngine(), limits or Limits(), dict(model_options))
    model, pace, gate = setup.model(), Pace(), asyncio.Semaphore(concurrency)
    under_way: list[asyncio.Task[Replayed]] = []
    quiet_logs()

    async def one(record: EpisodeRecord) -> Replayed:
        async with gate:
            recorded = Recorded(record, trailing_faults=True)
            journal = Journal(setup.client, record.id, recorded=recorded, mode=Mode.REPLAY, pace=pace)
            play = Play(record.id, task_of(record), journal)
            # Time passed differently when it was recorded: what ended an episode then ends its record, too.
            unhurried = replace(setup.limits, seconds_per_tool=None, seconds_per_episode=None)
            work = asyncio.ensure_future(play.act(build, model, unhurried, frozenset()))
            try:
                await _ended(work, record, journal)
            finally:
                work.cancel()
            return compared(record, play, recorded, model.planner.bridge.encoder.decode)

    try:
        with tool_threads(max(64, min(4 * concurrency, 1024))), quiet_tracing(), calm_collector():
            for record in Ledger(Path(directory)).episodes():
                if record.begin is not None and (episodes is None or record.id in episodes):
                    under_way.append(asyncio.ensure_future(one(record)))
                    await asyncio.sleep(0)
            replayed = list(await asyncio.gather(*under_way))
    finally:
        for task in under_way:
            task.cancel()
    missing = sorted(set(episodes or ()) - {one.id for one in replayed})
    if missing:
        raise ConfigurationError(f"not in {directory}: {', '.join(missing[:10])}")
    return replayed


async def _ended(work: asyncio.Task[Any], record: EpisodeRecord, journal: Journal) -> None:
    """Wait until a replayed agent has ended; one that was ended from outside then may never do so by itself."""
    interrupted = record.end is None or record.end.data["ended"] in (Ended.TIMEOUT.value, Ended.CUT_SHORT.value)
    last, still = (-1, -1), 0
    while not work.done() and still < _STILL:
        await asyncio.wait({work}, timeout=_LOOK if interrupted else None)
        now = (journal.turns, journal.metrics.tool_calls)
        still = still + 1 if now == last and not len(journal.recorded) else 0
        last = now


def compared(record: EpisodeRecord, play: Play, recorded: Recorded, decode: Callable[[Any], str]) -> Replayed:
    """Return what a replayed episode is, held against its record; `decode` makes text of ids."""
    trajectories = tuple(play.tokens.trajectories())
    diverged = play.journal.diverged
    if diverged is not None:
        other, message = play.journal.other_prompt, str(diverged)
        differs = None if other is None else prompt_difference(record, *other, decode, play.agent)
        if differs is not None:
            message += f" ({differs.cause}; from token {differs.token} on)"
        return Replayed(record.id, ReplayVerdict.DIVERGED, diverged.event, message, trajectories, differs)
    if len(recorded):
        missed = recorded.next_event
        message = f"the agent ended before event {missed}, where it went on when it was recorded"
        return Replayed(record.id, ReplayVerdict.DIVERGED, missed, message, trajectories)
    # Without an end, nothing on record says which turns were thrown away.
    if record.end is not None and list(trajectories) != record.tree().trajectories():
        return Replayed(
            record.id, ReplayVerdict.DIFFERENT, message="other turns were thrown away", trajectories=trajectories
        )
    return Replayed(record.id, ReplayVerdict.IDENTICAL, trajectories=trajectories)
