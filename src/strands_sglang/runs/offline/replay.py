"""Runs recorded episodes again without an engine and compares the result with the record: `replay`.

The agent is built and run with the current code; engine and tools are answered from the record.

Invariant: nothing is sampled and no recorded tool is run. A verdict of IDENTICAL means equal trajectories. The token of
a `PromptDifference` is the first that differs; its cause is inferred from the recorded conversation and the current
agent, and without these it names only the part of the prompt. Finding a difference never raises.
"""

from __future__ import annotations

import asyncio
import logging
import re
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from strands_sglang._async import LoopThrottle
from strands_sglang.chat.canonical import canonical
from strands_sglang.engine import Capability, Generation
from strands_sglang.errors import ConfigurationError, DivergedError
from strands_sglang.gateway.process import Gateways
from strands_sglang.ledger.event import CallArrays, CallData, EndData, Event, EventKind, arrays_of, data_of
from strands_sglang.ledger.messages import read_conversations
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.runs.agent_runner import EpisodeRun, quiet_logs
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.recording.other_models import made_models
from strands_sglang.runs.recording.recorder import EpisodeRecorder
from strands_sglang.runs.recording.replay_log import ReplayLog
from strands_sglang.runs.resume import task_of
from strands_sglang.runs.workers.process_tuning import infrequent_gc, threads_for, tool_threads
from strands_sglang.runs.workers.spec import RunSpec
from strands_sglang.tokens import Trajectory

logger = logging.getLogger(__name__)

_BEFORE, _AFTER = 12, 24  # tokens shown before the first difference, and from it on


@dataclass(frozen=True, slots=True)
class PromptDifference:
    """The first difference between a recorded prompt and the prompt of the current agent."""

    event: int
    token: int
    """Index of the first token that differs, from 0."""
    before: str
    recorded: str
    """Text of the recorded prompt from there on; "" if that prompt ends there."""
    now: str
    """Text of the current prompt from there on; "" if this prompt ends there."""
    cause: str

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as plain data."""
        return asdict(self)


def prompt_difference(
    record: EpisodeRecord,
    pending: Sequence[Event],
    prompt: array[int],
    decode: Callable[[Any], str],
    agent: Any,
) -> PromptDifference | None:
    """Return the difference between a prompt and the recorded prompt with the longest common prefix.

    Compares at most 32 calls of the `pending` events. None if no recorded prompt is left, or if it failed (logged).
    """
    try:
        calls = {data_of(call, CallData)["turn"]: call for call in record.calls}
        best: tuple[int, Event, array[int]] | None = None
        for event in [one for one in pending if one.kind is EventKind.CALL][:32]:
            recorded_prompt = _prompt(event, calls)
            common = _common(recorded_prompt, prompt)
            if best is None or common > best[0]:
                best = common, event, recorded_prompt
        if best is None:
            return None
        at, event, recorded_prompt = best
        return PromptDifference(
            event=event.number,
            token=at,
            before=decode(prompt[max(0, at - _BEFORE) : at]),
            recorded=decode(recorded_prompt[at : at + _AFTER]),
            now=decode(prompt[at : at + _AFTER]),
            cause=_cause(record, event, calls, agent, at),
        )
    except Exception:
        logger.warning("episode=<%s> | prompts could not be compared", record.id, exc_info=True)
        return None


def _prompt(event: Event, calls: Mapping[int, Event]) -> array[int]:
    """Return the prompt of a recorded call: the branch of its parent, its closing tokens and its context."""
    *earlier, last = (arrays_of(call, CallArrays) for call in _branch(event, calls))
    whole = array("i")
    for arrays in earlier:
        whole += arrays["closing"] + arrays["context"] + arrays["sampled"]
    return whole + last["closing"] + last["context"]


def _branch(event: Event, calls: Mapping[int, Event]) -> list[Event]:
    """Return the calls of the branch that ends with a call, first to last."""
    branch = [event]
    while (parent := data_of(branch[-1], CallData)["parent"]) is not None:
        branch.append(calls[parent])
    return branch[::-1]


def _common(left: array[int], right: array[int]) -> int:
    count = min(len(left), len(right))
    differs = np.flatnonzero(np.asarray(left[:count]) != np.asarray(right[:count]))
    return int(differs[0]) if len(differs) else count


def _cause(record: EpisodeRecord, event: Event, calls: Mapping[int, Event], agent: Any, at: int) -> str:
    turn, count = _recorded_conversation(record, event, calls)
    if turn is None or not hasattr(agent, "messages"):
        arrays = arrays_of(_branch(event, calls)[0], CallArrays)
        if at < len(arrays["context"]) + len(arrays["closing"]):
            return "something in the first prompt was changed: the system prompt, the tools or the user's message"
        return "something after the first turn was changed: a message or a tool result"
    system = getattr(agent, "system_prompt", None) or None
    if (turn.get("system") or None) != (None if system is None else str(system)):
        return "the system prompt was changed"
    changed = _tools(turn.get("tools") or (), agent.tool_registry.get_all_tool_specs())
    if changed is not None:
        return changed
    recorded_messages, now = turn["messages"][:count], list(agent.messages)
    for number in range(max(len(recorded_messages), min(len(now), len(recorded_messages) + 1))):
        if number >= len(recorded_messages):
            return f"message {number} ({_kind(now[number])}) was added"
        if number >= len(now):
            return f"message {number} ({_kind(recorded_messages[number])}) was removed"
        if canonical(recorded_messages[number]) != canonical(now[number]):
            return f"message {number} ({_kind(recorded_messages[number])}) was edited"
    return "the conversation is the same: the chat template, the tokenizer or a model option was changed"


def _recorded_conversation(
    record: EpisodeRecord, event: Event, calls: Mapping[int, Event]
) -> tuple[dict[str, Any] | None, int | None]:
    """Return the recorded conversation of a call and the number of its messages that were sent; None: not recorded."""
    end = record.end
    for one in read_conversations({} if end is None else end.data):
        last = calls.get(one.get("branch", -1))
        path = [] if last is None else [data_of(call, CallData)["turn"] for call in _branch(last, calls)]
        if (id := data_of(event, CallData)["turn"]) in path:
            counts = one.get("counts") or []
            place = path.index(id)
            count = counts[place] if place < len(counts) else None
            return one, count if count is not None or place < len(path) - 1 else len(one["messages"])
    return None, None


def _tools(recorded: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> str | None:
    old, new = ({one["name"]: one for one in specs} for specs in (recorded, now))
    added, removed = [name for name in new if name not in old], [name for name in old if name not in new]
    if added or removed:
        changes = [f"{name!r} was added" for name in added] + [f"{name!r} was removed" for name in removed]
        return "the tools were changed: " + ", ".join(changes[:6])
    for name in old:
        fields = {*old[name], *new[name]}
        if other := sorted(field for field in fields if old[name].get(field) != new[name].get(field)):
            return f"the tools were changed: {', '.join(other)} of {name!r}"
    return "the tools were changed: their order" if list(old) != list(new) else None


def _kind(message: Mapping[str, Any]) -> str:
    blocks = message.get("content") or ()
    if any("toolResult" in block for block in blocks):
        return "a tool result"
    return "the model's reply" if message.get("role") == "assistant" else "the user's message"


_POLL_SECONDS = 0.1  # between two checks of an agent that may never end
_MAX_IDLE_POLLS = 10  # checks without a turn or a tool call after which it is taken to never end


class ReplayVerdict(str, Enum):
    """The result of a replay."""

    IDENTICAL = "identical"
    """The trajectories are the same, byte for byte; for an episode without a recorded end, the turns are the same."""
    DIVERGED = "diverged"
    """The agent did something else than recorded."""
    DIFFERENT = "different"
    """The agent did the same, but its trajectories differ: some turns were discarded in only one of the two runs."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of replaying one episode."""

    id: str
    verdict: ReplayVerdict
    event: int | None = None
    """Number of the first recorded event that was not repeated; None if all were repeated."""
    message: str = ""
    """How the agent differed; "" if it did not."""
    trajectories: tuple[Trajectory, ...] = field(default=(), repr=False)
    difference: PromptDifference | None = None
    """Where its prompt differs from the recorded one; None if the prompts did not differ."""

    @property
    def why(self) -> str:
        """How the agent differed, without the id and numbers of this episode, so that equal causes have equal texts."""
        if self.difference is not None:
            return f"the agent sends another prompt: {self.difference.cause}"
        return re.sub(r"\d+", "...", self.message.removeprefix(f"episode {self.id} diverges from its record at "))


class NoEngine:
    """The engine of a replay; every call raises."""

    # Recorded answers may have what these ask for.
    capabilities = frozenset({Capability.KEPT_SETS, Capability.IMAGES, Capability.ROUTED_EXPERTS, Capability.ADAPTERS})

    async def generate(self, *args: Any, **kwargs: Any) -> Generation:
        """Raise DivergedError."""
        raise DivergedError("a replay must not call an engine")


async def replay(
    build: Callable[..., Any],
    directory: str | Path,
    *,
    tokenizer: Any,
    limits: Limits | None = None,
    episodes: Collection[str] | None = None,
    concurrency: int = 64,
    models: Mapping[str, Any] | None = None,
    **model_options: Any,
) -> list[ReplayResult]:
    """Run recorded episodes again without an engine, and compare them with their records.

    The SDK is left as it is: replay episodes of more than about 300 turns inside `fast_agents`.

    Args:
        build: The function that was passed to `rollout`, with the current code.
        tokenizer: As it was passed to `rollout`, like the limits and model options.
        episodes: Ids of the episodes to replay; None: all. ConfigurationError if one is not in the ledger.
        concurrency: Number of episodes that run at the same time.
        models: As they were passed to `rollout`, for agents that read their settings; they are not asked. None: there
            is one of every name, which has only its recorded answers.

    Returns:
        One result per episode, in the order of the ledger.

    Example:
        >>> results = await replay(build, "runs/first", tokenizer="Qwen/Qwen3-8B")
        >>> assert all(result.verdict is ReplayVerdict.IDENTICAL for result in results)
    """
    run_spec = RunSpec(build, None, tokenizer, NoEngine(), limits or Limits(), dict(model_options))
    model, loop_throttle, gate = run_spec.model(), LoopThrottle(), asyncio.Semaphore(concurrency)
    others = None if models is None else made_models(models)
    under_way: list[asyncio.Task[ReplayResult]] = []
    gateways = Gateways()
    quiet_logs()

    async def one(record: EpisodeRecord) -> ReplayResult:
        async with gate:
            replay_log = ReplayLog(record, replay_trailing_errors=True)
            recorder = EpisodeRecorder(
                run_spec.client,
                record.id,
                replay_log=replay_log,
                replays=True,
                loop_throttle=loop_throttle,
            )
            recorder.template_time = record.template_time
            episode_run = EpisodeRun(record.id, task_of(record), recorder)
            # The time limits of the recording do not apply: an episode that ended by one ends with its record.
            untimed = replace(run_spec.limits, tool_timeout=None, episode_timeout=None)
            work = asyncio.ensure_future(episode_run.run(build, model, untimed, frozenset(), gateways, others))
            try:
                await _wait_until_ended(work, record, recorder)
            finally:
                work.cancel()
                await recorder.opened.close()  # a client that `build` connects itself
            return compare(record, episode_run, replay_log, model.planner.bridge.encoder.decode)

    try:
        with tool_threads(threads_for(concurrency)), infrequent_gc():
            for record in Ledger(Path(directory)).episodes():
                if record.begin is not None and (episodes is None or record.id in episodes):
                    under_way.append(asyncio.ensure_future(one(record)))
                    await asyncio.sleep(0)
            replayed = list(await asyncio.gather(*under_way))
    finally:
        for task in under_way:
            task.cancel()
        await gateways.close()
    missing = sorted(set(episodes or ()) - {one.id for one in replayed})
    if missing:
        raise ConfigurationError(f"episodes must be ids of the ledger in {directory}, got {', '.join(missing[:10])}")
    return replayed


async def _wait_until_ended(work: asyncio.Task[Any], record: EpisodeRecord, recorder: EpisodeRecorder) -> None:
    """Wait until a replayed agent has ended. One that was interrupted when recorded may never end by itself."""
    interrupted = record.end is None or EndReason(data_of(record.end, EndData)["end_reason"]) in (
        EndReason.TIMEOUT,
        EndReason.NOT_NEEDED,
    )
    last, idle = (-1, -1), 0
    while not work.done() and idle < _MAX_IDLE_POLLS:
        await asyncio.wait({work}, timeout=_POLL_SECONDS if interrupted else None)
        now = (recorder.turns, recorder.metrics.tool_calls)
        idle = idle + 1 if now == last and not len(recorder.replay_log) else 0
        last = now


def compare(
    record: EpisodeRecord, episode_run: EpisodeRun, replay_log: ReplayLog, decode: Callable[[Any], str]
) -> ReplayResult:
    """Compare a replayed episode with its record; `replay_log` has the recorded answers that were not returned."""
    trajectories = tuple(episode_run.tokens.trajectories())
    diverged = episode_run.recorder.diverged
    if diverged is not None:
        other, message = episode_run.recorder.unexpected_prompt, str(diverged)
        differs = None if other is None else prompt_difference(record, *other, decode, episode_run.agent)
        if differs is not None:
            message += f" ({differs.cause}; from token {differs.token} on)"
        return ReplayResult(record.id, ReplayVerdict.DIVERGED, diverged.event, message, trajectories, differs)
    if len(replay_log):
        missed = replay_log.next_event
        message = f"the agent ended before event {missed}, but the recorded agent continued"
        return ReplayResult(record.id, ReplayVerdict.DIVERGED, missed, message, trajectories)
    # Without an end event, the record does not contain which turns were discarded.
    if record.end is not None and list(trajectories) != record.tree().trajectories():
        return ReplayResult(
            record.id, ReplayVerdict.DIFFERENT, message="other turns were discarded", trajectories=trajectories
        )
    return ReplayResult(record.id, ReplayVerdict.IDENTICAL, trajectories=trajectories)
