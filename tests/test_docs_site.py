"""The documentation site: it builds without a warning, loads nothing from elsewhere, and fits a phone and a desk."""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.viewer.browser import running_chromium

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    "", "start/quickstart/", "start/problem/", "concepts/tree/", "guides/", "tools/", "trainers/slime/",
    "operate/scale/", "operate/troubleshooting/", "drift/", "reference/", "reference/api/rollout/",
    "search/?q=ledger",
]  # fmt: skip


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


def build() -> float:
    """Build the site, and return the seconds of CPU that it took."""
    built = subprocess.run(
        ["scripts/docs"], cwd=ROOT, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    told = re.search(r"^docs: built with ([\d.]+) \+ ([\d.]+) s of CPU$", built.stderr, re.MULTILINE)
    assert told is not None, built.stderr
    return float(told[1]) + float(told[2])


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    build()
    handler = functools.partial(Quiet, directory=str(ROOT / "build" / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.mark.soak
def test_the_whole_site_is_built_in_a_minute_of_cpu() -> None:
    shutil.rmtree(ROOT / "build" / "site-cache", ignore_errors=True)
    seconds = build()
    print(f"the site: {seconds:.0f} s of CPU")
    assert seconds <= 60


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1440, "dark")])
def test_pages_fit_and_load_nothing_from_elsewhere(site: str, width: int, scheme: str) -> None:
    problems = []
    with running_chromium() as chromium:
        page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on(
            "request", lambda request: None if request.url.startswith((site, "data:")) else problems.append(request.url)
        )
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        for name in PAGES:
            assert page.goto(site + name, wait_until="networkidle").status == 200, name
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{name} is {wide} pixels wide"
            assert page.locator("h1").count() >= 1, name
            missing = page.evaluate("[...document.images].filter(i => !i.naturalWidth).map(i => i.src)")
            assert not missing, missing
    assert not problems


def test_search_finds_pages_and_names(site: str) -> None:
    with running_chromium() as chromium:
        page = chromium.new_page()
        page.goto(site + "search/?q=SGLangClient", wait_until="networkidle")
        page.wait_for_selector("#search-results li")
        assert "Engine client" in page.inner_text("#search-results")
