"""Ends a call from outside: `CancelScope` applies its deadline and its caller's cancel signal.

One scope covers everything a call waits for (a free connection, the engine, a retry delay), so no wait can outlast the
deadline. It works like `asyncio.timeout`: it cancels the task that runs the call and converts that cancellation, and no
other, into a typed error.

The SDK's cancel signals are thread events, which an event loop cannot wait for, so one timer per loop polls all of
them (`CancelPoller`).
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Literal

from strands_sglang.engine.protocol import CancelSignal
from strands_sglang.errors import AttemptTimeoutError, CallCancelledError, DeadlineExceededError, EngineError

_POLL_SECONDS = 0.02


class CancelPoller:
    """Polls the cancel signals of all calls of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._scopes: set[CancelScope] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, scope: CancelScope) -> None:
        """Start polling the signal of a scope."""
        self._scopes.add(scope)
        if self._timer is None:
            self._timer = self._loop.call_later(_POLL_SECONDS, self._poll)

    def remove(self, scope: CancelScope) -> None:
        """Stop polling the signal of a scope."""
        self._scopes.discard(scope)
        if not self._scopes and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _poll(self) -> None:
        for scope in [scope for scope in self._scopes if scope.signalled]:
            scope.cancel()
        # Polling thousands of signals has a cost of its own, so the interval grows with their number.
        again = _POLL_SECONDS + len(self._scopes) * 1e-5
        self._timer = self._loop.call_later(again, self._poll) if self._scopes else None


class CancelScope:
    """Applies a deadline (`expires_at`, in loop time; `seconds` as the caller gave it) and a cancel signal."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: CancelPoller,
        expires_at: float | None,
        seconds: float | None,
        signal: CancelSignal | None,
        expired: type[DeadlineExceededError | AttemptTimeoutError] = DeadlineExceededError,
    ) -> None:
        self._loop = loop
        self._poller = poller
        self._expires_at = expires_at
        self._seconds = seconds
        self._signal = signal
        self._expired = expired
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cancelling = 0
        self._cancels = 0
        self._reason: EngineError | None = None

    @property
    def signalled(self) -> bool:
        """Whether the cancel signal is set."""
        return self._signal is not None and self._signal.is_set()

    def cancel(self) -> None:
        """End the call because its cancel signal is set."""
        self._end(CallCancelledError("the call was cancelled by its cancel signal"))

    def _expire(self) -> None:
        self._end(self._deadline_error())

    def _deadline_error(self) -> EngineError:
        return self._expired(f"no complete answer within {self._seconds} s", seconds=self._seconds)

    def _end(self, reason: EngineError) -> None:
        if self._reason is None and self._task is not None:
            self._reason = reason
            self._cancel()

    def _cancel(self) -> None:
        # Repeated until the call ends: other code that cancels the task at the same moment (the HTTP library's connect
        # timeout; on Python 3.10 any code) may take this cancellation for its own and suppress it.
        if self._task is not None:
            self._task.cancel()
            self._cancels += 1
            self._timer = self._loop.call_later(_POLL_SECONDS, self._cancel)

    def __enter__(self) -> CancelScope:
        if self.signalled:
            raise CallCancelledError("the call was cancelled by its cancel signal before it was sent")
        # A timer fires only while the task waits, and data that has already arrived needs no wait: check here too.
        if self._expires_at is not None and self._loop.time() >= self._expires_at:
            raise self._deadline_error()
        self._task = asyncio.current_task()
        if self._task is not None and hasattr(self._task, "cancelling"):
            self._cancelling = self._task.cancelling()
        if self._expires_at is not None:
            self._timer = self._loop.call_at(self._expires_at, self._expire)
        if self._signal is not None:
            self._poller.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
        if self._signal is not None:
            self._poller.remove(self)
        if self._reason is None or task is None:
            return False
        left = self._cancelling  # Python 3.10 cannot tell two cancellations apart and raises ours
        if hasattr(task, "uncancel"):
            for _ in range(self._cancels):
                left = task.uncancel()
        if left <= self._cancelling and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise self._reason from error
        return False
