"""A process that loads the tokenizer and computes what the page shows of an episode: `EpisodeWorker`.

Loading a tokenizer takes seconds, and for parts of them no other thread of its process runs. In a separate process,
it delays neither the table nor any other answer of the server.

    request:  size of the head (4 bytes), head (JSON), encoded events one after the other
    answer:   0 (done) or 1 (failed) as one byte, size (8 bytes), JSON or the text of the error

Invariants: requests are answered one at a time, in order, on a socket that nothing else in the process knows of: the
bytes of a ledger can answer no question that a library asks on its standard input. The process reads no file of the
run, and ends when its parent closes the socket or dies. An episode is computed by `episode_view`, `drift_view` and
`rendered_view`, as it is without a worker.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

import orjson

from strands_sglang._json import jsonable
from strands_sglang.errors import LedgerError, StrandsSGLangError
from strands_sglang.ledger.reader import Placed, resolved
from strands_sglang.viewer.drift import drift_view, rendered_view
from strands_sglang.viewer.episode import episode_view
from strands_sglang.viewer.token_text import TokenTexts

_HEAD = struct.Struct("<I")
_ANSWER = struct.Struct("<BQ")
# Without the current directory in the path: a directory of untrusted runs may contain Python files.
_PROGRAM = """
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from strands_sglang.viewer.worker import work
work(sys.argv[1], int(sys.argv[2]))
"""


class EpisodeWorker:
    """Asks the process. Belongs to one event loop."""

    def __init__(self, tokenizer: str) -> None:
        """Prepare the worker; the process is started by the first request. `tokenizer`: its name or path."""
        self.tokenizer = tokenizer
        self.loaded = False  # whether the process has loaded the tokenizer, or failed to: requests are answered at once
        self._process: asyncio.subprocess.Process | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    async def ask(self, head: Mapping[str, Any], places: Sequence[Placed] = ()) -> bytes:
        """Return the answer to a request, as JSON. A caller that is cancelled leaves the worker in order.

        `head`: `do` ("load", "episode", "drift" or "rendered") and its arguments. LedgerError if the request failed.
        """
        return await asyncio.shield(asyncio.ensure_future(self._ask(head, places)))

    async def _ask(self, head: Mapping[str, Any], places: Sequence[Placed]) -> bytes:
        where = [[place.shard, place.byte, len(place.data)] for place in places]
        encoded = orjson.dumps(jsonable({**head, "places": where}))
        async with self._turn:
            process, reader, writer = await self._started()
            try:
                writer.write(_HEAD.pack(len(encoded)) + encoded)
                for place in places:
                    writer.write(place.data)
                await writer.drain()
                failed, size = _ANSWER.unpack(await reader.readexactly(_ANSWER.size))
                content = await reader.readexactly(size)
                self.loaded = True
            except (OSError, asyncio.IncompleteReadError) as error:
                self._process, self.loaded = None, False
                writer.close()
                await _end(process)
                raise LedgerError("the process that reads episodes ended: open the episode again") from error
        if failed:
            raise LedgerError(content.decode(errors="replace"))
        return content

    async def _started(self) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader, asyncio.StreamWriter]:
        if self._closed:
            raise LedgerError("the viewer is closed")
        if self._process is None or self._streams is None:
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-c", _PROGRAM, self.tokenizer, str(theirs.fileno())),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                )
            self._streams = await asyncio.open_connection(sock=ours, limit=1 << 24)
        return self._process, *self._streams

    async def close(self) -> None:
        """End the process."""
        self._closed = True
        if self._process is not None and self._streams is not None:
            self._streams[1].close()
            await _end(self._process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        try:
            process.kill()
        except ProcessLookupError:
            pass
    await process.wait()


# --- in the process ---------------------------------------------------------------------------------------------------


def work(tokenizer: str, descriptor: int) -> None:
    """Answer requests from a socket until it ends; `tokenizer`: its name or path."""
    texts, error = None, ""
    try:
        texts = TokenTexts(tokenizer)
        with suppress(OSError, AttributeError):  # no glibc
            ctypes.CDLL(None).malloc_trim(0)  # what loading took beyond the tokenizer itself, a tenth of the process
    except StrandsSGLangError as problem:
        error = str(problem)
    requests = socket.socket(fileno=descriptor)
    with requests, requests.makefile("rb") as source, suppress(ConnectionError):  # the parent ended
        while size := source.read(_HEAD.size):
            head = orjson.loads(_exactly(source, _HEAD.unpack(size)[0]))
            places = [Placed(_exactly(source, count), shard, byte) for shard, byte, count in head["places"]]
            try:
                failed, content = 0, orjson.dumps(answer(head, places, texts, error))
            except Exception as problem:  # anything that a damaged record causes is an answer
                told = (
                    str(problem) if isinstance(problem, StrandsSGLangError) else f"{type(problem).__name__}: {problem}"
                )
                failed, content = 1, told.encode(errors="replace")
            requests.sendall(_ANSWER.pack(failed, len(content)) + content)


def answer(head: Mapping[str, Any], places: Sequence[Placed], texts: TokenTexts | None, error: str) -> Any:
    """Return the answer to a request, in this process; `error`: why the tokenizer could not be loaded, "" if it was."""
    if head["do"] == "load":
        return {"error": error}
    record = resolved(head["id"], places)
    if head["do"] == "rendered":
        return jsonable(rendered_view(record, head["branch"], texts, head["run"]))
    if head["do"] == "drift":
        return jsonable(drift_view(record, texts))
    return {**episode_view(record, texts), "row": jsonable(head["row"]), "tokenizer_error": jsonable(error)}


def _exactly(source: BinaryIO, size: int) -> bytes:
    data = source.read(size)
    if len(data) != size:
        raise SystemExit(1)  # the parent ended
    return data
