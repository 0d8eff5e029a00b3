"""The pages of a folder of runs, in Chromium: curves, list, tasks, comparison, live trainings, and the two sizes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.ledger.figures import Figures
from strands_sglang.ledger.summary import run_rows
from strands_sglang.runs.offline.comparison import compare_figures, recorded_figures
from support.families import tokenizer_path
from support.ledger.episodes import Recorder, written_run
from support.viewer.browser import (
    assert_fits,
    running_chromium,
    running_viewer,
    until,
    viewer_memory,
    watched_page,
)
from support.viewer.generated_run import write_generated_run
from support.viewer.generated_training import write_step, write_training, write_whole_training

pytestmark = pytest.mark.browser

READY = "html[data-ready]"
PAINT_SECONDS = 1.0
MEGABYTES = 300
TOKENIZER = tokenizer_path("qwen3")
WORDS = "A long question with many words in it. " * 4
OPTIONS: dict[str, Any] = {"tasks": 4, "samples": 3, "tokenizer": TOKENIZER, "words": WORDS}
HOSTILE = "<img src=x onerror=alert(1)>\u202e"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running_chromium() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("training") / "runs"
    write_training(path / "seed-1", 6, **OPTIONS)
    write_training(path / "seed-2", 5, seed=2, best=0.6, **OPTIONS)
    with written_run(path / "hostile") as writer:
        for sample in range(2):
            recorder = Recorder(writer.write, task=HOSTILE, sample=sample, prompt=HOSTILE * 8)
            recorder.call(None, context=[1], sampled=[2], versions=[("w" * 80, 0, 1)])
            recorder.reward(float(sample))
            recorder.end(text=HOSTILE)
    return path


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with running_viewer(folder) as served:
        yield served


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Return a function that opens the page at a hash once all runs were read; the page must stay quiet."""
    with ExitStack() as stack:

        def open_page(place: str = "", **options: Any) -> Any:
            page = stack.enter_context(watched_page(browser, address, **options)).page
            page.goto(address + place)
            page.wait_for_selector(READY)
            until(page, "!document.querySelector('#top').textContent.includes('reading')")
            return page

        yield open_page


def test_curves_and_list(opened: Any, folder: Path) -> None:
    page = opened()
    titles = page.eval_on_selector_all(".curve h2 > span:first-child", "all => all.map(one => one.textContent)")
    assert titles[:3] == ["Reward", "Reward of at least 1", "Groups without difference"] and len(titles) == 14
    assert {"Turns", "Tokens", "Truncated", "Failures", "Tool errors", "Age of tokens", "Cached", "Drift"} < set(titles)
    assert page.locator("[data-key=reward] .curve-line").count() == 2, "a line for each training; no order, no line"
    assert page.locator("[data-key=tokens] .curve-line").count() == 4
    assert page.locator("[data-key=ends] .ends-part").count() >= 2
    names = page.eval_on_selector_all(".table-row", "rows => rows.map(row => row.dataset.id)")
    assert len(names) == 12
    rows = run_rows(folder / "seed-1" / "step-000005")
    reward = Figures.of("", rows).to_dict()["reward"]
    shown = page.locator(".table-row[data-id='seed-1/step-000005'] .col-reward").inner_text()
    assert shown.strip() == f"{reward:.2f}"
    assert page.locator(".figure").first.inner_text().startswith(f"{reward:.2f}")


def test_a_step_is_pointed_at_and_opened(opened: Any, folder: Path) -> None:
    page = opened("#hide=.seed-2")
    box = page.locator("[data-key=reward] .curve-area").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.41, box["y"] + 20)
    until(page, "!document.querySelector('#card').hidden")
    reward = Figures.of("", run_rows(folder / "seed-1" / "step-000002")).to_dict()["reward"]
    card = page.locator("#card").inner_text()
    assert card.startswith("step 2") and f"{reward:.2f}" in card
    assert page.locator(".hair:visible").count() == page.locator(".hair").count() > 8, "in every chart"
    page.mouse.down()
    page.mouse.up()
    page.wait_for_selector(".run .table-row")
    assert "/run/seed-1%2Fstep-000002/" in page.url
    page.locator(".back").first.click()
    page.wait_for_selector(".curves .curve")


def test_trainings_are_hidden_and_the_address_says_so(opened: Any) -> None:
    page = opened()
    page.locator(".series", has_text="seed-2").click()
    until(page, "document.querySelectorAll('[data-key=reward] .curve-line').length === 1")
    assert page.locator("[data-key=reward] .band").count() == 1, "one training has its spread"
    page.locator(".segments button").last.click()
    until(page, "location.hash.includes('by=weights') && location.hash.includes('hide')")
    page.reload()
    page.wait_for_selector(READY)
    assert "on" in page.locator(".segments button").last.get_attribute("class").split()
    assert page.locator(".series.off").count() >= 1


def test_search_and_order(opened: Any) -> None:
    page = opened()
    page.keyboard.press("/")
    page.keyboard.type("seed-2/step-000003")
    until(page, "document.querySelectorAll('.table-row').length === 1")
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    page.locator(".training .table-head [data-key=reward] button").click()
    cells = page.eval_on_selector_all(".table-row .col-reward", "cells => cells.map(cell => Number(cell.textContent))")
    assert cells == sorted(cells, reverse=True) and len(cells) == 12


def test_runs_in_view_are_proved(opened: Any) -> None:
    page = opened()
    until(page, "document.querySelector('.verdict-text-proved') !== null", timeout=120)


def test_two_trainings_are_compared(opened: Any, folder: Path) -> None:
    page = opened()
    page.keyboard.press("c")
    page.wait_for_selector(".answer")
    wanted = compare_figures(recorded_figures(folder / "seed-1"), recorded_figures(folder / "seed-2"))
    assert wanted.reward.value is not None and wanted.reward.interval is not None
    shown = page.locator(".versus-figure").first.inner_text().replace("−", "-")
    for value in (wanted.reward.value, *wanted.reward.interval):
        assert f"{value:+.2f}" in shown
    assert page.locator(".task-line").count() == len(wanted.tasks) == 4
    until(page, "document.querySelectorAll('.answer').length === 2")
    assert (
        page.locator(".answer .text")
        .all_inner_texts()[0]
        .startswith(("3 times 11", "4 times 12", "5 times", "6 times"))
    )
    page.get_by_role("button", name="worst samples").click()
    until(page, "location.hash.includes('which=worst')")
    page.get_by_role("button", name="Swap A and B").click()
    until(page, "document.querySelector('.versus select')?.value === 'seed-2'")
    page.locator(".answer a").first.click()
    page.wait_for_selector(".pair")
    assert "/run/seed-2%2F" in page.url


def test_a_training_in_one_run_has_its_curve_over_weights(browser: Any, tmp_path: Path) -> None:
    """And its evaluations apart; what two of them ask under one id may differ."""
    for first in (0, 1):
        write_whole_training(tmp_path / "runs" / f"run-{first}", first=first)
    with running_viewer(tmp_path / "runs") as address, watched_page(browser, address) as watched:
        page = watched.page
        page.goto(address)
        until(page, "document.querySelectorAll('.series').length === 4")
        assert page.locator(".segments .on").inner_text() == "weights"
        names = ["run-0", "run-1", "run-0 (eval)", "run-1 (eval)"]
        assert page.eval_on_selector_all(".series span:first-of-type", "all => all.map(one => one.innerText)") == names
        assert "2 to 8 kinds" in page.locator("[data-key=kinds]").inner_text()
        page.locator(".segments button").first.click()
        until(page, "document.querySelectorAll('.series').length === 2")
        assert [one.split("\n")[0] for one in page.locator(".series").all_inner_texts()] == [
            "single runs",
            "single runs (eval)",
        ]
        page.keyboard.press("c")
        page.wait_for_selector(".compare-page .empty")
        assert (
            "2 tasks with the same id and another prompt in B: left out" in page.locator(".compare-page").inner_text()
        )
        options = page.eval_on_selector_all("select[aria-label='Run A'] option", "all => all.map(one => one.value)")
        assert options == ["run-1", "run-0", "run-1 (eval)", "run-0 (eval)"]
        page.evaluate("location.hash = 'p=compare&a=run-0 (eval)&b=run-1 (eval)'")
        until(page, "document.querySelectorAll('.answer').length === 2")
        assert page.locator(".task-line").count() == 2


def test_two_runs_are_chosen_in_the_list(opened: Any) -> None:
    page = opened()
    for step in (5, 0):
        page.locator(f"[data-pick='seed-1/step-00000{step}']").click()
    page.wait_for_selector(".answer")
    assert "a=seed-1%2Fstep-000005&b=seed-1%2Fstep-000000" in page.url


def test_tasks_lead_to_groups_and_samples(opened: Any, folder: Path) -> None:
    page = opened()
    page.keyboard.press("b")
    page.wait_for_selector(".tasks .table-row")
    rewards = {id: task.rewards for id, task in recorded_figures(folder / "seed-1").tasks.items()}
    rows = page.locator(".tasks .table-row")
    assert rows.count() == len(rewards) == 4
    right = "node => node.getBoundingClientRect().right"
    head = page.locator(".tasks .table-head [data-key=std]").evaluate(right)
    assert rows.first.locator(".col-std").evaluate(right) == pytest.approx(head, abs=1)
    assert rows.first.locator(".col-mean").inner_text() == f"{sum(rewards['add-0']) / len(rewards['add-0']):.2f}"
    assert re.fullmatch(r"\d of 6", rows.first.locator(".col-equal").inner_text())
    page.locator(".tasks .table-head [data-key=std] button").click()
    spread = page.eval_on_selector_all(
        ".tasks .table-row .col-std", "cells => cells.map(cell => Number(cell.textContent))"
    )
    assert spread == sorted(spread, reverse=True)
    page.locator(".tasks .chip", has_text="without difference").click()
    assert page.evaluate("location.hash").find("tasks=equal") > 0
    page.locator(".tasks .chip", has_text="all").first.click()
    page.locator(".tasks .col-best a").first.click()
    page.wait_for_selector(".pair")
    page.keyboard.press("b")
    page.wait_for_selector(".tasks .table-row")
    page.locator(".tasks .col-task a").first.click()
    page.wait_for_selector(".sample")


def test_drift_is_measured_on_request(opened: Any) -> None:
    page = opened("#hide=.seed-2")
    page.locator("[data-key=drift] .more").click()
    page.wait_for_selector("[data-key=drift] .curve-line")
    until(page, "document.querySelector('[data-key=drift] .more').textContent === 'measure'")


def test_a_live_training_grows(browser: Any, tmp_path: Path) -> None:
    write_step(tmp_path / "live", 0, **OPTIONS)
    with running_viewer(tmp_path / "live") as address, watched_page(browser, address) as watched:
        page = watched.page
        page.goto(address)
        page.wait_for_selector(".table-row[data-id=step-000000]")
        write_step(tmp_path / "live", 1, sealed=False, **OPTIONS)
        page.wait_for_selector(".table-row[data-id=step-000001]")
        until(page, "document.querySelector('.table-row[data-id=\"step-000001\"] .col-episodes').textContent === '12'")
        assert page.locator(".table-row[data-id=step-000001] .live").count() == 1
        assert page.locator("[data-key=reward] .curve-line").get_attribute("d").count("L") == 1


_OVERFLOWING = """
[...document.querySelectorAll('#main *, #top *')].filter((one) => {
  const style = getComputedStyle(one);
  if (!one.clientWidth || one.closest('svg') || one.tagName === 'SELECT') return false;
  const hides = ['hidden', 'auto', 'scroll', 'clip'].includes(style.overflowX);
  const box = one.getBoundingClientRect(), outer = one.parentElement.getBoundingClientRect();
  const parent = getComputedStyle(one.parentElement);
  const beyond = box.right > outer.right + 1.5 || box.left < outer.left - 1.5;
  const out = style.position !== 'absolute' && parent.overflowX === 'visible' && beyond;
  return (!hides && one.scrollWidth > one.clientWidth + 1 && style.display !== 'inline') || out;
}).map((one) => `${one.tagName}.${one.className.baseVal ?? one.className} in ${one.parentElement.className}`)
"""


@pytest.mark.parametrize("place", ["", "#p=compare&a=seed-1&b=seed-2", "#p=tasks&of=seed-1", "#p=tasks&of=hostile"])
def test_nothing_overflows(opened: Any, place: str) -> None:
    page = opened(place)
    page.wait_for_selector(".answer .text" if "compare" in place else ".table-row")
    for width in (1440, 800, 390):
        page.set_viewport_size({"width": width, "height": 844})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(100)
            assert_fits(page, width)
            assert page.evaluate(_OVERFLOWING) == [], (width, scheme)
            background = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert ("251, 251, 250" in background) == (scheme == "light")


def test_a_run_of_a_folder_fits(opened: Any) -> None:
    """Its bar has one more button, and its tasks are a page."""
    page = opened("", width=390, height=844)
    page.locator(".table-row").first.click()
    for place, selector in (("", ".run .table-row"), ("#tasks=all", ".tasks .table-row"), ("#g=add-0", ".sample")):
        page.evaluate("place => { location.hash = place; }", place)
        page.wait_for_selector(selector)
        for width in (390, 800, 1440):
            page.set_viewport_size({"width": width, "height": 844})
            page.wait_for_timeout(100)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (place, width)
            assert [one for one in page.evaluate(_OVERFLOWING) if "run-name" not in one] == [], (place, width)


@dataclass
class Look:
    """A page that was looked at until all was read and the runs in view were proved."""

    painted: float
    """Seconds until rows were on the screen."""
    server: float
    """MB of all processes of the viewer, at most."""
    page: float
    """MB of the page's objects."""
    reads: set[str]
    """What the server read for the page, beside the rows of all episodes."""


def look_at(browser: Any, folder: Path, tokenizer: str = "") -> Look:
    reads = folder.parent / "reads"
    reads.write_text("")
    with running_viewer(folder, tokenizer, reads=reads) as address, watched_page(browser, address) as watched:
        page, server = watched.page, 0.0
        began = time.monotonic()
        page.goto(address, wait_until="commit")
        page.wait_for_selector(".table-row")
        painted, end = time.monotonic() - began, began + 600
        while not (page.evaluate(_ALL_READ) and page.evaluate(_PROVED)):
            server = max(server, viewer_memory(folder))
            assert time.monotonic() < end, "all runs are read, and those in view proved"
            page.wait_for_timeout(100)
        in_view = {f"proof {id.rpartition('/')[2]}" for id in page.evaluate(_IN_VIEW)} | {f"proof {folder.name}"}
        heap = page.evaluate("performance.memory.usedJSHeapSize") / 2**20
        found = {line for line in reads.read_text().splitlines() if line not in in_view}
        look = Look(painted, max(server, viewer_memory(folder)), heap, found)
        print(f"{folder.name}: {look}, all done in {time.monotonic() - began:.1f} s")
        return look


_ALL_READ = "!/ead …|read …|reading/.test(document.querySelector('#main').textContent)"
_IN_VIEW = """
[...document.querySelectorAll('.training .table-row')].filter((one) => one.getBoundingClientRect().top < innerHeight)
  .map((one) => one.dataset.id)
"""
_PROVED = """
document.querySelector('#top .badge[class*=verdict-]') || (document.querySelector('.training')
  && [...document.querySelectorAll('.training .table-row')].every((one) =>
    one.getBoundingClientRect().top >= innerHeight || one.querySelector('.verdict-text')))
"""


def test_nothing_is_read_that_is_not_shown(browser: Any, folder: Path) -> None:
    """The size that CI has; the large ones are below."""
    look = look_at(browser, folder)
    assert look.reads == set()
    assert look.server + look.page <= MEGABYTES
    reads = folder.parent / "reads"
    with running_viewer(folder, reads=reads) as address, watched_page(browser, address) as watched:
        watched.page.goto(address)
        watched.page.goto(f"{address.partition('?')[0]}run/seed-1%2Fstep-000005/#e=add-0%2F0")
        watched.page.wait_for_selector(".pair .t")
        assert "episode add-0/0" in reads.read_text().splitlines(), "what is shown is read, and that is noticed"


@pytest.mark.soak
def test_a_training_of_500_steps(browser: Any, tmp_path: Path) -> None:
    write_training(tmp_path / "large", 500, distinct=20, tasks=8, samples=8, tokenizer=TOKENIZER)
    check_size([look_at(browser, tmp_path / "large") for _ in range(3)])


@pytest.mark.soak
def test_a_run_of_10_000_episodes(browser: Any, tmp_path: Path) -> None:
    write_generated_run(tmp_path / "run", 10_000, tokens=2000)
    check_size([look_at(browser, tmp_path / "run", TOKENIZER) for _ in range(3)])


def check_size(looks: list[Look]) -> None:
    assert [one.reads for one in looks] == [set()] * len(looks)
    assert min(one.painted for one in looks) <= PAINT_SECONDS
    assert max(one.server + one.page for one in looks) <= MEGABYTES
