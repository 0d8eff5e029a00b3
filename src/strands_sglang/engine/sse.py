"""Server-sent events of a streaming `/generate`, decoded.

By default the engine repeats the whole output so far in each event; with `--incremental-streaming-output` it sends
only what is new. Either way, what comes out of here is the whole output so far, as `response.loads` lays it out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from strands_sglang.engine import response
from strands_sglang.errors import MalformedResponseError

_MARK = b"data:"
_DONE = b"[DONE]"
_ENDS = (b"\n\n", b"\n\r\n")
MAX_EVENT_BYTES = 2**28
"""Most bytes of one event: above any turn with all that comes with it."""


async def payloads(content: aiohttp.StreamReader) -> AsyncIterator[list[bytes]]:
    """Yield the payloads of the events that have arrived, without `[DONE]`; ends with it or with the connection."""
    buffer, looked = bytearray(), 0  # what has come of the next event, and how much of it has no end
    async for chunk in content.iter_any():
        buffer += chunk
        end = max((at + len(mark) for mark in _ENDS if (at := buffer.rfind(mark, looked)) >= 0), default=0)
        if not end:
            looked = max(0, len(buffer) - 2)
            if len(buffer) > MAX_EVENT_BYTES:
                raise MalformedResponseError(f"an event of a stream has more than {MAX_EVENT_BYTES} bytes")
            continue
        whole = bytes(buffer[:end]).replace(b"\r\n", b"\n")
        del buffer[:end]
        looked = 0
        events = whole.split(b"\n\n")
        arrived = [event.removeprefix(_MARK).strip() for event in events if event.startswith(_MARK)]
        done = _DONE in arrived
        if done:
            arrived = arrived[: arrived.index(_DONE)]
        if arrived:
            yield arrived
        if done:
            return


class Accumulator:
    """Turns events into the whole output so far, whichever way the engine streams."""

    def __init__(self) -> None:
        self._ids: list[Any] = []
        self._entries: list[Any] = []

    def take(self, arrived: list[bytes]) -> Any:
        """Take the events that have arrived and return the newest answer, with the whole output in it.

        Raises:
            orjson.JSONDecodeError: An event is not JSON.
        """
        newest = response.loads(arrived[-1])
        if _is_increment(newest):
            for event in arrived[:-1]:
                self._add(response.loads(event))
        self._add(newest)  # an event that holds all of the output makes those before it needless
        return newest

    def _add(self, answer: Any) -> None:
        if not isinstance(answer, dict) or not isinstance(meta := answer.get("meta_info"), dict):
            return
        ids, entries = answer.get("output_ids"), meta.get("output_token_logprobs")
        if not isinstance(ids, list) or not isinstance(entries, list):
            return
        if _is_increment(answer) and len(entries) // _width(entries) == meta["completion_tokens"]:
            # A request aborted while it waited comes with all its logprobs and only its last id.
            answer["output_ids"] = None
            return
        if _is_increment(answer):
            answer["output_ids"] = ids = self._ids + ids
            meta["output_token_logprobs"] = entries = self._entries + entries
        self._ids, self._entries = ids, entries


def _width(entries: list[Any]) -> int:
    """Return how many items stand for one token: 1 as the engine sends them, 3 laid flat."""
    return 1 if entries and isinstance(entries[0], list) else 3


def _is_increment(answer: Any) -> bool:
    try:
        return bool(len(answer["output_ids"]) < answer["meta_info"]["completion_tokens"])
    except (KeyError, TypeError):
        return False
