"""The tools of an MCP server, for the agents of a run: `MCPTools`.

Strands' `MCPClient` blocks while it connects, cannot be sent to another process, and makes a result for the model of
every error. `MCPTools` is made from a function that makes such a client, and connects when a tool is needed.

Invariant: an agent gets the list of tools only after it is recorded, and a recorded list without the server. Nothing
waits for a server on the event loop. The model sees only what a server answered: if it cannot be reached, or answers
neither the call nor anything else, the call is an outage (`ToolUnavailableError`). A connection that failed is used by
no other call, and is closed when its last call has ended.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, nullcontext
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from strands.middleware import ToolResultEvent
from strands.types.tools import AgentTool, ToolGenerator, ToolSpec, ToolUse

from strands_sglang._async import grouped
from strands_sglang._checks import check_number
from strands_sglang._strands_compat.tool_servers import answered, watch_errors
from strands_sglang.errors import CallCancelledError, ConfigurationError, ToolUnavailableError
from strands_sglang.ledger.event import EventKind, ToolListData
from strands_sglang.runs.recording.clock import LONGEST_SILENCE
from strands_sglang.runs.recording.recorder import within
from strands_sglang.runs.recording.tool_recorder import ToolRecorder, current_tool_recorder

if TYPE_CHECKING:
    from strands.tools.mcp import MCPAgentTool, MCPClient

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

_LIST_SECONDS = 60.0  # for a server that has started to say which tools it has
_SHARE = 0.4  # of a tool's time limit: the wait for a call and then for a sign of life end before the limit does


_AT_ONCE = 8
_opening: dict[str, threading.BoundedSemaphore] = {}
"""Connections that are opened at once, by the name of the server: each takes its CPU time, which the event loop would
wait for. A server that hangs delays only those to servers of its name."""


class Scope(str, Enum):
    """Who shares a connection to an MCP server."""

    PROCESS = "process"
    """All episodes in a process: for servers without state."""
    EPISODE = "episode"
    """Nobody: each episode has its own, for servers that keep state."""


class _Connection:
    """An open connection. It is closed when it is dropped and no call uses it."""

    def __init__(self, client: MCPClient, tools: Mapping[str, MCPAgentTool]) -> None:
        self.client, self.tools = client, tools
        self.specs: list[ToolSpec] = [tool.tool_spec for tool in tools.values()]
        self._calls, self._dropped, self._lock = 0, False, threading.Lock()
        self.closed: Future[None] | None = None
        """Done when the connection is closed; None: it is open."""

    def begin_call(self) -> bool:
        """Register a call; return False, and do not, if the connection is dropped."""
        with self._lock:
            self._calls += not self._dropped
            return not self._dropped

    def end_call(self) -> None:
        """Register the end of a call."""
        self._change(calls=-1)

    def drop(self) -> None:
        """Let no further call use the connection."""
        self._change(dropped=True)

    def _change(self, *, calls: int = 0, dropped: bool = False) -> None:
        with self._lock:
            was_in_use = self._calls > 0 or not self._dropped
            self._calls, self._dropped = self._calls + calls, self._dropped or dropped
            over = was_in_use and self._dropped and not self._calls
        if over:
            self.closed = _in_thread(partial(_stop, self.client))


class MCPTools:
    """The tools of an MCP server. One object can be shared by any number of episodes, threads and processes.

    Example:
        ```python
        calculator = MCPTools(lambda: MCPClient(url="http://localhost:8000/mcp"))  # once, for all episodes


        async def build(task, model):
            return Agent(model=model, tools=await calculator.load(), callback_handler=None)
        ```
    """

    def __init__(
        self,
        connect: Callable[[], MCPClient],
        *,
        scope: Scope | str = Scope.PROCESS,
        name: str = "mcp",
        patience: float = 30.0,
    ) -> None:
        """Connect to nothing yet.

        Args:
            connect: Makes a client that is not started, with its filters and prefix. It is called in each process, in a
                thread, and again after an outage.
            scope: Who shares a connection: "process" or "episode".
            name: Name of the server in the record. An agent of several servers needs one for each.
            patience: Seconds after which a server that does not answer is asked whether it is there, and then for its
                answer; at most 40 % of `Limits.tool_timeout`. A tool may take longer if the server answers meanwhile.
        """
        if not callable(connect):
            raise ConfigurationError(f"connect must be a function that makes an MCPClient, got {connect!r:.100}")
        check_number("patience", patience, finite=True, optional=False)
        self.name, self.scope, self.patience = name, Scope(scope), patience
        self._connect, self._lock = connect, threading.Lock()
        self._shared: Future[_Connection] | None = None
        self._of_episodes: WeakKeyDictionary[Any, Future[_Connection]] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        # Where it is unpickled, it connects again.
        return partial(type(self), self._connect, scope=self.scope, name=self.name, patience=self.patience), ()

    async def load(self) -> list[AgentTool]:
        """Return the tools for an agent.

        Raises:
            ToolUnavailableError: The server cannot be reached.
        """
        episode = current_tool_recorder.get()
        specs: Sequence[Any] | None = None if episode is None else await episode.recorder.tool_list(self.name)
        if specs is None:
            async with self._connection(episode) as connection:
                specs = connection.specs
            if episode is not None:
                data: ToolListData = {"name": self.name, "tools": list(specs), "within": list(within.get())}
                episode.recorder.write(EventKind.TOOL_LIST, data)
        return [_Tool(self, spec) for spec in specs]

    async def close(self) -> None:
        """Close the connection that all episodes share; the next call opens another one. A run does it at its end."""
        with self._lock:
            shared, self._shared = self._shared, None
        await _closed(shared)

    async def _close_episode(self, recorder: Any) -> None:
        with self._lock:
            own = self._of_episodes.pop(recorder, None)
        await _closed(own)

    async def call(self, name: str, call: ToolUse, invocation_state: dict[str, Any]) -> Any:
        """Return the result of a tool call.

        Raises:
            ToolUnavailableError: The server did not answer.
        """
        episode = current_tool_recorder.get()
        async with self._connection(episode) as connection:
            if name not in connection.tools:
                raise ToolUnavailableError(f"the MCP server {self.name!r} has no tool {name!r} any more")
            work = asyncio.ensure_future(answered(connection.tools[name], call, invocation_state))
            try:
                await self._wait(work, connection.client, episode)
                result, error = work.result()
            except ToolUnavailableError:
                raise
            except Exception as lost:
                result, error = None, lost
            finally:
                work.cancel()
            if error is not None:
                raise ToolUnavailableError(
                    f"the MCP server {self.name!r} did not answer a call of {name!r}: {_described(error)}"
                ) from error
            return result

    async def _wait(self, work: asyncio.Future[Any], client: MCPClient, episode: ToolRecorder | None) -> None:
        """Wait for a call. A server that is silent for too long is asked for its tools, which takes no time."""
        limit = None if episode is None else episode.seconds
        patience = self.patience if limit is None else min(self.patience, _SHARE * limit)
        await asyncio.wait({work}, timeout=patience)
        while not work.done():
            sign = asyncio.wrap_future(_in_thread(client.list_tools_sync))
            sign.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.wait({work, sign}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not sign.done():
                raise ToolUnavailableError(
                    f"the MCP server {self.name!r} hangs: it answers neither a call nor a question for its tools "
                    f"within {patience:g} seconds"
                )
            if not work.done():
                sign.result()
                await asyncio.wait({work}, timeout=patience)

    @asynccontextmanager
    async def _connection(self, episode: ToolRecorder | None) -> AsyncIterator[_Connection]:
        """Use the connection of an episode, or of this process; an outage in the `with` block drops it."""
        recorder, connection = None if episode is None else episode.recorder, None
        # The limits of an episode and of its tool calls are for what a server does, not for the wait for one.
        with nullcontext() if recorder is None else recorder.reporting(stopped=True):
            while connection is None or not connection.begin_call():  # another call may have dropped it
                if recorder is not None:
                    recorder.check_open()  # what runs on after its episode opens nothing that nobody would close
                connection = await self._soon(self._opened(recorder))
        try:
            yield connection
        except ToolUnavailableError:
            self._forget(connection)
            connection.drop()
            raise
        finally:
            connection.end_call()

    async def _soon(self, opening: Future[_Connection]) -> _Connection:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(opening), LONGEST_SILENCE)
        except asyncio.TimeoutError:
            raise ToolUnavailableError(
                f"the MCP server {self.name!r} cannot be reached: it was not ready after {LONGEST_SILENCE:g} seconds"
            ) from None

    def _opened(self, recorder: Any) -> Future[_Connection]:
        """Return the open connection, or one that is being opened."""
        with self._lock:
            if self.scope is Scope.PROCESS:
                if recorder is not None:
                    recorder.opened_by_worker.add(self, self.close)
                if self._shared is None or _failed(self._shared):
                    self._shared = _in_thread(self._open)
                return self._shared
            if recorder is None:
                raise ConfigurationError(
                    "MCPTools(scope='episode') must be used in an episode: load it in `build`, or in a function that "
                    "`build` returns"
                )
            recorder.opened.add(self, partial(self._close_episode, recorder))
            own = self._of_episodes.get(recorder)
            if own is None or _failed(own):
                own = self._of_episodes[recorder] = _in_thread(self._open)
            return own

    def _forget(self, connection: _Connection) -> None:
        """Let the next call open another connection."""
        with self._lock:
            if _result_of(self._shared) is connection:
                self._shared = None
            for recorder, future in list(self._of_episodes.items()):
                if _result_of(future) is connection:
                    del self._of_episodes[recorder]

    def _open(self) -> _Connection:
        from strands.tools.mcp import MCPClient

        client = self._connect()
        if not isinstance(client, MCPClient):
            raise ConfigurationError(f"connect must make an MCPClient, got {client!r:.100}")
        watch_errors(client)
        # `start` has a time limit of its own, `list_tools_sync` has none.
        too_late = threading.Timer(_LIST_SECONDS, _stop, (client,))
        try:
            with _opening.setdefault(self.name, threading.BoundedSemaphore(_AT_ONCE)):
                client.start()
                too_late.start()
                tools = list(page := client.list_tools_sync())
                while page.pagination_token is not None:
                    tools += (page := client.list_tools_sync(page.pagination_token))
        except Exception as error:
            _stop(client)
            raise ToolUnavailableError(
                f"the MCP server {self.name!r} cannot be reached: {_described(error)}"
            ) from error
        finally:
            too_late.cancel()
        return _Connection(client, {tool.tool_name: tool for tool in tools})


class _Tool(AgentTool):
    """A tool of an MCP server, which needs no connection before it is called."""

    def __init__(self, server: MCPTools, spec: ToolSpec) -> None:
        super().__init__()
        self._server, self._spec = server, spec

    @property
    def tool_name(self) -> str:
        return self._spec["name"]

    @property
    def tool_spec(self) -> ToolSpec:
        return self._spec

    @property
    def tool_type(self) -> str:
        return "mcp"

    async def stream(self, tool_use: ToolUse, invocation_state: dict[str, Any], **kwargs: Any) -> ToolGenerator:
        """Call the tool; an outage is the exception of the result."""
        try:
            yield ToolResultEvent(await self._server.call(self.tool_name, tool_use, invocation_state))
        except CallCancelledError:
            raise
        except Exception as error:  # not even a mistake in `connect` is a result for the model
            outage = error if isinstance(error, ToolUnavailableError) else ToolUnavailableError(_described(error))
            content: Any = [{"text": str(outage)}]
            yield ToolResultEvent(
                {"toolUseId": tool_use["toolUseId"], "status": "error", "content": content}, exception=outage
            )


def _stop(client: MCPClient) -> None:
    try:
        client.stop(None, None, None)
    except Exception as error:  # it says how the connection had failed
        logger.debug("error=<%s> | connection to an MCP server ended", error)


def _described(error: BaseException) -> str:
    """Return class and message of what an error was raised from: the SDK and task groups only say that there is one."""
    while (inner := error.__cause__ or next(iter(grouped(error)), None)) is not None:
        error = inner
    return f"{type(error).__name__}: {error}"


def _in_thread(function: Callable[[], ResultT]) -> Future[ResultT]:
    """Call a function that may block for long in a thread of its own, which has no context variables of an episode."""
    future: Future[ResultT] = Future()
    future.set_running_or_notify_cancel()  # nobody who waits for it can cancel it for the others

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="strands-sglang-mcp", daemon=True).start()
    return future


def _result_of(future: Future[_Connection] | None) -> _Connection | None:
    return future.result() if future is not None and future.done() and future.exception() is None else None


def _failed(future: Future[_Connection]) -> bool:
    return future.done() and future.exception() is not None


async def _closed(opening: Future[_Connection] | None) -> None:
    """Close a connection that is open, or is being opened, once its calls have ended."""
    if opening is None:
        return
    try:
        connection = await asyncio.wrap_future(opening)
    except Exception:  # it was never open
        return
    connection.drop()
    if connection.closed is not None:
        await asyncio.wrap_future(connection.closed)
