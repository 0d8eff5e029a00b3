"""Runs tool calls with a time limit and records them, or answers them from the record: `ToolRecorder`.

It is a tool middleware on every agent that makes a turn in an episode. The user's hooks run around it as usual, and run
again when an episode is resumed.

Invariant: the agent sees a tool's result only after it is recorded, and a recorded result unchanged. A tool that made
turns inside it is run again on resume, because its turns belong to the episode; no other tool is. Once a call has its
result, no part of it that still runs makes turns. A call of a tool that is unavailable has no result: the episode ends.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from strands.middleware import ToolResultEvent

from strands_sglang._strands_compat.middleware import Next, add_tool_middleware, leave_running
from strands_sglang.errors import EngineUnreachableError
from strands_sglang.ledger.event import Event, EventKind, ToolData
from strands_sglang.provider.tool_outage import on_tool_request, outage_in
from strands_sglang.runs.recording.clock import wait_in_time
from strands_sglang.runs.recording.event_data import (
    ToolArguments,
    ToolOutcome,
    arguments_digest,
    raise_location,
    rebuildable_data,
    result_data,
    result_of,
)
from strands_sglang.runs.recording.recorder import EpisodeRecorder, within

current_tool_recorder: ContextVar[ToolRecorder | None] = ContextVar("strands_sglang_tool_recorder", default=None)
"""Handles the tool calls of this context's episode; None: this context belongs to no episode."""

_registered_agents: weakref.WeakSet[Any] = weakref.WeakSet()

_CANCEL_SECONDS = 0.1  # for a cancelled tool to end
_POLL_SECONDS = 0.005  # between two checks of the turns of a replayed tool


@dataclass(slots=True)
class ToolRecorder:
    """Runs, limits and records the tool calls of one episode."""

    recorder: EpisodeRecorder
    """Records the results, and has the recorded ones."""
    seconds: float | None = None
    """Time limit of one call in seconds; None: no limit."""
    rerun: frozenset[str] = frozenset()
    """Names of the tools that are run again when an episode is resumed, because they have state. The agent still gets
    the recorded result."""

    async def run(self, context: Any, next_fn: Next) -> AsyncGenerator[Any, None]:
        """Run a tool call, or answer it from the record; the last event is its result."""
        call, recorder = context.tool_use, self.recorder
        call_id, name = str(call.get("toolUseId")), str(call.get("name"))
        arguments = arguments_digest(call.get("input"))
        recorded = recorder.replay_log.result(call_id, name, arguments)
        was_refused = recorded is not None and recorded.data["outcome"] == ToolOutcome.REFUSED.value
        refusal_message = None if was_refused else recorder.begin_tool(recorded=recorded is not None)
        if refusal_message is not None:
            result = ToolResultEvent(_error_result(call_id, refusal_message))
            self._write(call, name, arguments, ToolOutcome.REFUSED, result, 0.0, time.time())
            yield result
            return
        if recorded is not None and not recorded.data["calls"] and recorded.data["result"] is not None:
            if name in self.rerun and not was_refused:
                await self._run_limited(context, next_fn, call_id, recorded)
            recorder.metrics.tool_seconds += recorded.data["seconds"]
            yield self._count(recorded.data["outcome"], result_of(recorded, call_id, recorder.replay_log.files))
            return
        if recorded is None and recorder.replays and not recorder.replay_log.has_calls_within(call_id):
            # It had not ended when the record ended: there is no result, and nothing to run again.
            yield ToolResultEvent(_error_result(call_id, "the record of this episode ends before this result"))
            return
        began = time.monotonic()
        try:
            outcome, events = await self._run_limited(context, next_fn, call_id, recorded)
        finally:
            recorder.metrics.tool_seconds += (seconds := time.monotonic() - began)
            ended = time.time()
        await recorder.wait_for_slot()
        if call_id in recorder.paused_calls:
            await recorder.wait_while_paused()
        if (error := recorder.lost_calls.inside_of(call_id)) is not None:
            if not recorder.replays:
                await recorder.stop_on_outage(error)
            yield ToolResultEvent(
                _error_result(call_id, f"there is no result: there was an outage inside the tool call, {error}")
            )
            return
        last: ToolResultEvent | None = None
        for event in events:
            if isinstance(event, ToolResultEvent):
                last = event
            else:
                yield event
        if last is None:
            return  # interrupted: no result yet
        if outcome is ToolOutcome.RESULT and last.exception is not None:
            outcome = ToolOutcome.RAISED
        if recorded is None or recorder.diverged is not None:
            self._write(call, name, arguments, outcome, last, seconds, ended)
        elif recorded.data["result"] is not None:
            outcome = ToolOutcome(recorded.data["outcome"])
            last = result_of(recorded, call_id, recorder.replay_log.files)
        yield self._count(outcome.value, last)

    async def _run_limited(
        self, context: Any, next_fn: Next, call_id: str, recorded: Event | None
    ) -> tuple[ToolOutcome, list[Any]]:
        """Run a tool within its time limit; return its outcome and its events."""
        await self.recorder.wait_while_paused()
        # The tool gets its own task, so that `within` is set only for it and it can be left running.
        events: list[Any] = []

        async def consume() -> None:
            within.set(inside := (*within.get(), call_id))
            lost = self.recorder.lost_calls
            on_tool_request.set(
                lambda what, outage: lost.answered(what, inside) if outage is None else lost.add(what, inside, outage)
            )
            try:
                async for event in next_fn(context):
                    events.append(event)
            except SystemExit as error:  # would end the event loop and every episode
                events.append(_raised_result(call_id, error))

        self.recorder.tool_started(call_id, settled=recorded is not None)
        task = asyncio.ensure_future(consume())
        try:
            if recorded is not None and recorded.data["outcome"] == ToolOutcome.TIMEOUT.value:
                await self._wait_for_turns(task, call_id, recorded.data["calls"])
            elif self.seconds is None:
                await asyncio.wait({task})
            else:
                with self.recorder.timed(call_id) as clock:
                    await wait_in_time({task}, clock, self.seconds, self.recorder.alive)
            ended = task.done()
        except EngineUnreachableError as error:
            await self.recorder.stop_on_outage(error)
        finally:
            self.recorder.tool_ended(call_id)
            if not task.done():
                await _cancel(task, context)
        if not ended:
            limit = "in time" if self.seconds is None else f"within {self.seconds:g} seconds"
            text = f"{context.tool_use.get('name')} did not answer {limit}"
            return ToolOutcome.TIMEOUT, [ToolResultEvent(_error_result(call_id, text))]
        if task.cancelled():  # by the tool itself
            return ToolOutcome.RESULT, [_raised_result(call_id, asyncio.CancelledError())]
        task.result()
        outages = (outage_in(event.exception) for event in events if isinstance(event, ToolResultEvent))
        if not self.recorder.replays and (outage := next(filter(None, outages), None)) is not None:
            await self.recorder.stop_on_outage(outage)
        return ToolOutcome.RESULT, events

    async def _wait_for_turns(self, task: asyncio.Task[None], call_id: str, calls: int) -> None:
        """Wait until a tool that timed out when it was recorded has made its recorded turns again."""
        recorder = self.recorder
        while not task.done() and recorder.calls_within.get(call_id, 0) < calls and recorder.diverged is None:
            await asyncio.wait({task}, timeout=_POLL_SECONDS)
        await asyncio.wait({task}, timeout=_CANCEL_SECONDS if recorder.diverged is None else self.seconds)

    def _write(
        self,
        call: Any,
        name: str,
        arguments: str,
        outcome: ToolOutcome,
        last: ToolResultEvent,
        seconds: float,
        ended: float,
    ) -> None:
        call_id = str(call.get("toolUseId"))
        complete = self.recorder.tool_arguments is ToolArguments.RECORD
        recorded_arguments = rebuildable_data(call.get("input"), self.recorder.put_data) if complete else None
        data: ToolData = {
            "id": call_id,
            "name": name,
            "arguments_digest": arguments,
            "arguments": recorded_arguments,
            "result": result_data(last, self.recorder.put_data),
            "outcome": outcome.value,
            "raised": None if last.exception is None else f"{type(last.exception).__name__}: {last.exception}",
            "raised_at": raise_location(last.exception),
            "seconds": round(seconds, 4),
            "calls": self.recorder.calls_within.get(call_id, 0),
            "within": list(within.get()),
            "time": round(ended, 3),
        }
        self.recorder.write(EventKind.TOOL, data)

    def _count(self, outcome: str, result: ToolResultEvent) -> ToolResultEvent:
        """Count a result in the metrics, and return it."""
        metrics = self.recorder.metrics
        metrics.tool_timeouts += outcome == ToolOutcome.TIMEOUT.value
        metrics.tool_errors += result.tool_result.get("status") == "error"
        return result


def record_tools(agent: Any) -> None:
    """Register the middleware with an agent, once. It uses the `ToolRecorder` of the episode that a call belongs to."""
    if agent not in _registered_agents:
        _registered_agents.add(agent)
        add_tool_middleware(agent, _middleware)


def _middleware(context: Any, next_fn: Next) -> AsyncGenerator[Any, None]:
    tool_recorder = current_tool_recorder.get()
    return next_fn(context) if tool_recorder is None else tool_recorder.run(context, next_fn)


async def _cancel(task: asyncio.Task[None], context: Any) -> None:
    """Cancel a tool and wait a moment for it to end. One that ignores its cancellation is left running."""
    task.cancel()
    await asyncio.wait({task}, timeout=_CANCEL_SECONDS)
    if task.done():
        _retrieve_exception(task)
        return
    task.add_done_callback(_retrieve_exception)
    leave_running(context)


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Mark the exception of a task as retrieved, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def _raised_result(call_id: str, error: BaseException) -> ToolResultEvent:
    """Return the result of a tool that raised an error the SDK does not catch."""
    message = f"{type(error).__name__} - {error}".rstrip("- ")
    return ToolResultEvent(
        _error_result(call_id, f"Error: {message}"), exception=RuntimeError(message).with_traceback(error.__traceback__)
    )


def _error_result(call_id: str, text: str) -> Any:
    return {"toolUseId": call_id, "status": "error", "content": [{"text": text}]}
