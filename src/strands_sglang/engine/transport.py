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

# Far above any answer with routed experts of a long context; below it a server gone mad cannot eat the machine.
MAX_BODY_BYTES = 2**31

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
) -> bytes:
    """Send one request and return the whole body of its 200.

    Raises:
        TransientFault: It may work later.
        RequestRejectedError: It will not work later either.
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
            length = response.content_length
            known = length is not None and length <= MAX_BODY_BYTES
            content = await (response.read() if known else _read_bounded(response))
            if response.status == 200:
                return content
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
        raise translate(error, url, pool, timeout) from error
    raise faults.from_status(response.status, content, str(url), response.headers)


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    """Read a body that does not say its length, up to `MAX_BODY_BYTES`."""
    parts = bytearray()
    async for chunk in response.content.iter_any():
        parts += chunk
        if len(parts) > MAX_BODY_BYTES:
            raise MalformedResponseError(f"{response.url} sent more than {MAX_BODY_BYTES} bytes")
    return bytes(parts)


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
