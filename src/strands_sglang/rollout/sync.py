"""`rollout_sync`: a rollout from a script without an event loop.

Invariant: it takes what `rollout` takes, returns what `rollout` returns, and leaves no event loop behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from strands_sglang.errors import ConfigurationError
from strands_sglang.rollout.run import rollout

P = ParamSpec("P")
R = TypeVar("R")


def _waited_for(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Return an async function as a plain one."""

    @wraps(function)
    def wait(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(function(*args, **kwargs))
        raise ConfigurationError(
            f"an event loop is running here (a notebook, or async code): write `await {function.__name__}(...)`"
        )

    return wait


rollout_sync = _waited_for(rollout)
"""`rollout`, for scripts: returns when the run is over. It takes the same arguments."""
