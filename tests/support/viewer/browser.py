"""A viewer in a separate process, and a browser that watches what the page does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")

_SERVE = """
import sys
from strands_sglang.ledger.reader import Ledger
from strands_sglang.viewer import server, view, worker
from strands_sglang.viewer.index import RunIndex
from strands_sglang.viewer.verdict import RunVerdict

def tell(owner, name, what):
    original = getattr(owner, name)
    def told(self, *given):
        with open(sys.argv[4], "a") as file:
            print(*what(self, *given), sep="\\n", file=file)
        return original(self, *given)
    setattr(owner, name, told)

if sys.argv[4]:
    tell(RunIndex, "_places", lambda index, id, sections: [f"episode {id}"])
    tell(RunIndex, "hold", lambda index, ids: [f"episode {id}" for id in ids])
    tell(Ledger, "episode", lambda ledger, id: [f"episode {id}"])
    tell(Ledger, "events", lambda ledger, ids: [f"episode {id}" for id in ids])
    tell(Ledger, "episodes", lambda ledger: ["every episode"])
    tell(server, "search_run", lambda directory, query: ["every episode"])
    tell(RunVerdict, "_compute", lambda verdict, state: [f"proof {verdict.directory.name}"])
worker._PROGRAM = sys.argv[3] or worker._PROGRAM
view(sys.argv[1], tokenizer=sys.argv[2] or None, browser=False, ready=lambda address: print(address, flush=True))
"""


def gated_worker(gate: Path) -> str:
    """Return the program of an `EpisodeWorker` whose tokenizer is loaded once a file exists."""
    from strands_sglang.viewer import worker

    wait = f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.02)\n"
    return worker._PROGRAM.replace("\nwork(", f"\n{wait}work(")


@contextmanager
def running_viewer(
    directory: Path, tokenizer: str = "", *, worker: str = "", reads: Path | None = None
) -> Iterator[str]:
    """Serve a run; yield the address of its page.

    `reads`: a file that gets a line whenever the server reads an episode, or has a run proved. The one pass over a
    ledger that its rows are computed in reads no episode: it keeps neither messages nor tokens.
    """
    command = [sys.executable, "-c", _SERVE, str(directory), tokenizer, worker, str(reads or "")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), "the viewer did not start"
            yield address
        finally:
            process.kill()


def viewer_memory(directory: Path) -> float:
    """Return the memory of the newest viewer of a run and of all processes it started, in MB; shared pages count once.

    It has one process for tokens, and one that proves a run.
    """
    viewers, children = [0], dict[int, list[int]]()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            words, parent = (path / "cmdline").read_text().split("\0"), (path / "stat").read_text().rpartition(")")[2]
            children.setdefault(int(parent.split()[1]), []).append(int(path.name))
            if words[1:2] == ["-c"] and words[3:4] == [str(directory)] and "view(" in words[2]:
                viewers.append(int(path.name))
    tree, total = [max(viewers)], 0
    for process in tree:
        tree += children.get(process, [])
        with suppress(OSError):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


@contextmanager
def running_chromium() -> Iterator[Any]:
    """Start Chromium with scrollbars, which it would hide without a screen: a page must not need those it can avoid."""
    from playwright.sync_api import sync_playwright

    assert Path(CHROMIUM).exists(), f"{CHROMIUM} must exist: apt-get install chromium, or set CHROMIUM"
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"]
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=arguments, ignore_default_args=["--hide-scrollbars"]
        )
        try:
            yield browser
        finally:
            browser.close()


def until(page: Any, condition: str, timeout: float = 60.0) -> None:
    """Wait until an expression is true; Playwright's own waiting needs `eval`, which the page's policy forbids."""
    end = time.monotonic() + timeout
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"not true within {timeout} s: {condition}"
        page.wait_for_timeout(20)


@dataclass
class Watched:
    """A page, and everything it asked for and complained about."""

    page: Any
    origin: str
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def assert_quiet(self) -> None:
        """Check that the page reported no error and asked no other machine for anything."""
        assert self.errors == []
        origin = urlsplit(self.origin)
        assert [url for url in self.requests if urlsplit(url)[:2] != origin[:2]] == []


_LONG_TASKS = """
window.longTasks = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.longTasks.push(Math.round(entry.duration));
}).observe({ entryTypes: ["longtask"] });
"""


@contextmanager
def watched_page(
    browser: Any, origin: str, *, width: int = 1440, height: int = 900, **context: Any
) -> Iterator[Watched]:
    """Open an empty page; check at the end that it was quiet."""
    made = browser.new_context(viewport={"width": width, "height": height}, **context)
    page = made.new_page()
    watched = Watched(page, origin)
    page.add_init_script(_LONG_TASKS)
    page.on("request", lambda request: watched.requests.append(request.url))
    page.on("pageerror", lambda error: watched.errors.append(str(error)))
    page.on("console", lambda message: watched.errors.append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: watched.errors.append(f"dialog: {dialog.message}"))
    page.set_default_timeout(60_000)  # machines that run tests are busy; speed is measured elsewhere
    try:
        yield watched
        watched.assert_quiet()
    finally:
        made.close()


_OVERFLOWING = """() => [...document.querySelectorAll("body *")].filter((node) => {
  const { display, overflowX } = getComputedStyle(node);
  if (node.offsetParent === null || node.closest("svg") || display.startsWith("inline")) return false;
  const text = overflowX === "hidden" || overflowX === "clip"; // cut on purpose, with an ellipsis
  return !text && node.clientWidth > 0 && node.scrollWidth > node.clientWidth + 1;
}).map((node) => `${node.tagName}.${node.className}: ${node.scrollWidth} in ${node.clientWidth}`)"""


def assert_fits(page: Any, width: int) -> None:
    """Check that the page is as wide as its window, and that nothing is wider than the box it is in."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(_OVERFLOWING) == []
