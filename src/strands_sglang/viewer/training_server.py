"""The viewer of a folder of runs: `TrainingViewer`.

    /                            the page of the folder; /static/... as for one run
    /api/training?since=N&by=    list and curves (`training.py`), if anything changed after version N; by=step, weights,
                                 or nothing: what fits
    /api/tasks?of=NAME&last=N    the figures of every task, of a run or a training (its last N steps)
    /api/compare?a=&b=&last=     two runs or trainings on the same tasks
    /api/proved?name=            the verdict of a run, computed when it is asked for, one run at a time
    /run/NAME/                   the page of one run, and its /run/NAME/api/... (`server.py`)

Invariants: those of `server.py`. A run is opened when its page asks for it, and is closed when others are
asked for; of a run that is not open nothing is read but the rows that its figures are computed from.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from strands_sglang._json import jsonable
from strands_sglang._version import __version__
from strands_sglang.errors import LedgerError
from strands_sglang.viewer.server import RunHandlers, RunViewer, checked_token, guarded_app, json_answer, static_handler
from strands_sglang.viewer.training import TrainingIndex, tasks_of
from strands_sglang.viewer.verdict import RunVerdict
from strands_sglang.viewer.worker import EpisodeWorker

_OPEN = 3  # runs whose rows are kept, and more only if pages ask for them
_IDLE_SECONDS = 30.0  # since the last request for a run: its page asks more often


class TrainingViewer:
    """Everything that the server knows about a folder of runs."""

    def __init__(self, folder: Path | str, tokenizer: Any = None, *, token: str | None = None) -> None:
        """Find the runs; LedgerError if there is none. For `tokenizer` and `token` see `RunViewer`."""
        self.token = checked_token(token)
        self.folder = Path(folder)
        self.tokenizer = tokenizer
        self.index = TrainingIndex(self.folder)
        if not self.index.runs():
            raise LedgerError(
                f"{self.folder} must be the directory of a run, or a folder with runs, but has no run.json and no "
                "ledger, and neither has any folder in it"
            )

    def app(self) -> web.Application:
        """Return the web application that shows the folder."""
        app, handlers = guarded_app(self.token, "training.html"), _FolderHandlers(self)
        app.router.add_get("/api/training", handlers.training)
        app.router.add_get("/api/tasks", handlers.tasks)
        app.router.add_get("/api/compare", handlers.compared)
        app.router.add_get("/api/proved", handlers.proved)
        app.router.add_get("/run/{run}/", static_handler("index.html"))
        app.router.add_get("/run/{run}/api/{what}", handlers.of_run)
        app.on_startup.append(handlers.start)
        app.on_cleanup.append(handlers.stop)
        return app


class _FolderHandlers:
    def __init__(self, viewer: TrainingViewer) -> None:
        self.viewer = viewer
        self.open: dict[str, RunHandlers] = {}  # the run that was asked for last is the last one
        self.asked: dict[str, float] = {}  # when a run was asked for, by name
        self.workers: dict[str, EpisodeWorker] = {}
        self.verdicts: dict[str, RunVerdict] = {}
        self.opening = asyncio.Lock()

    async def start(self, app: web.Application) -> None:
        self.viewer.index.start()

    async def stop(self, app: web.Application) -> None:
        self.viewer.index.stop()
        for handlers in self.open.values():
            await handlers.stop()
        for worker in self.workers.values():
            await worker.close()
        for verdict in self.verdicts.values():
            await verdict.close()

    async def training(self, request: web.Request) -> web.StreamResponse:
        return json_answer(await asyncio.to_thread(self._training, request.query))

    def _training(self, query: Any) -> bytes:
        index = self.viewer.index
        version, complete = index.version, index.complete.is_set()
        answer: dict[str, Any] = {"version": version, "complete": complete}
        if query.get("since") != f"{version}":
            folder, by = self.viewer.folder.resolve(), query.get("by") or index.usual_curves()
            answer |= {"path": str(folder), "name": folder.name, "program": __version__}
            answer |= {"by": by, "curves": index.curves(by), "runs": [one.to_dict() for one in index.runs()]}
        return orjson.dumps(jsonable(answer))

    async def tasks(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        figures = await asyncio.to_thread(self.viewer.index.figures, query.get("of", ""), _last(query))
        return json_answer(orjson.dumps(jsonable(tasks_of(figures))))

    async def compared(self, request: web.Request) -> web.StreamResponse:
        return json_answer(await asyncio.to_thread(self._compared, request.query))

    def _compared(self, query: Any) -> bytes:
        from strands_sglang.runs.offline.comparison import compare_figures  # with it comes all that runs agents

        both = [self.viewer.index.figures(query.get(name, ""), _last(query)) for name in "ab"]
        found = compare_figures(*both).to_dict()
        for line in found["tasks"]:
            tasks = [figures.tasks[line["task"]] for figures in both]
            line["best"] = [task.extreme(max) for task in tasks]
            line["worst"] = [task.extreme(min) for task in tasks]
            line["prompt"] = tasks[0].prompt
        return orjson.dumps(jsonable({**found, "figures": [figures.to_dict() for figures in both]}))

    async def proved(self, request: web.Request) -> web.StreamResponse:
        name = request.query.get("name", "")
        place = self.viewer.index.place(name)
        verdict = self.verdicts.setdefault(name, RunVerdict(place.path))
        busy = any(one.running for one in self.verdicts.values() if one is not verdict)
        state = {"running": True, "outdated": False} if busy else verdict.current()
        running = state["running"] or state["outdated"]  # what changed a moment ago is proved again a moment later
        known = (verdict.certificate or {}).get("verdict")
        return json_answer(orjson.dumps({"verdict": known, "running": running, "error": verdict.error}))

    async def of_run(self, request: web.Request) -> web.StreamResponse:
        handlers = await self._opened(request.match_info["run"])
        handler = handlers.api.get(request.match_info["what"])
        if handler is None:
            raise web.HTTPNotFound
        return await handler(request)

    async def _opened(self, name: str) -> RunHandlers:
        async with self.opening:
            handlers = self.open.pop(name, None)
            if handlers is None:
                place = self.viewer.index.place(name)
                viewer = await asyncio.to_thread(RunViewer, place.path, self.viewer.tokenizer, token=self.viewer.token)
                handlers = RunHandlers(viewer, self.workers)
                await handlers.start()
            self.open[name], self.asked[name] = handlers, time.monotonic()
            while len(self.open) > _OPEN and time.monotonic() - self.asked[next(iter(self.open))] > _IDLE_SECONDS:
                await self.open.pop(next(iter(self.open))).stop()
            return handlers


def _last(query: Any) -> int | None:
    text = query.get("last", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else None
