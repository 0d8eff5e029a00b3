"""Streaming a call: tokens as they come, and the same whole `Generation` at the end.

Invariant: the tokens of all chunks, joined, are the tokens of the `Generation` in the last one. Tokens once handed
out are never taken back: a stream that breaks goes on behind them, or ends in `StreamInterruptedError`.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass

import aiohttp
import orjson

from strands_sglang.engine import faults
from strands_sglang.engine.assembly import joined_spans
from strands_sglang.engine.call import Call, checked, no_progress, not_json
from strands_sglang.engine.faults import TransientFault
from strands_sglang.engine.generation import FinishReason, Generation, VersionSpan
from strands_sglang.engine.guard import CallGuard
from strands_sglang.engine.protocol import AbortPolicy
from strands_sglang.engine.response import Leg
from strands_sglang.engine.sse import Accumulator, payloads
from strands_sglang.engine.transport import read_whole, translate
from strands_sglang.errors import ConnectionLostError, StreamInterruptedError


@dataclass(frozen=True, slots=True)
class GenerationChunk:
    """Tokens that have just been sampled."""

    token_ids: array[int]
    """The new ids."""
    logprobs: array[float]
    """Their logprobs, aligned with `token_ids`."""
    generation: Generation | None = None
    """The whole turn, in the last chunk; None before."""


class StreamingCall(Call):
    """A call whose tokens are handed out as they come."""

    __slots__ = ()

    async def chunks(self, guard: Callable[[], CallGuard]) -> AsyncGenerator[GenerationChunk, None]:
        """Yield new tokens; the last chunk carries the whole turn.

        Args:
            guard: Makes the guard of one wait. The caller's code runs between our waits and is not ours to cancel.
        """
        assembly = self._assembly
        while True:
            rid, body = self._next_attempt()
            legs = self._legs(rid, body, guard)
            leg: Leg | None = None
            seen = 0
            fault: TransientFault | None = None
            try:
                async for newer in legs:
                    leg = newer if leg is None else _with_earlier_versions(newer, leg)
                    self._retries.progressed()
                    if leg.finish_reason is None and len(leg.token_ids) > seen:
                        yield GenerationChunk(leg.token_ids[seen:], leg.logprobs[seen:])
                        seen = len(leg.token_ids)
            except TransientFault as error:
                fault = error
            finally:
                await legs.aclose()
            if leg is not None and fault is None and self._whole(leg):
                kept = len(assembly)
                generation = assembly.finish(leg, rid)
                yield GenerationChunk(
                    generation.token_ids[kept + seen :], generation.logprobs[kept + seen :], generation
                )
                return
            if leg is None or not len(leg.token_ids):
                with guard():
                    await self._retries.after(fault or no_progress(leg))
                continue
            if len(leg.token_ids) > seen:
                yield GenerationChunk(leg.token_ids[seen:], leg.logprobs[seen:])
            if not self._request.continuable:
                raise StreamInterruptedError(
                    f"the stream broke in mid-turn ({fault or leg.finish_detail}) and cannot go on exactly: its "
                    "sampling parameters keep state in the request (stop strings, grammar, penalties) or leave "
                    "max_new_tokens open"
                )
            assembly.keep(leg)
            if assembly.spent:
                yield GenerationChunk(array("i"), array("d"), assembly.finish_spent(leg, rid))
                return
            if fault is not None:
                with guard():
                    await self._retries.after(fault)

    def _whole(self, leg: Leg) -> bool:
        return leg.finish_reason is not FinishReason.ABORT or self._on_abort is AbortPolicy.RETURN

    async def _legs(self, rid: str, body: bytes, guard: Callable[[], CallGuard]) -> AsyncGenerator[Leg, None]:
        """Yield the output so far of one attempt, the last with its finish reason."""
        pool, url = self._pool, self._url
        ended = False
        response: aiohttp.ClientResponse | None = None
        with guard():
            await pool.slots.acquire()
        try:
            with guard():
                response = await pool.session.post(url, data=body, headers=self._headers, timeout=self._limits)
                if response.status != 200:
                    content = await read_whole(response)
                    ended = True
                    raise faults.from_status(response.status, content, str(url), response.headers)
            output = Accumulator()
            events = payloads(response.content).__aiter__()
            while not ended:
                with guard():
                    arrived = await _next(events)
                if arrived is None:
                    raise TransientFault(ConnectionLostError(f"the stream of {url} ended early"), in_flight=True)
                answer = output.take(arrived)
                if isinstance(answer, dict) and isinstance(error := answer.get("error"), dict):
                    ended = True
                    raise faults.from_words(int(error.get("code") or 500), str(error.get("message")), str(url))
                leg = checked(answer, self._request.prompt_tokens, url)
                ended = leg.finish_reason is not None
                yield leg
        except orjson.JSONDecodeError as error:
            raise TransientFault(not_json(url, error), in_flight=True) from error
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise translate(error, url, self._limits) from error
        finally:
            if response is not None:
                response.close()
            pool.slots.release()
            if not ended:
                pool.abort(rid)


def _with_earlier_versions(newer: Leg, older: Leg) -> Leg:
    """Keep the versions of tokens that came with earlier events.

    Until its last event the engine names only the version of the moment, which need not be that of older tokens.
    """
    if not newer.spans_told and newer.spans and older.spans:
        (span,) = newer.spans
        newer.spans = joined_spans(older.spans, (VersionSpan(span.version, 0, span.end - len(older.token_ids)),))
    return newer


async def _next(events: AsyncIterator[list[bytes]]) -> list[bytes] | None:
    try:
        return await events.__anext__()
    except StopAsyncIteration:
        return None
