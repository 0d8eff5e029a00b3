"""Tools of an episode, watched: bounded in time, written down, or answered from the record.

It is a middleware of the framework, on every agent that makes a turn in a watched episode: hooks of the user's run
around it as they always do, and run again when an episode is resumed.

Invariant: the agent sees a tool's result only when it is written down, and a result on record as it is there. A tool
inside of which turns were made is run again, because its turns belong to the episode too; any other is not. Once a
call has its result, nothing that still runs of it makes turns.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from strands.middleware import ExecuteToolStage, ToolResultEvent

from strands_sglang.errors import EngineUnreachableError
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.rollout.clock import in_time
from strands_sglang.rollout.journal import Journal, within
from strands_sglang.rollout.tool_result import (
    Outcome,
    ToolArguments,
    arguments_digest,
    from_record,
    place_of,
    plain_arguments,
    to_record,
)

watch_of: ContextVar[ToolWatch | None] = ContextVar("strands_sglang_tool_watch", default=None)
"""Who watches the tools of this context's episode; None: nobody."""

_watched: weakref.WeakSet[Any] = weakref.WeakSet()

_MOMENT = 0.1  # seconds that a tool which is over has to let go
_LOOK_AGAIN = 0.005


@dataclass(slots=True)
class ToolWatch:
    """Watches the tools of one episode."""

    journal: Journal
    """Where results are written, and come from."""
    seconds: float | None = None
    """Seconds one call may take; None: no bound."""
    rerun: frozenset[str] = frozenset()
    """Tools that are run again when an episode is resumed, because they keep a state of their own. The agent is given
    the result on record all the same."""

    async def run(self, context: Any, next_fn: Callable[[Any], AsyncGenerator[Any, None]]) -> AsyncGenerator[Any, None]:
        """Run a tool call, or answer it from the record; the last event is its result."""
        call, journal = context.tool_use, self.journal
        call_id, name = str(call.get("toolUseId")), str(call.get("name"))
        arguments = arguments_digest(call.get("input"))
        known = journal.recorded.result(call_id, name, arguments)
        refused = known is not None and known.data["outcome"] == Outcome.REFUSED.value
        why = None if refused else journal.begin_tool(known=known is not None)
        if why is not None:
            result = ToolResultEvent(_error(call_id, why))
            self._write(call, name, arguments, Outcome.REFUSED, result, 0.0)
            yield result
            return
        if known is not None and not known.data["calls"] and known.data["result"] is not None:
            if name in self.rerun and not refused:
                await self._bounded(context, next_fn, call_id, known)
            journal.metrics.tool_seconds += known.data["seconds"]
            yield self._counted(known.data["outcome"], from_record(known, call_id))
            return
        if known is None and journal.replays and not journal.recorded.within(call_id):
            # It had not ended when the episode was cut: there is nothing to show, and nothing to be run again.
            yield ToolResultEvent(_error(call_id, "the record of this episode ends before this result"))
            return
        began = time.monotonic()
        try:
            outcome, events = await self._bounded(context, next_fn, call_id, known)
        finally:
            journal.metrics.tool_seconds += (seconds := time.monotonic() - began)
        await journal.breathe()
        if call_id in journal.refused:
            await journal.go_ahead()
        if (error := journal.lost.inside_of(call_id)) is not None:
            if not journal.replays:
                await journal.abandon(error)
            yield ToolResultEvent(_error(call_id, f"there is no result: the engine failed inside of it, {error}"))
            return
        last: ToolResultEvent | None = None
        for event in events:
            if isinstance(event, ToolResultEvent):
                last = event
            else:
                yield event
        if last is None:
            return  # interrupted: there is no result yet
        if outcome is Outcome.RESULT and last.exception is not None:
            outcome = Outcome.RAISED
        if known is None or journal.diverged is not None:
            self._write(call, name, arguments, outcome, last, seconds)
        elif known.data["result"] is not None:
            outcome, last = Outcome(known.data["outcome"]), from_record(known, call_id)
        yield self._counted(outcome.value, last)

    async def _bounded(
        self, context: Any, next_fn: Callable[[Any], AsyncGenerator[Any, None]], call_id: str, known: Event | None
    ) -> tuple[Outcome, list[Any]]:
        """Run a tool, no longer than it may take; return how it ended, and its events."""
        await self.journal.go_ahead()
        # In a task of its own, so that it alone sees what it is inside of, and can be left behind.
        events: list[Any] = []

        async def consume() -> None:
            within.set((*within.get(), call_id))
            try:
                async for event in next_fn(context):
                    events.append(event)
            except SystemExit as error:  # else it would end the event loop, and every episode with it
                events.append(_raised(call_id, error))

        self.journal.opened(call_id, settled=known is not None)
        task = asyncio.ensure_future(consume())
        try:
            if known is not None and known.data["outcome"] == Outcome.TIMEOUT.value:
                await self._made(task, call_id, known.data["calls"])
            else:
                with self.journal.timed(call_id) as clock:
                    await in_time({task}, clock, self.seconds, self.journal.alive)
            ended = task.done()
        except EngineUnreachableError as error:
            await self.journal.abandon(error)
        finally:
            self.journal.ended(call_id)
            if not task.done():
                await _ended(task, next_fn)
        if not ended:
            limit = "in time" if self.seconds is None else f"within {self.seconds:g} seconds"
            text = f"{context.tool_use.get('name')} did not answer {limit}"
            return Outcome.TIMEOUT, [ToolResultEvent(_error(call_id, text))]
        if task.cancelled():  # by the tool itself: we were not
            return Outcome.RESULT, [_raised(call_id, asyncio.CancelledError())]
        task.result()
        return Outcome.RESULT, events

    async def _made(self, task: asyncio.Task[None], call_id: str, calls: int) -> None:
        """Wait until a tool that took too long when it was recorded has made the turns that it made then."""
        journal = self.journal
        while not task.done() and journal.calls_within.get(call_id, 0) < calls and journal.diverged is None:
            await asyncio.wait({task}, timeout=_LOOK_AGAIN)
        await asyncio.wait({task}, timeout=_MOMENT if journal.diverged is None else self.seconds)

    def _write(
        self, call: Any, name: str, arguments: str, outcome: Outcome, last: ToolResultEvent, seconds: float
    ) -> None:
        call_id = str(call.get("toolUseId"))
        kept = self.journal.tool_arguments is ToolArguments.RECORD
        given = plain_arguments(call.get("input")) if kept else None
        self.journal.write(
            EventKind.TOOL,
            {
                "id": call_id,
                "name": name,
                "input": arguments,
                "arguments": given,
                "result": to_record(last),
                "outcome": outcome.value,
                "raised": None if last.exception is None else f"{type(last.exception).__name__}: {last.exception}",
                "raised_at": place_of(last.exception),
                "seconds": round(seconds, 4),
                "calls": self.journal.calls_within.get(call_id, 0),
                "within": list(within.get()),
            },
        )

    def _counted(self, outcome: str, result: ToolResultEvent) -> ToolResultEvent:
        metrics = self.journal.metrics
        metrics.tool_timeouts += outcome == Outcome.TIMEOUT.value
        metrics.tool_errors += result.tool_result.get("status") == "error"
        return result


def watch_tools(agent: Any) -> None:
    """Have an agent's tools watched by whoever watches the episode they are run in; once for each agent."""
    if agent not in _watched:
        _watched.add(agent)
        agent.add_middleware(ExecuteToolStage, _middleware)


async def _middleware(context: Any, next_fn: Callable[[Any], AsyncGenerator[Any, None]]) -> AsyncGenerator[Any, None]:
    watch = watch_of.get()
    async for event in next_fn(context) if watch is None else watch.run(context, next_fn):
        yield event


async def _ended(task: asyncio.Task[None], next_fn: Any) -> None:
    """Cancel a tool, and give it a moment to end. One that does not listen is left behind."""
    task.cancel()
    await asyncio.wait({task}, timeout=_MOMENT)
    if task.done():
        _forget(task)
        return
    task.add_done_callback(_forget)
    # The framework closes the generators it gave out, and takes one that still runs for an error of the tool's.
    for cell in getattr(next_fn, "__closure__", None) or ():
        if isinstance(cell.cell_contents, list):
            cell.cell_contents.clear()


def _forget(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _raised(call_id: str, error: BaseException) -> ToolResultEvent:
    """Return the result of a tool that fell with an error the framework does not catch."""
    words = f"{type(error).__name__} - {error}".rstrip("- ")
    return ToolResultEvent(
        _error(call_id, f"Error: {words}"), exception=RuntimeError(words).with_traceback(error.__traceback__)
    )


def _error(call_id: str, text: str) -> Any:
    return {"toolUseId": call_id, "status": "error", "content": [{"text": text}]}
