"""Finishes an episode that has ended or is paused (`EpisodeFinalizer`), and calls the reward function (`RewardRunner`).

Invariant: an episode is returned only after its end is in the ledger. A paused episode has no end in the ledger; it has
the record it is resumed from. A reward function that raises, blocks or returns an invalid value gives a reward with an
error; it neither crashes nor blocks the run.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, cast

from strands.models import Model

from strands_sglang._json import dump_text
from strands_sglang._terminal import counted
from strands_sglang.engine import RoutedExperts
from strands_sglang.errors import ConfigurationError, CountMismatchError
from strands_sglang.ledger.encoding import HashChain, decoded, trajectory_summary
from strands_sglang.ledger.event import (
    EndData,
    EventKind,
    FailureData,
    RewardData,
    RollbackCause,
    RollbackData,
)
from strands_sglang.ledger.files import Put, with_references
from strands_sglang.ledger.fingerprint import earlier_of, stated_for_turns
from strands_sglang.ledger.messages import messages_data
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.provider.episode import conversations
from strands_sglang.runs.agent_runner import AgentOutcome, EpisodeRun
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode
from strands_sglang.runs.recording.other_models import OtherModels, takes_models
from strands_sglang.runs.recording.recorder import EpisodeRecorder
from strands_sglang.runs.recording.replay_log import ReplayLog
from strands_sglang.runs.resume import restored
from strands_sglang.runs.reward import Reward, describe_error, own_turns
from strands_sglang.runs.workers.spec import EpisodeSpec
from strands_sglang.tokens import TokenTree

_GRACE = 1.0  # seconds that an async function has to finish after it is cancelled


class RewardRunner:
    """Scores episodes with one reward function. It belongs to the event loop that uses it first."""

    def __init__(self, function: Callable[..., Any], *, timeout: float | None = None, threads: int = 16) -> None:
        """Validate the signature of the function; ConfigurationError unless it takes one or two arguments.

        Args:
            function: Takes the episode, or the task and the episode, and perhaps `models`. An async function is awaited
                on the event loop; any other runs in a thread, because it may block.
            timeout: Seconds one call may take; None: no limit. The thread of a function that exceeds it cannot be
                stopped; it keeps running, its result is discarded, and it no longer counts towards `threads`.
            threads: Number of calls that may run in threads at the same time.
        """
        self._function, self._timeout = function, timeout
        self._takes_task, self._takes_models = _takes_task(function), takes_models(function)
        self._is_async = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
        self._slots = asyncio.Semaphore(threads)

    async def score(self, episode: Episode, models: OtherModels | None = None) -> Reward:
        """Return the reward of an episode. Raises nothing but cancellation and KeyboardInterrupt.

        `models` are the other models that it may ask, until it has answered; None: there are none.
        """
        given = {"models": {} if models is None else models} if self._takes_models else {}
        try:
            if self._is_async:
                return await self._with_timeout(self._on_loop(episode, given))
            async with self._slots:
                return await self._with_timeout(self._in_thread(episode, given))
        finally:
            if models is not None:
                models.close()

    def _call(self, episode: Episode, given: Mapping[str, Any]) -> Any:
        """Call the function; an error it raises is returned as a `Reward` with an error."""
        try:
            arguments = (episode.task, episode) if self._takes_task else (episode,)
            return self._function(*arguments, **given)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # `exit()` in a reward must not end the run
            return Reward(error=describe_error(error, self._function))

    async def _to_reward(self, result: Any, episode: Episode) -> Reward:
        try:
            reward = Reward.of(await result if inspect.isawaitable(result) else result)
            if reward.steps and len(reward.steps) != (turns := len(own_turns(episode.tree))):
                return Reward(
                    error=f"ValueError: steps must have one number for each of the agent's {counted(turns, 'turn')}, "
                    f"got {len(reward.steps)}"
                )
            return reward
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as error:
            return Reward(error=describe_error(error, self._function))

    async def _on_loop(self, episode: Episode, given: Mapping[str, Any]) -> Reward:
        return await self._to_reward(self._call(episode, given), episode)

    async def _in_thread(self, episode: Episode, given: Mapping[str, Any]) -> Reward:
        """Call the function in a new thread.

        Calls that never return would exhaust a pool, and a thread that is used again has the event loop and the other
        thread-local state that an earlier call left.
        """
        answer: Future[Any] = Future()
        answer.set_running_or_notify_cancel()  # it can no longer be cancelled: only the thread completes it
        context = contextvars.copy_context()

        def run() -> None:
            try:
                answer.set_result(context.run(self._call, episode, given))
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=run, name=f"reward-{episode.id}", daemon=True).start()
        return await self._to_reward(await asyncio.wrap_future(answer), episode)

    async def _with_timeout(self, work: Coroutine[Any, Any, Reward]) -> Reward:
        """Wait at most `timeout` seconds for a call; no task of it is left on the event loop."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=self._timeout)
            if not task.done():
                return Reward(error=f"TimeoutError: the reward took longer than {self._timeout:g} s")
            if task.cancelled():  # the function cancelled itself: this task was not cancelled
                return Reward(error="CancelledError: the reward cancelled itself")
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_GRACE)


def _takes_task(function: Callable[..., Any]) -> bool:
    if not callable(function):
        raise ConfigurationError(f"reward must be a function of the episode, got {function!r:.200}")
    try:
        parameters = [one for name, one in inspect.signature(function).parameters.items() if name != "models"]
    except (TypeError, ValueError):  # a function written in C has no signature
        return False
    needed = [
        one for one in parameters if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    placed = [one for one in parameters if one.kind is not one.KEYWORD_ONLY and one.kind is not one.VAR_KEYWORD]
    if not placed or len(needed) > 2 or any(one.kind is one.KEYWORD_ONLY for one in needed):
        raise ConfigurationError(f"reward must take (episode) or (task, episode), got {function!r:.200}")
    return len(needed) == 2


logger = logging.getLogger(__name__)

_AUDIT_SECONDS = 30.0  # to wait for the audit of an episode


def append_after_end(
    writer: LedgerWriter,
    record: EpisodeRecord,
    kind: EventKind,
    data: Any,
    arrays: Mapping[str, Any] | None = None,
) -> None:
    """Write an event (a kind of `AFTER_END`) after the end of a recorded episode."""
    _chain_after_end(writer, record).append(kind, data, arrays)


def _chain_after_end(writer: LedgerWriter, record: EpisodeRecord) -> HashChain:
    # No other process writes events of this episode any more, so the epoch stays the same.
    epoch = record.events[-1].epoch
    return HashChain(writer.write, record.id, epoch=epoch, number=record.next_number, head=record.head)


class EpisodeFinalizer:
    """Scores the episodes of one worker and writes their ends."""

    def __init__(
        self,
        scorer: RewardRunner | None,
        writer: LedgerWriter | None,
        fingerprint: Mapping[str, str],
        models: Mapping[str, Model] | None = None,
    ) -> None:
        """Create a finalizer.

        Args:
            scorer: Scores the episodes; None: they are not scored.
            writer: Writes events; None: nothing is written.
            fingerprint: The experiment.
            models: Other models, which the reward may ask; None: only their recorded answers are known.
        """
        self._scorer, self._writer, self._fingerprint, self._models = scorer, writer, dict(fingerprint), models

    async def episode(
        self,
        spec: EpisodeSpec,
        episode_run: EpisodeRun,
        outcome: AgentOutcome,
        seconds: float,
        *,
        recorded_tree: TokenTree | None = None,
        events: Sequence[bytes] = (),
    ) -> Episode:
        """Score an episode, write its end, and return it.

        Args:
            seconds: Duration of the run in seconds.
            recorded_tree: The recorded turns of an episode that was not run; None: the turns of `episode_run`.
            events: The events that were written in this run, encoded; needed if the episode is paused.
        """
        recorder = episode_run.recorder
        tree = episode_run.tree if recorded_tree is None else recorded_tree
        recorder.close()
        if recorded_tree is None:
            turn = episode_run.main_turn(outcome.answer)
            tree.main = turn if turn < len(tree) else -1
        tree.main = -1 if (end := tree.main_leaf()) is None else end.id
        paused = outcome.end_reason is EndReason.PAUSED
        resumable = paused or (recorded_tree is None and len(recorder.replay_log) > 0 and outcome.end_reason.failed)
        if recorded_tree is None and len(recorder.replay_log) and not resumable:
            reason = f"the episode ended ({outcome.end_reason.value}) before its recorded turns were replayed"
            event = recorder.replay_log.next_event
            rollback = RollbackData(turns=len(tree), cause=RollbackCause.DIVERGED.value, event=event, reason=reason)
            recorder.write(EventKind.ROLLBACK, rollback, ends=True)
        recorder.metrics.count(tree)
        recorder.metrics.seconds = seconds
        await _wait_for_audit(episode_run, recorder)
        episode = Episode(
            id=spec.id,
            task=spec.task,
            sample=spec.sample,
            end_reason=outcome.end_reason,
            source=tree,
            metrics=recorder.metrics,
            failure=outcome.failure,
            text=outcome.text
            or ("" if outcome.end_reason.complete or outcome.end_reason.failed else episode_run.last_text),
            conversation=episode_run.messages,
            epoch=spec.next_epoch,
            fingerprint=self._fingerprint,
            earlier_fingerprints=self._earlier(spec, None if recorded_tree is not None else recorder.earlier),
            earlier=dict(recorder.earlier) if spec.record is not None else {},
            routed_experts=_experts(episode_run, tree) if recorded_tree is None else {},
            images=_images(episode_run, spec, recorded_tree),
        )
        if self._scorer is not None and not outcome.end_reason.resumable:
            judges = OtherModels.of_episode(self._models, spec.id, recorder, scoring=True)
            episode.reward_detail = await self._scorer.score(episode, judges)
        recorder.ending = True
        episode.time = time.time()
        if not len(tree) and outcome.end_reason is EndReason.ANSWERED:
            logger.warning(
                "episode=<%s> | the agent made no turn: does it use the model that was passed to build?", spec.id
            )
        if paused:
            old = () if spec.record is None else spec.record.events
            new_events = (*old, *(decoded(event)[0] for event in events))
            episode.partial_turns = list(recorder.partial_turns)
            files = None if spec.record is None else spec.record.files
            record = episode.record = EpisodeRecord(spec.id, new_events, epoch=episode.epoch, files=files)
            # If it was paused again early, it has not replayed all its recorded turns.
            episode.source = record.tree()
            own = episode.images
            if isinstance(own, dict) and not own.keys() >= set(record.image_digests):
                episode.images = lambda: record.images(own)
            await self._flush()
        elif resumable:
            # The record is valid, and its end was not reached in this run: it is kept for the next one.
            logger.warning(
                "episode=<%s>, end_reason=<%s> | failed before its record was replayed",
                spec.id,
                outcome.end_reason.value,
            )
            episode.record = spec.record
        else:
            await self._write_end(recorder, episode, episode_run)
            episode.chain_end = recorder.chain_end
        return episode

    def _earlier(self, spec: EpisodeSpec, tokens: Mapping[int, int] | None) -> list[dict[str, str]]:
        """Return `Episode.earlier_fingerprints`; `tokens`: of each turn, those from the record; None: all are."""
        recorded = {} if spec.record is None else stated_for_turns(spec.record.events)
        kept = (stated for turn, stated in recorded.items() if tokens is None or tokens.get(turn))
        return earlier_of(self._fingerprint, kept)

    async def score(self, record: EpisodeRecord) -> Episode:
        """Score an episode whose end is recorded, write the reward after the end, and return the episode."""
        episode = restored(record)
        if self._scorer is None or episode.end_reason.resumable:
            return episode
        chain = None if self._writer is None else _chain_after_end(self._writer, record)
        episode.reward_detail = await self._scorer.score(
            episode,
            OtherModels(
                self._models,
                record.id,
                log=ReplayLog(record),
                write=lambda kind, data: chain.append(kind, data) if chain is not None else None,
                metrics=episode.metrics,
                put=None if self._writer is None else self._writer.put_file,
            ),
        )
        by = self._fingerprint.get("reward", "")
        episode.fingerprint = {**episode.fingerprint, "reward": by} if by else episode.fingerprint
        if chain is not None:
            reward: RewardData = {**episode.reward_detail.to_dict(), "time": time.time()}
            if by:
                reward["by"] = by
            chain.append(EventKind.REWARD, reward)
            episode.chain_end = (chain.epoch, chain.number, chain.head)
            await self._flush()
        return episode

    async def _write_end(self, recorder: EpisodeRecorder, episode: Episode, episode_run: EpisodeRun) -> None:
        if self._writer is None:
            return
        put = _put(recorder, episode_run)
        branches, text = list[dict[str, Any]](), "[]"
        if episode.source is episode_run.tokens.tree:
            branches, text = _conversations(episode_run, put)
        if episode.reward_detail != Reward():
            recorder.write(EventKind.REWARD, episode.reward_detail.to_dict())
        end: EndData = {
            "end_reason": episode.end_reason.value,
            "time": episode.time,
            "failure": None if episode.failure is None else cast(FailureData, asdict(episode.failure)),
            "metrics": episode.metrics.to_dict(),
            "text": episode.text,
            "conversations": text,
            "messages": messages_data(_stored(episode.messages, put), branches),
            "rejected": [turn.id for turn in episode.tree if turn.rejected],
            "trajectories": [trajectory_summary(trajectory) for trajectory in episode.trajectories],
            "main": -1 if episode.tree.main is None else episode.tree.main,
        }
        if (session := episode_run.session) is not None:
            if not episode.text.endswith(session.output):
                end["output"] = session.output
            if session.error_output:
                end["error_output"] = session.error_output
        recorder.write(EventKind.END, end)
        await self._flush()

    async def _flush(self) -> None:
        if self._writer is not None:
            await self._writer.flushed()


def _images(
    episode_run: EpisodeRun, spec: EpisodeSpec, recorded_tree: TokenTree | None
) -> dict[str, bytes] | Callable[[], dict[str, bytes]]:
    if recorded_tree is not None and spec.record is not None:
        return spec.record.images
    return {digest: file.png for digest, file in episode_run.tokens.images.items()}


def _put(recorder: EpisodeRecorder, episode_run: EpisodeRun) -> Put | None:
    """Return a function that stores files and reads the bytes of each object once; None: nothing is stored."""
    put_file = recorder.put_file
    if put_file is None:
        return None
    files = episode_run.tokens.images.values()
    known = {id(file.png): (file.png, file.digest) for file in files if file.digest in recorder.stored_images}

    def put(data: bytes) -> str:
        if id(data) not in known:
            known[id(data)] = (data, put_file(data))  # with the object, whose id is not used again while it lives
        return known[id(data)][1]

    return put


def _stored(messages: Sequence[Any], put: Put | None) -> list[Any]:
    """Return messages with references in place of the bytes in their blocks, also of images that were refused."""
    if put is None:
        return list(messages)
    return [
        {**message, "content": with_references(message["content"], put)}
        if isinstance(message, Mapping) and "content" in message
        else message
        for message in messages
    ]


def _conversations(episode_run: EpisodeRun, put: Put | None) -> tuple[list[dict[str, Any]], str]:
    """Return the conversation of each branch, as data and as JSON; empty if this fails, which is logged."""
    tokens = episode_run.tokens
    try:
        with tokens.lock:
            found = conversations(tokens.index, tokens.tree)
        branches = [{**one, "messages": _stored(one["messages"], put)} for one in found]
        return branches, dump_text(branches)
    except Exception:
        logger.exception("episode=<%s> | conversations could not be recorded", episode_run.id)
        return [], "[]"


async def _wait_for_audit(episode_run: EpisodeRun, recorder: EpisodeRecorder) -> None:
    tokens = episode_run.tokens
    if tokens.last_audit is not None:
        await asyncio.wait([asyncio.wrap_future(tokens.last_audit)], timeout=_AUDIT_SECONDS)
    recorder.metrics.audits, recorder.metrics.audit_differences = tokens.audits, tokens.audit_differences


def _experts(episode_run: EpisodeRun, tree: TokenTree) -> dict[int, RoutedExperts]:
    """Return the routed experts of each branch, by the id of its last turn; empty if none were requested."""
    found: dict[int, RoutedExperts] = {}
    for leaf in tree.branches():
        try:
            experts = episode_run.tokens.routed_experts(episode_run.tokens.tree[leaf.id])
        except CountMismatchError as error:
            logger.warning("episode=<%s>, branch=<%d> | routed experts are omitted: %s", episode_run.id, leaf.id, error)
            continue
        if experts is not None:
            found[leaf.id] = experts
    return found
