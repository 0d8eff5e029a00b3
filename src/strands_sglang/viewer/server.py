"""The local web server of the viewer: `create_app`, `serve`.

    /                       the page; /static/... its scripts and style
    /api/run                run.json, counts, progress of reading
    /api/rows?since=N       rows of the table that changed after version N
    /api/tasks              the figures of every task
    /api/episode?id=ID      one episode (`episode.py`), with ids for texts while the tokenizer is loading;
                            &wait=1: with texts, once it is loaded
    /api/drift?id=ID        what encoding the text of an episode again would have made of its tokens
    /api/verdict?id=ID      the verdict of one episode; without id: of the run
    /api/rendered?id=&branch= what rendering the messages again would have made of a branch
    /api/trainer?id=ID      what a trainer made of the tokens of an episode: values by name, by turn
    /api/events?id=ID       the events of an episode as JSON
    /api/search?q=TEXT      ids of episodes that contain a text, one per line

Invariants: the server listens on 127.0.0.1 only, answers only GET and HEAD, and changes nothing on disk. Every user of
the machine reaches its port, so each request must present its token: in the address (`?token=`), or in the cookie that
the answer to such a request sets. It rejects requests whose Host header names another machine (DNS rebinding) and
requests that another site made. Every response forbids the browser to run or load anything that is not part of this
package.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import orjson
from aiohttp import web

from strands_sglang._json import dump_text, jsonable
from strands_sglang._version import __version__
from strands_sglang.errors import ConfigurationError, LedgerError, StrandsSGLangError
from strands_sglang.ledger.encoding import decoded_head
from strands_sglang.ledger.figures import Figures
from strands_sglang.ledger.files import FileStore
from strands_sglang.ledger.run_dir import read_run, shard_paths
from strands_sglang.ledger.trainer_values import TrainerFile
from strands_sglang.viewer.episode import episode_view
from strands_sglang.viewer.index import RunIndex
from strands_sglang.viewer.search import MAX_QUERY, search_run
from strands_sglang.viewer.token_text import TokenTexts
from strands_sglang.viewer.training import tasks_of
from strands_sglang.viewer.verdict import RunVerdict, episode_verdict
from strands_sglang.viewer.worker import EpisodeWorker, answer

logger = logging.getLogger(__name__)

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
_FOREVER = "private, max-age=31536000, immutable"
HOSTS = ("127.0.0.1", "localhost", "[::1]")  # host names under which the page may be opened

_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,}")
_COOKIE_SECONDS = 3 * 24 * 3600  # after the last answer: cookies of viewers that have ended must not add up

_STATIC_NAME = re.compile(r"[a-z_]+\.(?:html|js|css|svg)")
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def static_file(name: str) -> bytes | None:
    """Return a file of the page; None if there is none of this name."""
    if not _STATIC_NAME.fullmatch(name):
        return None
    path = resources.files("strands_sglang.viewer").joinpath("static").joinpath(name)
    return path.read_bytes() if path.is_file() else None


def checked_token(token: str | None) -> str:
    """Return a token that requests must present: the given one if it is valid, or a random one for None."""
    if token is not None and not _TOKEN.fullmatch(token):
        raise ConfigurationError(
            f"token must be at least 16 letters, digits, '_' or '-', got {len(token)} characters; omit it for a "
            "random one"
        )
    return token or secrets.token_hex(16)


class RunViewer:
    """Everything that the server knows about one run."""

    def __init__(self, directory: Path | str, tokenizer: Any = None, *, token: str | None = None) -> None:
        """Open a run; LedgerError if there is none.

        `tokenizer` None: the one that run.json names, if any. `token`: what a request must present; None: a random one.
        """
        self.token = checked_token(token)
        self.directory = Path(directory)
        if not self.directory.is_dir():
            raise LedgerError(f"{self.directory} must be the directory of a run, but does not exist")
        self.run = read_run(self.directory)  # content of run.json; None if it does not exist
        if self.run is None and not shard_paths(self.directory):
            raise LedgerError(f"{self.directory} must be the directory of a run, but has no run.json and no ledger")
        self.files = FileStore(self.directory)
        self.trainer = TrainerFile(self.directory)
        self.index = RunIndex(self.directory)
        self.verdict = RunVerdict(self.directory)
        named = (self.run or {}).get("tokenizer")
        self.tokenizer_name = _name(tokenizer) or (named if isinstance(named, str) else None)
        """Name of the tokenizer; None if it is unknown."""
        self.tokenizer_error = ""  # why the tokenizer could not be loaded; "" if it was, or is not loaded yet
        self.tokenizer = self.tokenizer_name if tokenizer is None else tokenizer
        """The tokenizer, or its name or path; None if it is unknown."""
        self._texts: TokenTexts | None = None
        self._loaded = False
        self._loading = threading.Lock()

    def texts(self) -> TokenTexts | None:
        """Return the tokenizer, loaded at the first call; None if there is none or it cannot be loaded."""
        with self._loading:
            if not self._loaded and self.tokenizer is not None:
                try:
                    self._texts = TokenTexts(self.tokenizer)
                except ConfigurationError as error:
                    self.tokenizer_error = str(error)
                    logger.warning("tokenizer=<%s> | tokens are shown as ids: %s", self.tokenizer_name, error)
            self._loaded = True
            return self._texts

    def app(self) -> web.Application:
        """Return the web application that shows the run."""
        return create_app(self)

    def about(self) -> dict[str, Any]:
        """Return what the page shows of the run as a whole."""
        if self.run is None:
            self.run = read_run(self.directory)
        return {
            "version": __version__,
            "directory": str(self.directory),
            "path": str(self.directory.resolve()),
            "run": self.run,
            "sealed": (self.directory / "seal.json").exists(),
            "complete": self.index.complete.is_set(),
            "rows": self.index.version,
            "tokenizer": self.tokenizer_name,
            "tokenizer_error": self.tokenizer_error,
            "now": time.time(),
        }

    def answer(self, request: Mapping[str, Any]) -> bytes:
        """Return the answer to a request of `worker.py`, computed here, as JSON; LedgerError for an unknown id."""
        places = self.index.places(request["id"])  # an episode that is found has its row
        head = {**request, "row": self.index.row(request["id"])}
        return orjson.dumps(answer(head, places, self.texts(), self.tokenizer_error))

    def episode(self, id: str) -> bytes:
        """Return one episode as JSON; LedgerError if there is none."""
        return self.answer({"do": "episode", "id": id})

    def episode_as_ids(self, id: str) -> bytes:
        """Return one episode as JSON, without the texts of tokens: for as long as the tokenizer is loading."""
        view = episode_view(self.index.record(id))
        return orjson.dumps({**view, "row": jsonable(self.index.row(id)), "loading": True})

    def image(self, digest: str) -> bytes:
        """Return an image that the run has stored; LedgerError if there is none, or its file was changed."""
        data = self.files.read(digest)
        if not data.startswith(b"\x89PNG\r\n\x1a\n"):
            raise LedgerError(f"file {digest:.80} is not an image that the page shows")
        return data

    def trainer_values(self, id: str) -> bytes:
        """Return what a trainer made of the tokens of an episode, as JSON: values by name, by turn."""
        return orjson.dumps(jsonable(self.trainer.of(id)), option=orjson.OPT_NON_STR_KEYS)

    def events(self, id: str) -> bytes:
        """Return the events of an episode as JSON, without their arrays; LedgerError if there is no such episode."""
        heads = []
        for place in self.index.places(id):
            with suppress(LedgerError):  # told as a problem of the episode
                heads.append(decoded_head(place.data))
        plain = [
            {
                "number": head.number,
                "epoch": head.epoch,
                "kind": head.kind.value,
                "data": head.data,
                "counts": head.counts,
            }
            for head in sorted(heads, key=lambda head: (head.number, head.epoch))
        ]
        return dump_text(jsonable(plain)).encode()


TOKEN: web.AppKey[str] = web.AppKey("token", str)
"""What a request to an application must present."""


class RunHandlers:
    """Answers the requests about one run; `workers`: those of other runs, by tokenizer, which this one may use."""

    def __init__(self, viewer: RunViewer, workers: dict[str, EpisodeWorker] | None = None) -> None:
        self.viewer = viewer
        self.threads = ThreadPoolExecutor(4, "viewer")
        self.workers: dict[str, EpisodeWorker] = {} if workers is None else workers
        self._shared = workers is not None  # whoever gave them closes them
        self.worker: EpisodeWorker | None = None  # a tokenizer that is loaded needs none
        if isinstance(viewer.tokenizer, (str, Path)):
            name = str(viewer.tokenizer)
            self.worker = self.workers.setdefault(name, EpisodeWorker(name))
        self.loading: asyncio.Task[None] | None = None
        self.api: dict[str, Handler] = {
            **{"run": self._about, "rows": self._rows, "tasks": self._tasks, "episode": self._episode},
            **{"drift": self._drift, "trainer": self._trainer, "events": self._events, "image": self._image},
            **{"rendered": self._rendered, "verdict": self._verdict, "search": self._search},
        }

    async def start(self, app: web.Application | None = None) -> None:
        """Start reading the run, and loading its tokenizer."""
        self.viewer.index.start()
        if self.worker is not None:
            self.loading = asyncio.create_task(self._load_tokenizer(self.worker))

    async def stop(self, app: web.Application | None = None) -> None:
        """End everything that was started."""
        self.viewer.index.stop()
        if self.loading is not None:
            self.loading.cancel()
        if self.worker is not None and not self._shared:
            await self.worker.close()
        await self.viewer.verdict.close()
        self.threads.shutdown(wait=False, cancel_futures=True)

    async def _about(self, request: web.Request) -> web.StreamResponse:
        return json_answer(orjson.dumps(jsonable(self.viewer.about())))

    async def _tasks(self, request: web.Request) -> web.StreamResponse:
        tasks = await self._in_thread(lambda: tasks_of(Figures.of("", self.viewer.index.rows())))
        return json_answer(orjson.dumps(jsonable(tasks)))

    async def _rows(self, request: web.Request) -> web.StreamResponse:
        index = self.viewer.index
        # Not in `threads`: the table never waits for episodes that are being read.
        version, lines = await asyncio.to_thread(index.rows_since, _number(request.query.get("since", "")) or 0)
        complete = b"true" if index.complete.is_set() else b"false"
        parts = (b'{"version":%d,"complete":%s,"rows":[' % (version, complete), b",".join(lines), b"]}")
        return json_answer(b"".join(parts))

    async def _episode(self, request: web.Request) -> web.StreamResponse:
        id = request.query.get("id", "")
        if self.worker is not None and not self.worker.loaded and request.query.get("wait") != "1":
            return json_answer(await self._in_thread(self.viewer.episode_as_ids, id))
        return await self._computed({"do": "episode", "id": id})

    async def _drift(self, request: web.Request) -> web.StreamResponse:
        return await self._computed({"do": "drift", "id": request.query.get("id", "")})

    async def _rendered(self, request: web.Request) -> web.StreamResponse:
        id, branch = request.query.get("id", ""), _number(request.query.get("branch", ""))
        if branch is None:
            raise LedgerError(f"branch must be the id of a turn, got {request.query.get('branch', '')!r:.50}")
        return await self._computed({"do": "rendered", "id": id, "branch": branch, "run": self.viewer.run})

    async def _trainer(self, request: web.Request) -> web.StreamResponse:
        return json_answer(await self._in_thread(self.viewer.trainer_values, request.query.get("id", "")))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        return json_answer(await self._in_thread(self.viewer.events, request.query.get("id", "")))

    async def _image(self, request: web.Request) -> web.StreamResponse:
        data = await self._in_thread(self.viewer.image, request.query.get("digest", ""))
        # Its address is its content: it never changes.
        return web.Response(body=data, content_type="image/png", headers={"Cache-Control": _FOREVER})

    async def _verdict(self, request: web.Request) -> web.StreamResponse:
        id, viewer = request.query.get("id"), self.viewer
        if id is None:
            return json_answer(orjson.dumps(jsonable(viewer.verdict.current())))
        return json_answer(orjson.dumps(jsonable(await self._in_thread(episode_verdict, viewer.index, id, viewer.run))))

    async def _search(self, request: web.Request) -> web.StreamResponse:
        query = request.query.get("q", "")[:MAX_QUERY]
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        found = search_run(self.viewer.directory, query)
        with suppress(ConnectionError):  # the page asks for something else
            while (ids := await self._in_thread(_some, found)) is not None:
                await response.write(b"".join(orjson.dumps(id) + b"\n" for id in ids) or b"\n")
            await response.write_eof()
        return response

    async def _computed(self, head: Mapping[str, Any]) -> web.Response:
        if self.worker is None:
            return json_answer(await self._in_thread(self.viewer.answer, head))
        places = await self._in_thread(self.viewer.index.places, head["id"])
        return json_answer(await self.worker.ask({**head, "row": self.viewer.index.row(head["id"])}, places))

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.threads, function, *arguments)

    async def _load_tokenizer(self, worker: EpisodeWorker) -> None:
        viewer = self.viewer
        with suppress(LedgerError):
            viewer.tokenizer_error = orjson.loads(await worker.ask({"do": "load"}))["error"]
        if reason := viewer.tokenizer_error:
            logger.warning("tokenizer=<%s> | tokens are shown as ids: %s", viewer.tokenizer_name, reason)


def guarded_app(token: str, page: str) -> web.Application:
    """Return an application that serves a page and the files of all pages to requests that present the token."""
    app = web.Application(middlewares=[_guard])
    app[TOKEN] = token
    app.router.add_get("/", static_handler(page))
    app.router.add_get("/static/{name}", static_handler())
    return app


def static_handler(page: str = "") -> Handler:
    """Return a handler that answers with a file of the page; "": the one that the address names."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return _static(page or request.match_info["name"])

    return answer


def create_app(viewer: RunViewer) -> web.Application:
    """Return the web application of a run, which answers requests with `viewer.token`."""
    app, handlers = guarded_app(viewer.token, "index.html"), RunHandlers(viewer)
    for name, handler in handlers.api.items():
        app.router.add_get(f"/api/{name}", handler)
    app.on_startup.append(handlers.start)
    app.on_cleanup.append(handlers.stop)
    return app


class Viewer(Protocol):
    """What `serve` shows: a run, or a folder of runs."""

    token: str

    def app(self) -> web.Application:
        """Return the web application."""


async def serve(
    viewer: Viewer,
    *,
    port: int = 0,
    ready: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve a viewer on 127.0.0.1 (port 0: any) until `stop`; `ready` gets its address, which contains the token.

    ConfigurationError if the port is taken.
    """
    runner = web.AppRunner(viewer.app(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        try:
            await site.start()
        except OSError as error:
            raise ConfigurationError(f"port must be free on 127.0.0.1, got {port}: {error}; omit it for any") from error
        actual = runner.addresses[0][1]
        if ready is not None:
            ready(f"http://127.0.0.1:{actual}/?token={viewer.token}")
        await (stop or asyncio.Event()).wait()
    finally:
        await runner.cleanup()


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.method not in ("GET", "HEAD"):
        return _error(405, "only GET is supported: the viewer changes nothing")
    host = re.fullmatch(r"(.*?)(?::\d+)?", request.headers.get("Host", ""))
    if host is None or host[1] not in HOSTS:
        return _error(421, "open the viewer at the address that the command printed")
    opened = request.path == "/" and request.headers.get("Sec-Fetch-Mode") == "navigate"  # a link to the page
    if not opened and request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        return _error(403, "requests of other sites are not answered")
    token = request.app[TOKEN]
    cookie = f"strands-sglang-{hashlib.sha256(token.encode()).hexdigest()[:8]}"  # cookies are the same for all ports
    given = (request.query.get("token", ""), request.cookies.get(cookie, ""))
    if not any(hmac.compare_digest(one.encode(errors="replace"), token.encode()) for one in given):
        return _error(401, "open the viewer at the whole address that the command printed, with its token")
    try:
        response = await handler(request)
    except web.HTTPException as error:
        return _error(error.status, error.reason)
    except StrandsSGLangError as error:
        return _error(404, str(error))
    except (ConnectionError, asyncio.CancelledError):
        raise
    except Exception as error:
        logger.exception("path=<%s> | request failed", request.path)
        return _error(500, f"{type(error).__name__}: {error}")
    if not response.prepared:
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        # Not "Strict", with which a browser may leave it out when a page is reloaded that a file led to.
        response.set_cookie(cookie, token, max_age=_COOKIE_SECONDS, httponly=True, samesite="Lax")
    return response


def _static(name: str) -> web.Response:
    content = static_file(name)
    if content is None:
        return _error(404, "there is no such file")
    return web.Response(body=content, content_type=_TYPES[Path(name).suffix], charset="utf-8", headers=HEADERS)


def json_answer(content: bytes, status: int = 200) -> web.Response:
    """Return JSON as an answer."""
    return web.Response(body=content, status=status, content_type="application/json", headers=HEADERS)


def _error(status: int, message: str) -> web.Response:
    return json_answer(orjson.dumps({"error": jsonable(message)}), status)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _some(found: Any) -> list[str] | None:
    """Return the ids found within a moment; None if the search is over."""
    ids: list[str] = []
    until = time.monotonic() + 0.1
    for id in found:
        if id is not None:
            ids.append(id)
        if time.monotonic() > until:
            return ids
    return ids or None


def _name(tokenizer: Any) -> str | None:
    if tokenizer is None:
        return None
    if isinstance(tokenizer, (str, Path)):
        return str(tokenizer)
    return str(getattr(tokenizer, "name_or_path", type(tokenizer).__name__))
