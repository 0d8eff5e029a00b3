"""The local server: what it answers, to whom, and with which headers."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import orjson
import pytest
from aiohttp import ClientTimeout
from aiohttp.test_utils import TestClient, TestServer

from strands_sglang.errors import ConfigurationError, LedgerError, StrandsSGLangError
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.files import file_digest
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.viewer import view
from strands_sglang.viewer.drift import rendered_view
from strands_sglang.viewer.export import export_html
from strands_sglang.viewer.index import RunIndex
from strands_sglang.viewer.search import search_run
from strands_sglang.viewer.server import HEADERS, RunViewer, create_app, serve
from strands_sglang.viewer.verdict import RunVerdict, episode_verdict, run_state, shortened_certificate
from strands_sglang.viewer.worker import EpisodeWorker
from support.chat.tokenizers_with_code import tokenizer_with_code
from support.families import tokenizer
from support.interrupts import heeds_interrupts
from support.ledger.episodes import Recorder
from support.pictures import png
from support.rollout.looking import OPTIONS, TASKS, build, engine
from support.rollout.scripts import run
from support.viewer.recorded_run import FAMILY, TOKENIZER
from support.viewer.tampered import odd_run


@asynccontextmanager
async def serving(viewer: RunViewer) -> AsyncIterator[TestClient[Any, Any]]:
    """Serve a run to a client that has opened its page."""
    async with TestClient(TestServer(create_app(viewer), host="127.0.0.1")) as client:
        assert await status(client, f"/?token={viewer.token}") == 200
        yield client


async def answer(client: TestClient[Any, Any], path: str, **options: Any) -> Any:
    async with client.get(path, **options) as response:
        return await response.json()


async def status(client: TestClient[Any, Any], path: str, **options: Any) -> int:
    async with client.get(path, **options) as response:
        return response.status


@pytest.fixture
async def client(recorded_run: Path) -> AsyncIterator[TestClient[Any, Any]]:
    async with serving(RunViewer(recorded_run, tokenizer(FAMILY))) as client:
        yield client


PATHS = [
    *("/", "/static/main.js", "/static/style.css", "/static/icon.svg", "/api/run", "/api/rows?since=0", "/api/verdict"),
    *("/api/episode?id=hostile-1/0", "/api/verdict?id=hostile-1/0", "/api/events?id=hostile-1/0", "/api/search?q=7"),
    "/api/drift?id=algebra-601/0",
    *("/api/rendered?id=errors-1/0&branch=2", "/nothing", "/api/episode?id=none", "/api/rendered?id=x&branch=y"),
]


@pytest.mark.parametrize("path", PATHS)
async def test_every_answer_has_the_headers(client: TestClient[Any, Any], path: str) -> None:
    async with client.get(path) as response:
        for name, value in HEADERS.items():
            assert response.headers[name] == value
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        content = await response.read()
        assert (response.status == 200) == (path not in PATHS[-3:]), content


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_only_get_is_answered(client: TestClient[Any, Any], method: str) -> None:
    async with client.request(method, "/api/run") as response:
        assert response.status == 405


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example:1", "", "127.0.0.2:5", "localhost:1:2", "a@127.0.0.1"],
)
async def test_other_hosts_are_refused(client: TestClient[Any, Any], host: str) -> None:
    async with client.get("/api/rows", headers={"Host": host}) as response:
        assert response.status == 421
        assert b"algebra" not in await response.read()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:4000", "localhost:1", "[::1]:9", "[::1]"])
async def test_this_machine_is_served(client: TestClient[Any, Any], host: str) -> None:
    assert await status(client, "/api/run", headers={"Host": host}) == 200


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/run", "/api/events?id=algebra-601/0"])
@pytest.mark.parametrize("given", ["", "another-token-of-a-run", "é"])
async def test_nobody_reads_the_run_without_its_token(recorded_run: Path, path: str, given: str) -> None:
    viewer = RunViewer(recorded_run, token="a-token-for-scripts")
    cookie = "strands-sglang-" + hashlib.sha256(viewer.token.encode()).hexdigest()[:8]
    async with TestClient(TestServer(create_app(viewer), host="127.0.0.1")) as client:
        headers = {"Cookie": f"{cookie}={quote(given)}"}
        async with client.get(path, params={"token": given}, headers=headers) as refused:
            assert refused.status == 401 and "Set-Cookie" not in refused.headers
            assert "the whole address that the command printed" in (await refused.json())["error"]
        async with client.get(path, params={"token": viewer.token}) as first, client.get(path) as second:
            assert (first.status, second.status) == (200, 200), "the cookie is enough"
            assert [first.cookies[cookie][name] for name in ("httponly", "samesite", "path")] == [True, "Lax", "/"]


def test_the_command_line_of_the_browser_has_no_token(
    recorded_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user of the machine sees it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    seen: list[str] = []

    def opened(address: str) -> None:
        seen.append(address)
        page = Path(unquote(urlsplit(address).path))
        assert page.parent.parent == tmp_path and page.parent.stat().st_mode & 0o77 == 0
        assert re.findall(r"url=(.*)\"", page.read_text()) == addresses
        raise KeyboardInterrupt

    addresses: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened)
    view(recorded_run, ready=addresses.append)
    assert len(seen) == 1 and "token" not in seen[0] and "?token=" in addresses[0]
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    before = signal.getsignal(signal.SIGINT)
    heeds_interrupts()
    try:
        threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
        view(recorded_run, ready=addresses.append)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(addresses) == 2 and len(seen) == 1


def test_tokens_are_random_and_long(recorded_run: Path) -> None:
    assert len({RunViewer(recorded_run).token for _ in range(3)}) == 3
    for token in ("", "short", "a" * 15, "a/" * 16):
        with pytest.raises(ConfigurationError, match="token must be at least 16"):
            RunViewer(recorded_run, token=token)


async def test_requests_of_other_sites_are_refused(client: TestClient[Any, Any]) -> None:
    assert await status(client, "/api/rows", headers={"Sec-Fetch-Site": "cross-site"}) == 403
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert await status(client, "/", headers=headers) == 200, "a link to the page may be followed"


@pytest.mark.parametrize(
    "name",
    [
        *("../server.py", "%2e%2e%2fserver.py", "..%5cserver.py", ".hidden.js", "none.js", "main.js%00.js"),
        *("..%5c..%5cmain.js", "c:main.js", "/etc/passwd", "%2fetc%2fpasswd", "main.JS", "style.css%0a"),
    ],
)
async def test_no_other_file_is_served(client: TestClient[Any, Any], name: str) -> None:
    assert await status(client, f"/static/{name}") == 404


async def test_rows_episode_and_verdict(client: TestClient[Any, Any]) -> None:
    while not (rows := await answer(client, "/api/rows?since=0"))["complete"]:
        pass
    assert len(rows["rows"]) == 44 and rows["version"] >= 44
    assert (await answer(client, f"/api/rows?since={rows['version']}"))["rows"] == []
    assert (await answer(client, "/api/episode?id=algebra-601/0"))["row"]["id"] == "algebra-601/0"
    assert (await answer(client, "/api/verdict?id=algebra-601/0"))["verdict"] == "proved"
    for _ in range(300):
        state = await answer(client, "/api/verdict")
        if state["certificate"] is not None or state["error"]:
            break
        await asyncio.sleep(0.1)
    assert state["certificate"]["verdict"] == "proved", state


def test_search_finds_what_messages_say(recorded_run: Path) -> None:
    def found(query: str) -> set[str]:
        return {id for id in search_run(recorded_run, query) if id is not None}

    assert found("TOKYO: naïve") == {f"errors-1/{sample}" for sample in range(4)}
    assert found("東京") == found("tokyo: naïve"), "only results hold these"
    assert found("multiply 601 by") == {f"algebra-601/{sample}" for sample in range(4)}
    assert {id.partition("/")[0] for id in found('"expression": }')} == {"errors-1"}
    assert found("conversations") == set() and found("blake2b") == set() and found("  ") == set()


def test_search_finds_everything_that_went_wrong(tmp_path: Path) -> None:
    """Each text occurs in one place of one episode only; fields of the ledger never match."""
    texts: dict[str, Callable[[Recorder], Any]] = {
        "reward error": lambda made: made.append(
            EventKind.REWARD, {"value": None, "parts": {}, "steps": [], "error": 'ZeroDivisionError: "scorer" gave up'}
        ),
        "reward part": lambda made: made.append(
            EventKind.REWARD, {"value": 0.5, "parts": {"brevity_bonus": 0.25}, "steps": [], "error": None}
        ),
        "tool error": lambda made: made.append(
            EventKind.TOOL,
            {
                **{"id": "t1", "name": "lookup", "arguments_digest": "00", "arguments": {"city_name": ["Ulm\nDonau"]}},
                **{"result": {"status": "error", "content": [{"text": "Error: no such row"}]}, "outcome": "raised"},
                **{"raised": "KeyError: 'absent_key'", "raised_at": "lookup_tool.py:17 in find"},
                **{"seconds": 0.1, "calls": 0, "within": []},
            },
        ),
        "engine error": lambda made: made.append(
            EventKind.CALL_ERROR,
            {
                "error": "EngineTimeoutError",
                "message": "no answer in 3 s",
                "prompt_digest": "",
                "prompt_tokens": 1,
                "within": [],
            },
        ),
        "rollback": lambda made: made.append(EventKind.ROLLBACK, {"turns": 0, "reason": "the agent took another path"}),
        "failure": lambda made: made.append(
            EventKind.END,
            {
                **{"end_reason": "agent_error", "metrics": {}, "text": "", "rejected": [], "trajectories": []},
                "failure": {"kind": "AgentBroke", "message": "spilled coffee", "where": "agent.py:5"},
            },
        ),
        "malformed call": lambda made: made.append(
            EventKind.CALL, {"turn": 0, "detail": {"failed_calls": ["unclosed_bracket"]}}
        ),
    }
    with LedgerWriter(tmp_path) as writer:
        for name, add in texts.items():
            add(Recorder(writer.write, task=name))

    def found(query: str) -> set[str]:
        return {id.rpartition("/")[0] for id in search_run(tmp_path, query) if id is not None}

    assert found("zerodivisionERROR") == found('"scorer" gave') == {"reward error"}
    assert found("brevity") == {"reward part"}
    for query in ("lookup", "city_name", "ulm\ndonau", "no such row", "absent_key", "lookup_tool.py:17"):
        assert found(query) == {"tool error"}, query
    assert found("EngineTimeout") == found("no answer in") == {"engine error"}
    assert found("another path") == {"rollback"}
    assert found("agentbroke") == found("spilled coffee") == found("agent.py:5") == {"failure"}
    assert found("unclosed_bracket") == {"malformed call"}
    assert not any(found(query) for query in ("failed_calls", "raised_at", "parts", "reward_error", "blake2b"))


async def test_serve_listens_on_this_machine_only(recorded_run: Path) -> None:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    viewer = RunViewer(recorded_run)
    task = asyncio.create_task(serve(viewer, ready=ready.set_result, stop=stop))
    address = await ready
    assert address.startswith("http://127.0.0.1:") and address.endswith(f"/?token={viewer.token}")
    with pytest.raises(ConfigurationError, match="port must be free"):
        await serve(RunViewer(recorded_run), port=urlsplit(address).port or 0)
    stop.set()
    await task


def test_errors_say_what_to_do(tmp_path: Path, recorded_run: Path) -> None:
    with pytest.raises(LedgerError, match="must be the directory of a run"):
        RunViewer(tmp_path)
    with pytest.raises(LedgerError, match="does not exist"):
        RunViewer(tmp_path / "none")
    with pytest.raises(ConfigurationError, match="port must be an int from 0 to 65535"):
        view(recorded_run, port=70_000)


def test_an_unknown_tokenizer_leaves_ids(recorded_run: Path) -> None:
    viewer = RunViewer(recorded_run, "/nonexistent/tokenizer")
    viewer.index.refresh()
    episode = orjson.loads(viewer.episode("algebra-601/0"))
    assert not episode["decoded"] and "nonexistent" in viewer.about()["tokenizer_error"]


async def test_the_verifier_imports_nothing_from_the_current_directory(
    recorded_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("orjson", "numpy", "json", "asyncio", "strands_sglang"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    verdict = RunVerdict(recorded_run)
    while verdict.current()["running"]:
        await asyncio.sleep(0.05)
    assert verdict.current()["certificate"]["verdict"] == "proved", verdict.error
    assert not (tmp_path / "imported").exists()


async def test_the_verifier_ends_with_the_viewer(tmp_path: Path) -> None:
    """Its standard input ends when the viewer does, even if the viewer is killed."""
    from strands_sglang.viewer.verdict import _VERIFIER

    slow = _VERIFIER.replace("write_certificate(sys.argv[1])", "import time, strands_sglang.viewer.verdict as verdict")
    slow += "\nverdict.shortened_certificate = lambda directory: time.sleep(600)\nwrite_certificate(sys.argv[1])\n"
    command = (sys.executable, "-c", slow, str(tmp_path))
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(process.wait(), 1.5)
    assert process.stdin is not None
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), 30) == 1


def files_of(directory: Path) -> dict[str, tuple[int, int]]:
    found = {str(path): path.stat() for path in [directory, *directory.rglob("*")]}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}


async def test_the_run_is_not_changed(recorded_run: Path) -> None:
    before = files_of(recorded_run)
    async with serving(RunViewer(recorded_run, tokenizer(FAMILY))) as client:
        for path in PATHS:
            async with client.get(path) as response:
                await response.read()
    assert files_of(recorded_run) == before


async def test_the_table_does_not_wait_for_episodes(recorded_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    viewer = RunViewer(recorded_run)
    monkeypatch.setattr(RunIndex, "start", lambda self: None)  # the ledger is not read yet
    async with serving(viewer) as client:
        waiting = [asyncio.create_task(client.get(f"/api/episode?id=algebra-60{n}/0")) for n in range(6)]
        await asyncio.sleep(0.1)
        async with client.get("/api/rows", timeout=ClientTimeout(10)) as response:
            assert (await response.json())["rows"] == []
        viewer.index.refresh()
        for task in waiting:
            response = await task
            assert response.status == 200
            response.release()


async def test_a_worker_answers_as_the_viewer_itself_does(recorded_run: Path) -> None:
    viewer = RunViewer(recorded_run, TOKENIZER)
    direct = RunViewer(recorded_run, tokenizer(FAMILY))
    direct.index.refresh()
    async with serving(viewer) as client:
        for id in ("hostile-1/0", "broken-1/0", "window-1/0"):
            assert await answer(client, "/api/episode", params={"id": id, "wait": "1"}) == orjson.loads(
                direct.episode(id)
            )
            assert await answer(client, "/api/drift", params={"id": id}) == orjson.loads(
                direct.answer({"do": "drift", "id": id})
            )
        assert (await answer(client, "/api/rendered?id=errors-1/0&branch=2"))["spans"]
        assert await status(client, "/api/episode?id=none/0") == 404
        assert (await answer(client, "/api/run"))["tokenizer_error"] == ""


async def test_a_worker_that_dies_is_replaced(recorded_run: Path) -> None:
    index = RunIndex(recorded_run)
    index.refresh()
    worker = EpisodeWorker("/nonexistent/tokenizer")
    assert "nonexistent" in orjson.loads(await worker.ask({"do": "load"}))["error"]
    assert worker._process is not None and worker.loaded
    worker._process.kill()
    await worker._process.wait()
    request = {"do": "episode", "id": "algebra-601/0", "row": None}
    with pytest.raises(LedgerError, match="open the episode again"):
        await worker.ask(request, index.places("algebra-601/0"))
    assert not worker.loaded
    episode = orjson.loads(await worker.ask(request, index.places("algebra-601/0")))
    assert episode["id"] == "algebra-601/0" and not episode["decoded"] and "nonexistent" in episode["tokenizer_error"]
    with pytest.raises(LedgerError, match="KeyError"):
        await worker.ask({"do": "rendered", "id": "algebra-601/0"}, index.places("algebra-601/0"))
    await worker.close()
    with pytest.raises(LedgerError, match="closed"):
        await worker.ask({"do": "load"})


async def test_bytes_of_a_ledger_answer_no_question(recorded_run: Path, tmp_path: Path) -> None:
    """A run can name a tokenizer with code, and transformers asks on the standard input whether to run it."""
    mark = tokenizer_with_code(tmp_path / "own")
    async with serving(RunViewer(recorded_run, tmp_path / "own")) as client:
        shown = await answer(client, "/api/episode?id=algebra-601/0&wait=1", timeout=ClientTimeout(60))
    assert "It is not executed" in shown["tokenizer_error"] and not shown["decoded"] and not mark.exists()
    worker = EpisodeWorker(str(tmp_path / "own"))
    await worker.ask({"do": "load"})
    assert worker._process is not None
    assert [os.readlink(f"/proc/{worker._process.pid}/fd/{number}") for number in (0, 1)] == ["/dev/null"] * 2
    await worker.close()


VISION_FAMILY = "qwen3.5"
IMAGES = [png(140, 84, 1), png(64, 96, 1), png(64, 96, 2)]
"""What the task shows, and what its tool returns."""


@pytest.fixture
async def recorded(tmp_path: Path) -> Path:
    await run(build, TASKS[:1], engine(), tmp_path / "run", **OPTIONS)
    return tmp_path / "run"


async def test_images_are_served_by_digest(recorded: Path) -> None:
    async with serving(RunViewer(recorded, tokenizer(VISION_FAMILY))) as client:
        for data in IMAGES:
            async with client.get(f"/api/image?digest={file_digest(data)}") as response:
                assert response.status == 200 and await response.read() == data
                assert response.content_type == "image/png"
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert "immutable" in response.headers["Cache-Control"]
        for wrong in ("", "0" * 64, "../run.json", "..%2Frun.json", "ab"):
            async with client.get(f"/api/image?digest={wrong}") as response:
                assert response.status != 200
        view = await answer(client, "/api/episode?id=a/0")
    items = [item for turn in view["turns"] for row in turn["rows"] for item in row["items"]]
    shown = [digest for item in items for digest in item.get("images", ())]
    assert shown == [file_digest(data) for data in IMAGES]


async def test_a_file_that_was_changed_is_not_served(recorded: Path) -> None:
    digest = file_digest(IMAGES[0])
    (recorded / "files" / digest[:2] / f"{digest[2:]}.png").write_bytes(IMAGES[1])
    async with serving(RunViewer(recorded, tokenizer(VISION_FAMILY))) as client:
        async with client.get(f"/api/image?digest={digest}") as response:
            assert response.status != 200


async def test_exported_files_have_their_images(recorded: Path, tmp_path: Path) -> None:
    export_html(recorded, tmp_path / "one.html", tokenizer=tokenizer(VISION_FAMILY))
    page = (tmp_path / "one.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "img-src data:" in page


VERDICTS = ("proved", "broken", "unfinished", "data_lost")


@pytest.mark.parametrize("seed", range(12))
def test_anything_in_an_event_is_shown_or_a_problem(recorded_run: Path, tmp_path: Path, seed: int) -> None:
    odd_run(recorded_run, tmp_path / "run", seed=seed)
    viewer = RunViewer(tmp_path / "run", tokenizer(FAMILY))
    viewer.index.refresh()
    for line in viewer.index.rows_since(0)[1]:
        orjson.loads(line)
    orjson.dumps(viewer.about(), default=str)
    for id in viewer.index.ids():
        shown = orjson.loads(viewer.episode(id))
        assert shown["id"] == id
        for turn in shown["turns"]:
            assert isinstance(turn["detail"], dict) and isinstance(turn["versions"], list)
        orjson.loads(viewer.events(id))
        assert episode_verdict(viewer.index, id, viewer.run)["verdict"] in VERDICTS
        for leaf in (0, 1, 10_000):
            try:
                rendered_view(viewer.index.record(id), leaf, viewer.texts(), viewer.run)
            except StrandsSGLangError:
                pass  # a leaf that does not exist: the page shows the message
    assert len(list(search_run(tmp_path / "run", "compute"))) > 0
    assert shortened_certificate(tmp_path / "run")["verdict"] in VERDICTS


def test_files_that_are_no_ledger_are_shown(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "0-noise.ledger").write_bytes(random.Random(1).randbytes(5000))
    (tmp_path / "ledger" / "1-empty.ledger").write_bytes(b"")
    (tmp_path / "ledger" / "2-folder.ledger").mkdir()
    viewer = RunViewer(tmp_path)
    viewer.index.refresh()
    assert viewer.index.ids() == []
    assert list(filter(None, search_run(tmp_path, "a"))) == []
    assert len(run_state(tmp_path)) >= 2


def test_a_viewer_does_not_import_the_sdk() -> None:
    """It would be half of the memory of each of its processes."""
    found = "{'strands', 'transformers', 'strands_sglang.runs'} & set(sys.modules)"
    code = f"import sys, strands_sglang.viewer.training_server; print({found})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
