"""HTTP connections of a client: one `LoopPool` per running event loop, and single exchanges through it.

An HTTP session belongs to the loop in which it was created. Strands opens a new loop for every synchronous agent call,
slime runs rollouts on the loop of another thread, and a forked child inherits a loop that it must not touch. So a
client owns no session: it takes the pool of the running loop, which is created on first use.

`exchange` and `exchange_json` do not retry, interpret tokens or follow redirects: the prompt is sent to the given
address only, with the headers that `WorkerHosts` allows there. They return the whole body of a 200; otherwise they
raise a `TransientFault` or the final error, never an exception of the HTTP library.

Invariant: a pool is used only by the loop and the process that created it.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any

import aiohttp
import orjson
from yarl import URL

from strands_sglang.engine.cancellation import CancelPoller
from strands_sglang.engine.redaction import Redactor
from strands_sglang.engine.response import TransientFault, from_status
from strands_sglang.engine.retry import ServerHistory
from strands_sglang.engine.worker_hosts import WorkerHosts
from strands_sglang.errors import (
    AttemptTimeoutError,
    ClientClosedError,
    ConnectionLostError,
    MalformedResponseError,
    RequestRejectedError,
)

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 2**30
"""Bytes of a turn: more than routed experts of a long context need, and a faulty server cannot exhaust the memory."""
MAX_ANSWER_BYTES = 2**26
JSON_HEADERS = {"Content-Type": "application/json"}

# SGLang's HTTP server closes idle connections after 5 s. Closing them slightly earlier on this side avoids sending a
# request on a connection that is just being closed.
_KEEPALIVE_SECONDS = 4.0
_READ_BUFFER_BYTES = 2**20
_BEFORE_CLOSE_SECONDS = 1.0
_LARGE_BODY_BYTES = 2**20
_MAX_ERROR_BYTES = 2**20  # the rest of a longer error answer is not read


class Slots:
    """A fixed number of slots, each held by at most one request.

    Taking a free slot does not suspend the caller (`asyncio.Semaphore` costs two coroutines); others queue in order.

    Invariant: taken plus free slots equal `count`; a waiter that is cancelled does not lose a slot.
    """

    __slots__ = ("_free", "_waiters")

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiters: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a slot if one is free; return whether one was."""
        if self._free:
            self._free -= 1
            return True
        return False

    async def wait(self) -> None:
        """Wait until a released slot is passed to the caller."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release()  # the slot was passed on at the moment of the cancellation
            raise

    def release(self) -> None:
        """Release a slot: to the longest waiter, or to the free ones."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1


class LoopPool:
    """The HTTP session of one event loop, its slots, and background tasks of finished calls."""

    def __init__(
        self,
        hosts: WorkerHosts,
        max_connections: int,
        limits: aiohttp.ClientTimeout,
        server_history: ServerHistory | None = None,
    ) -> None:
        self.server_history = ServerHistory("") if server_history is None else server_history
        self.hosts = hosts
        self.redactor = Redactor(hosts.headers)
        self.loop = asyncio.get_running_loop()
        self.pid = os.getpid()
        # The connector's own limit is off because it counts waiting for a slot as connecting.
        self.slots = Slots(max_connections)
        self.cancel_poller = CancelPoller(self.loop)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS)  # closed with the first session
        self.session = _session(connector, limits, hosts.headers)
        self._without_headers = _session(connector, limits, {})
        self.in_flight: set[str] = set()
        self.closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.abort: Callable[[str], None] = lambda rid: None
        """Aborts a request by its id without waiting; set by the `Aborter`."""
        self.before_close: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Awaited once before the pool closes; set by the `Aborter`, which sends pending aborts."""
        self._keeper = self._keep()

    async def open(self) -> None:
        """Bind the pool to its loop, so that it is closed when the loop shuts down."""
        await self._keeper.__anext__()

    async def _keep(self) -> AsyncGenerator[None, None]:
        # asyncio closes a loop's async generators before the loop itself. This is the only hook that lets a library
        # close its connections in time without the caller's help.
        try:
            yield
        finally:
            await self._shutdown()

    def session_for(self, url: URL) -> aiohttp.ClientSession:
        """Return the session for a request, with the headers that its host receives; see `WorkerHosts.headers_for`."""
        return self.session if self.hosts.headers_for(url) is self.hosts.headers else self._without_headers

    def status_error(self, status: int, body: bytes, url: URL, headers: Mapping[str, str]) -> Exception:
        """Return the exception for an HTTP error answer: a `TransientFault`, or the final error."""
        keyless = self.hosts.advice([url])
        hint = f" | the API key is not sent there: if this worker is yours, pass {keyless}" if keyless else ""
        return self.redactor.error(from_status(status, body, str(url), headers, hint))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background; it has to handle its own errors."""
        if self.closing:
            work.close()
            return
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aborts_sent(self, seconds: float = _BEFORE_CLOSE_SECONDS) -> None:
        """Wait until the background tasks that run now have ended, for at most some seconds."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)

    async def close(self) -> None:
        """Close the connections."""
        await self._keeper.aclose()

    async def _shutdown(self) -> None:
        loop_ended = False
        try:
            for task in list(self._tasks):
                task.cancel()
            if self._tasks:
                await asyncio.gather(*self._tasks, return_exceptions=True)
            if self.before_close is not None:
                await asyncio.wait_for(self.before_close(), timeout=_BEFORE_CLOSE_SECONDS)
        except Exception as error:
            logger.debug("error=<%s> | pending aborts were not sent before closing", error)
        except GeneratorExit:
            loop_ended = True  # collected while it waited: nothing can be awaited any more
            raise
        finally:
            self.closing = True
            if not loop_ended:
                await self.session.close()


def _session(
    connector: aiohttp.TCPConnector, limits: aiohttp.ClientTimeout, headers: Mapping[str, str]
) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        timeout=limits,
        headers={"Accept-Encoding": "identity", **headers},
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=_READ_BUFFER_BYTES,
        trust_env=False,
    )


class Pools:
    """The pools of one client; `make` creates that of the running loop."""

    def __init__(self, make: Callable[[], LoopPool]) -> None:
        self._make = make
        self._pools: dict[int, LoopPool] = {}
        self._abandoned: list[LoopPool] = []

    def get(self, loop: asyncio.AbstractEventLoop) -> LoopPool | None:
        """Return the pool of the running loop; None if it has none yet."""
        pool = self._pools.get(id(loop))
        if pool is None or pool.loop is not loop or pool.pid != os.getpid() or pool.closing:
            return None
        return pool

    async def open(self) -> LoopPool:
        """Return the pool of the running loop; it is created if there is none."""
        loop = asyncio.get_running_loop()
        if (pool := self.get(loop)) is not None:
            return pool
        # No lock, here or below: single dict operations are atomic, each loop uses only its own entry, and a lock held
        # by another thread at the moment of a fork would never be released in the child.
        self._drop_dead()
        pool = self._pools[id(loop)] = self._make()
        await pool.open()
        return pool

    def _drop_dead(self) -> None:
        for key, pool in list(self._pools.items()):
            if pool.pid != os.getpid():
                # A pool of the parent process: its sockets are shared with the parent and its loop must not run here.
                # Keeping a reference prevents its finalisation, which would touch both.
                self._abandoned.append(pool)
            elif not pool.loop.is_closed():
                continue
            self._pools.pop(key, None)

    async def close(self) -> None:
        """Close the pool of the running loop. Pools of other loops close with their loops."""
        pool = self.get(asyncio.get_running_loop())
        if pool is not None:
            self._pools.pop(id(pool.loop), None)
            await pool.close()


def attempt_timeout(seconds: float | None, connect: float) -> aiohttp.ClientTimeout:
    """Return the time limits of one exchange in seconds, not counting the wait for a slot; None for no limit."""
    # aiohttp rounds long timeouts up to whole seconds by default.
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
    """Send one request and return the whole body of its 200, at most `most` bytes."""
    data: bytes | io.BytesIO | None = body
    if body is not None and len(body) > _LARGE_BODY_BYTES:
        data = io.BytesIO(body)  # sent in chunks, so that other calls are not blocked meanwhile
    options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    if pool.closing:
        raise closed_error(url)
    try:
        async with pool.session_for(url).request(
            method, url, data=data, headers=headers, allow_redirects=False, **options
        ) as response:
            content = await read(response, most)
            if response.status == 200:
                return content
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
        raise translate(error, url, pool, timeout) from error
    raise pool.status_error(response.status, content, url, response.headers)


async def exchange_json(
    pool: LoopPool,
    method: str,
    url: URL,
    body: Mapping[str, Any] | None = None,
    timeout: aiohttp.ClientTimeout | None = None,
) -> Any:
    """Send one request, with a JSON body if there is one, and return its decoded answer; see `exchange`."""
    data, headers = (None, None) if body is None else (orjson.dumps(body), JSON_HEADERS)
    try:
        return orjson.loads(await exchange(pool, method, url, data, headers, timeout))
    except orjson.JSONDecodeError as error:
        raise not_json(url, error) from error


def not_json(url: URL, error: Exception) -> MalformedResponseError:
    """Return the error for a body that is incomplete or garbled."""
    return MalformedResponseError(f"{url} sent a body that is not JSON: {error}")


async def read(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the body of an answer, at most `most` bytes; of an error answer, at most its beginning."""
    check_encoding(response)
    if response.status != 200:
        most = _MAX_ERROR_BYTES
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
    """Raise MalformedResponseError for a compressed body, whose decompressed size would be unbounded."""
    if response.headers.get("Content-Encoding", "identity").lower() not in ("identity", ""):
        response.close()
        raise MalformedResponseError(f"{response.url} sent a compressed body, which was not requested")


def closed_error(url: URL) -> ClientClosedError:
    """Return the error of a call whose client was closed."""
    return ClientClosedError(f"the client was closed while a request to {url} was in flight")


def translate(error: Exception, url: URL, pool: LoopPool, timeout: aiohttp.ClientTimeout | None = None) -> Exception:
    """Return the exception of this package for one that the HTTP library raised, which may quote the answer."""
    pool.redactor.error(error)
    if pool.closing:
        return closed_error(url)
    if isinstance(error, (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError)):
        return RequestRejectedError(f"no request can be sent to {url}: {error!r}")
    detail = str(error) or type(error).__name__
    # Before a connection exists the engine has received nothing, so there is nothing to abort.
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        number = getattr(error, "errno", None)
        detail = os.strerror(number) if number and number > 0 else detail
        return TransientFault(ConnectionLostError(f"could not connect to {url.origin()}: {detail}"))
    if isinstance(error, asyncio.TimeoutError):
        message = f"no complete answer from {url} within {(timeout or pool.session.timeout).total} s"
        return TransientFault(AttemptTimeoutError(message), in_flight=True)
    return TransientFault(ConnectionLostError(f"connection to {url} lost: {detail}"), in_flight=True)
