"""Asking a user's function what an episode is worth: `Scorer`.

    def reward(episode):                  # or reward(task, episode); async works too
        return float(episode.task.answer in episode.text)

Invariant: a function that raises, blocks or returns nonsense makes an episode without a value, never a crash and never
a run that stands still.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.shown import counted
from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.reward import Reward, RewardFunction, described, own_turns

_GRACE = 1.0
"""Seconds that an async function has to come to its end when it is cancelled."""


class Scorer:
    """Asks one function for the rewards of episodes. It belongs to the event loop that uses it first."""

    def __init__(self, function: RewardFunction, *, timeout: float | None = None, threads: int = 16) -> None:
        """Look the function over, once.

        Args:
            function: Takes the episode, or the task and the episode. An async one is awaited on the event loop; any
                other runs in a thread, since it may block.
            timeout: Seconds one call may take; None: as long as it likes. The thread of a function that took longer
                cannot be ended; it is left behind and no longer counts.
            threads: Calls that may run in threads at the same time.

        Raises:
            ConfigurationError: Not a function of one or two arguments.
        """
        self._function, self._timeout = function, timeout
        self._takes_task = _takes_task(function)
        self._is_async = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
        self._slots = asyncio.Semaphore(threads)

    async def score(self, episode: Episode) -> Reward:
        """Return what an episode is worth. Only cancellation and KeyboardInterrupt are raised."""
        if self._is_async:
            return await self._waited(self._on_loop(episode))
        async with self._slots:
            return await self._waited(self._in_thread(episode))

    def _call(self, episode: Episode) -> Any:
        """Call the function; a raised error is returned as a reward."""
        try:
            return self._function(episode.task, episode) if self._takes_task else self._function(episode)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # `exit()` in a reward must not end the run
            return Reward(error=described(error, self._function))

    async def _awaited(self, result: Any, episode: Episode) -> Reward:
        """Return what a call gave, or what it turns out to be when awaited, as a reward of this episode."""
        try:
            reward = Reward.of(await result if inspect.isawaitable(result) else result)
            if reward.steps and len(reward.steps) != (turns := len(own_turns(episode.tree))):
                return Reward(error=f"ValueError: {len(reward.steps)} steps for the agent's {counted(turns, 'turn')}")
            return reward
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as error:
            return Reward(error=described(error, self._function))

    async def _on_loop(self, episode: Episode) -> Reward:
        return await self._awaited(self._call(episode), episode)

    async def _in_thread(self, episode: Episode) -> Reward:
        """Call the function in a thread of its own: a pool could be filled up by those that never return."""
        answer: Future[Any] = Future()
        context = contextvars.copy_context()

        answer.set_running_or_notify_cancel()  # from now on nobody but the thread changes it

        def run() -> None:
            try:
                answer.set_result(context.run(self._call, episode))
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=run, name=f"reward-{episode.id}", daemon=True).start()
        return await self._awaited(await asyncio.wrap_future(answer), episode)

    async def _waited(self, work: Coroutine[Any, Any, Reward]) -> Reward:
        """Wait for a call no longer than `timeout`; whatever happens, nothing of it is left on the loop."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=self._timeout)
            if not task.done():
                return Reward(error=f"TimeoutError: the reward took longer than {self._timeout:g} s")
            if task.cancelled():  # by the function itself: we were not
                return Reward(error="CancelledError: the reward cancelled itself")
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_GRACE)


def _takes_task(function: RewardFunction) -> bool:
    """Return whether a function wants the task too."""
    if not callable(function):
        raise ConfigurationError(f"a reward is a function of the episode, not {function!r:.200}")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C: nothing to look at
        return False
    needed = [
        one for one in parameters if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    placed = [one for one in parameters if one.kind is not one.KEYWORD_ONLY and one.kind is not one.VAR_KEYWORD]
    if not placed or len(needed) > 2 or any(one.kind is one.KEYWORD_ONLY for one in needed):
        raise ConfigurationError(f"a reward takes (episode) or (task, episode), which {function!r:.200} does not")
    return len(needed) == 2
