"""Ending a call from outside: by its deadline, or by the caller's cancel signal.

One guard covers everything a call waits for (a free connection, the engine, a backoff), so no wait can outlast the
deadline. It works as `asyncio.timeout` does: it cancels the task that runs the call and turns that cancellation,
and only that one, into a typed error.

Cancel signals of the SDK are thread events, which an event loop cannot wait for: one timer per loop looks at all
of them.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Literal

from strands_sglang.engine.protocol import CancelSignal
from strands_sglang.errors import AttemptTimeoutError, CallCancelledError, DeadlineExceededError, EngineError

_POLL_SECONDS = 0.02


class CancelWatch:
    """Looks at the cancel signals of all calls of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._guards: set[CallGuard] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, guard: CallGuard) -> None:
        """Look at this guard's signal from now on."""
        self._guards.add(guard)
        if self._timer is None:
            self._timer = self._loop.call_later(_POLL_SECONDS, self._poll)

    def remove(self, guard: CallGuard) -> None:
        """Stop looking at this guard's signal."""
        self._guards.discard(guard)
        if not self._guards and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _poll(self) -> None:
        for guard in [guard for guard in self._guards if guard.signalled]:
            guard.cancel()
        # With thousands of calls the look itself costs: then look a little less often.
        again = _POLL_SECONDS + len(self._guards) * 1e-5
        self._timer = self._loop.call_later(again, self._poll) if self._guards else None


class CallGuard:
    """Bounds the code in its `with` block by a deadline and a cancel signal.

    Args:
        loop: The running loop.
        watch: The loop's watch over cancel signals.
        expires_at: Loop time of the deadline; None: none.
        seconds: The deadline as the caller gave it, for the message.
        signal: The caller's cancel signal; None: none.
        expired: What to raise when the deadline passes.
    """

    __slots__ = (
        "_cancelling",
        "_cancels",
        "_expired",
        "_expires_at",
        "_loop",
        "_reason",
        "_seconds",
        "_signal",
        "_task",
        "_timer",
        "_watch",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        watch: CancelWatch,
        expires_at: float | None,
        seconds: float | None,
        signal: CancelSignal | None,
        expired: type[DeadlineExceededError | AttemptTimeoutError] = DeadlineExceededError,
    ) -> None:
        self._loop = loop
        self._watch = watch
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
        """Whether the caller's signal is set."""
        return self._signal is not None and self._signal.is_set()

    def cancel(self) -> None:
        """End the call because its signal is set."""
        self._end(CallCancelledError("the call was cancelled by its cancel signal"))

    def _expire(self) -> None:
        self._end(self._too_late())

    def _too_late(self) -> EngineError:
        return self._expired(f"no whole answer within {self._seconds} s", seconds=self._seconds)

    def _end(self, reason: EngineError) -> None:
        if self._reason is None and self._task is not None:
            self._reason = reason
            self._cancel()

    def _cancel(self) -> None:
        # Asked for until the call ends: whoever else cancels at the same moment (the HTTP library's connect timeout; on
        # Python 3.10 anybody) may take our cancellation for its own and swallow it.
        if self._task is not None:
            self._task.cancel()
            self._cancels += 1
            self._timer = self._loop.call_later(_POLL_SECONDS, self._cancel)

    def __enter__(self) -> CallGuard:
        if self.signalled:
            raise CallCancelledError("the call was cancelled by its cancel signal before it was sent")
        # What is at hand comes without waiting, and a timer only fires in a wait: a passed deadline is looked for here.
        if self._expires_at is not None and self._loop.time() >= self._expires_at:
            raise self._too_late()
        self._task = asyncio.current_task()
        if self._task is not None and hasattr(self._task, "cancelling"):
            self._cancelling = self._task.cancelling()
        if self._expires_at is not None:
            self._timer = self._loop.call_at(self._expires_at, self._expire)
        if self._signal is not None:
            self._watch.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
        if self._signal is not None:
            self._watch.remove(self)
        if self._reason is None or task is None:
            return False
        left = self._cancelling  # Python 3.10 cannot tell two cancellations apart; there, ours wins
        if hasattr(task, "uncancel"):
            for _ in range(self._cancels):
                left = task.uncancel()
        if left <= self._cancelling and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise self._reason from error
        return False
