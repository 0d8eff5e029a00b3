"""Reads the whole answer of a model from its stream: `whole_answer`.

Tested with strands-agents 1.62.
"""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any

from strands.event_loop.streaming import process_stream


async def whole_answer(stream: AsyncIterable[Any]) -> tuple[str, list[dict[str, Any]], dict[str, Any]]:
    """Return the stop reason, the content blocks and the token counts of an answer."""
    ended: Any = None
    async for event in process_stream(stream):
        ended = event.get("stop", ended)
    stop_reason, message, usage, _ = ended
    return stop_reason, message["content"], usage
