"""Server-sent events of a streaming `/generate`, decoded.

By default the engine repeats the whole output so far in each event; with `--incremental-streaming-output` it sends
only what is new. Either way, what comes out of here is the whole output so far, as `response.loads` lays it out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from strands_sglang.engine import response

_MARK = b"data:"
_DONE = b"[DONE]"


async def payloads(content: aiohttp.StreamReader) -> AsyncIterator[list[bytes]]:
    """Yield the payloads of the events that have arrived, without `[DONE]`; ends with it or with the connection."""
    buffer = b""
    async for chunk in content.iter_any():
        buffer += chunk
        *events, buffer = buffer.replace(b"\r\n", b"\n").split(b"\n\n")
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
        self._flat: list[Any] = []

    def take(self, arrived: list[bytes]) -> Any:
        """Take the events that have arrived and return the newest whole answer.

        Raises:
            orjson.JSONDecodeError: An event is not JSON.
        """
        answer = response.loads(arrived[-1])
        if not self._ids and not _is_increment(answer):
            return answer  # each event holds all of the output: the newest is enough
        for event in arrived[:-1]:
            self._add(response.loads(event))
        self._add(answer)
        return answer

    def _add(self, answer: Any) -> None:
        if not isinstance(answer, dict) or not isinstance(meta := answer.get("meta_info"), dict):
            return
        flat = meta.get("output_token_logprobs") or []
        if flat and isinstance(flat[0], list):
            flat = [value for entry in flat for value in (*entry, None)[:3]]
        self._ids += answer.get("output_ids") or []
        self._flat += flat
        answer["output_ids"] = self._ids.copy()
        meta["output_token_logprobs"] = self._flat.copy()
        meta.pop("output_token_logprobs_length", None)


def _is_increment(answer: Any) -> bool:
    try:
        return bool(len(answer["output_ids"]) < answer["meta_info"]["completion_tokens"])
    except (KeyError, TypeError):
        return False
