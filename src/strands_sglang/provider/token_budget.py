"""Token budgets: how many tokens a turn may sample (`turn_budget`), and limits that concurrent calls share.

Each call reserves its budget from a `SharedLimit`, and releases the `Reservation` when its turn is committed or has
failed. A call that finds too little left waits until others have released theirs, first come, first served; it does not
get a smaller budget because others reserved more than they may need.

Invariants: used and reserved tokens together never exceed the limit, and a call that has ended has nothing reserved.
Works across threads and event loops. Every turn has a budget of at least one token, and never more than the episode and
the context have left.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress

from strands.types.exceptions import ContextWindowOverflowException

from strands_sglang.errors import ConfigurationError, TokenBudgetError
from strands_sglang.provider.config import DEFAULT_MAX_NEW_TOKENS, Settings

_BLOCKED_AFTER = 10.0
"""Seconds without a response after which another event loop counts as blocked."""


class SharedLimit:
    """A limit that concurrent calls share."""

    def __init__(self) -> None:
        self.reserved = 0
        self._lock = threading.Lock()
        self._queue: list[_Waiter] = []  # short and rarely used: an empty deque takes ten times the memory
        self._loops: Counter[asyncio.AbstractEventLoop] = Counter()

    async def reserve(self, wanted: int, left: Callable[[], int]) -> int:
        """Reserve the wanted amount, or all that is left if no other call has a reservation. Waits if needed.

        `left` returns the amount that is not used yet, including reserved amounts, or raises if nothing is left.

        A deadlock raises ConfigurationError: the rest is reserved by calls on a blocked event loop, for example because
        `agent(...)` was called synchronously there.
        """
        waiter = _Waiter()
        with self._lock:
            self._queue.append(waiter)
        try:
            while True:
                with self._lock:
                    unused = left()
                    if self._queue[0] is waiter and (unused - self.reserved >= wanted or not self.reserved):
                        granted = min(wanted, unused - self.reserved)
                        self.reserved += granted
                        self._loops[waiter.loop] += 1
                        return granted
                    wakeup, others = waiter.new_wakeup(), set(self._loops) - {waiter.loop}
                await _wait_for(wakeup, others)
        finally:
            with self._lock:
                self._queue.remove(waiter)
            self._wake()

    def release(self, amount: int, loop: asyncio.AbstractEventLoop) -> None:
        """Release an amount that was taken in an event loop."""
        with self._lock:
            self.reserved -= amount
            self._loops[loop] -= 1
            self._loops = +self._loops
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            for waiter in self._queue:
                waiter.wake()


class Reservation:
    """What one call holds of any number of limits."""

    def __init__(self, limit: SharedLimit | None = None, left: Callable[[], int] | None = None) -> None:
        self._tokens = None if limit is None or left is None else (limit, left)
        self._held: list[tuple[SharedLimit, int, asyncio.AbstractEventLoop]] = []

    async def tokens(self, wanted: int) -> int:
        """Hold tokens for a turn; return how many it may sample."""
        return wanted if self._tokens is None else await self.reserve(self._tokens[0], wanted, self._tokens[1])

    async def reserve(self, limit: SharedLimit, wanted: int, left: Callable[[], int]) -> int:
        """Hold part of a limit; see `SharedLimit.take`."""
        granted = await limit.reserve(wanted, left)
        self._held.append((limit, granted, asyncio.get_running_loop()))
        return granted

    def release(self) -> None:
        """Release everything that is held."""
        while self._held:
            limit, amount, loop = self._held.pop()
            limit.release(amount, loop)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Waiter:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._wakeup: asyncio.Future[None] | None = None

    def new_wakeup(self) -> asyncio.Future[None]:
        self._wakeup = self.loop.create_future()
        return self._wakeup

    def wake(self) -> None:
        if self._wakeup is not None:
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(_resolve, self._wakeup)


def _resolve(wakeup: asyncio.Future[None]) -> None:
    if not wakeup.done():
        wakeup.set_result(None)


async def _wait_for(wakeup: asyncio.Future[None], others: Iterable[asyncio.AbstractEventLoop]) -> None:
    while not wakeup.done():
        responses = []
        for loop in others:
            with suppress(RuntimeError):  # the loop is closed
                responses.append(threading.Event())
                loop.call_soon_threadsafe(responses[-1].set)
        await asyncio.wait({wakeup}, timeout=_BLOCKED_AFTER)
        if not wakeup.done() and not all(
            one.is_set() or loop.is_closed() for one, loop in zip(responses, others, strict=True)
        ):
            raise ConfigurationError(
                "the rest of a limit is held by calls of a blocked event loop: in async code, await "
                "agent.invoke_async(...) instead of calling agent(...)"
            )


def tokens_left(used: int, episode_limit: int) -> int:
    """Return how many tokens an episode may still sample, above 0; raise `TokenBudgetError` if none."""
    if used >= episode_limit:
        raise TokenBudgetError(
            f"the episode has sampled {used} of {episode_limit} tokens (max_episode_tokens)",
            used=used,
            budget=episode_limit,
        )
    return episode_limit - used


def turn_budget(
    settings: Settings, *, prompt_tokens: int, context_limit: int | None, used: int, response: int = 0
) -> int:
    """Return how many tokens a turn may sample.

    `context_limit` is for prompt and turn together (None if unknown); `response` counts the prompt after the branch's
    first prompt.
    """
    budget: int = settings.sampling_params.get("max_new_tokens") or DEFAULT_MAX_NEW_TOKENS
    if settings.max_episode_tokens is not None:
        budget = min(budget, tokens_left(used, settings.max_episode_tokens))
    if (response_limit := settings.max_response_tokens) is not None:
        if response >= response_limit:
            raise TokenBudgetError(
                f"the response has {response} of {response_limit} tokens, including tool results (max_response_tokens)",
                used=response,
                budget=response_limit,
            )
        budget = min(budget, response_limit - response)
    if context_limit is not None:
        if prompt_tokens >= context_limit:
            raise ContextWindowOverflowException(
                f"the prompt has {prompt_tokens} tokens and the context {context_limit}: no token can be sampled"
            )
        budget = min(budget, context_limit - prompt_tokens)
    return budget
