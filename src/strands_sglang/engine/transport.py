"""One HTTP exchange: bytes out, bytes in, and every way it can fail told apart.

Nothing here retries or understands tokens, and no redirect is followed: the prompt and the headers go to the address
that was given, and nowhere else. What comes out is the whole body of a 200, a `TransientFault`, or the final error;
what the HTTP library raises does not leave this file.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from typing import Any

import aiohttp
from yarl import URL

from strands_sglang.engine import faults
from strands_sglang.engine.faults import TransientFault
from strands_sglang.engine.pool import LoopPool
from strands_sglang.errors import (
    AttemptTimeoutError,
    ClientClosedError,
    ConnectionLostError,
    MalformedResponseError,
    RequestRejectedError,
)

MAX_BODY_BYTES = 2**30
"""Most bytes of a turn: far above any with routed experts of a long context; below it a server gone mad cannot eat the
machine."""
MAX_ANSWER_BYTES = 2**26
"""Most bytes of any other answer."""
_ERROR_BYTES = 2**20  # of an answer that is no 200, the rest is not read

_LARGE_BODY_BYTES = 2**20

JSON_HEADERS = {"Content-Type": "application/json"}


def attempt_timeout(seconds: float | None, connect: float) -> aiohttp.ClientTimeout:
    """Return the limits of one exchange. Connecting and answering are bounded, waiting for a slot is not in them."""
    # No rounding up to whole seconds: a deadline is a deadline.
    return aiohttp.ClientTimeout(total=seconds, sock_connect=connect, ceil_threshold=float("inf"))


async def exchange(
    pool: LoopPool,
    method: str,
    url: URL,
    body: bytes | None,
    headers: Mapping[str, str] | None = None,
    timeout: aiohttp.ClientTimeout | None = None,
    most: int = MAX_ANSWER_BYTES,
) -> bytes:
    """Send one request and return the whole body of its 200.

    Args:
        pool: The running loop's connections.
        method: Of HTTP.
        url: Where to.
        body: What to send; None: nothing.
        headers: Further headers.
        timeout: Limits of this exchange; None: those of the pool.
        most: Bytes that the body may have.

    Raises:
        TransientFault: It may work later.
        RequestRejectedError: It will not work later either.
        MalformedResponseError: The body is longer, or compressed.
    """
    data: bytes | io.BytesIO | None = body
    if body is not None and len(body) > _LARGE_BODY_BYTES:
        data = io.BytesIO(body)  # sent piece by piece, so that other calls get their turn in between
    options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    if pool.closing:
        raise closed(url)
    try:
        async with pool.session.request(
            method, url, data=data, headers=headers, allow_redirects=False, **options
        ) as response:
            content = await read(response, most)
            if response.status == 200:
                return content
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
        raise translate(error, url, pool, timeout) from error
    raise faults.from_status(response.status, content, str(url), response.headers)


async def read(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return a body, of an error only the beginning.

    Raises:
        MalformedResponseError: It has more bytes than it may have, or would have once it is unpacked.
    """
    check_encoding(response)
    if response.status != 200:
        most = _ERROR_BYTES
    length = response.content_length
    if length is not None and length <= most:
        return await response.read()
    parts = bytearray()
    async for chunk in response.content.iter_any():
        parts += chunk
        if len(parts) > most:
            response.close()
            if response.status != 200:
                break
            raise MalformedResponseError(f"{response.url} sent more than {most} bytes")
    return bytes(parts)


def check_encoding(response: aiohttp.ClientResponse) -> None:
    """Refuse a body that is compressed: it was asked for as it is, and what it unpacks to has no bound."""
    if response.headers.get("Content-Encoding", "identity").lower() not in ("identity", ""):
        response.close()
        raise MalformedResponseError(f"{response.url} sent a compressed body, which was not asked for")


def closed(url: URL) -> ClientClosedError:
    """Return the error of a call whose client was closed."""
    return ClientClosedError(f"the client was closed while a request to {url} was under way")


def translate(error: Exception, url: URL, pool: LoopPool, timeout: aiohttp.ClientTimeout | None = None) -> Exception:
    """Turn what the HTTP library raised into a fault of ours."""
    if pool.closing:
        return closed(url)
    if isinstance(error, (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError)):
        return RequestRejectedError(f"{url} is no address to send a request to: {error!r}")
    what = str(error) or type(error).__name__
    # Before connecting the engine has seen nothing, so there is nothing to abort.
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        return TransientFault(ConnectionLostError(f"could not connect to {url}: {what}"))
    if isinstance(error, asyncio.TimeoutError):
        what = f"{url} gave no whole answer within {(timeout or pool.session.timeout).total} s"
        return TransientFault(AttemptTimeoutError(what), in_flight=True)
    return TransientFault(ConnectionLostError(f"connection to {url} lost: {what}"), in_flight=True)
