"""The viewer's pages of trainings, in Chromium, held against the trainers' own logs."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from strands_sglang.cli.main import main
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.trainer_values import TrainerFile
from support.viewer.browser import running_chromium, running_viewer, until, watched_page

SHOWN = 5e-4  # relative error of a number with four digits
TOKENS = 6  # of an episode, whose cards are read

Log = Sequence[Mapping[str, Any]]
"""What a trainer logged, by step."""


def check_pages(folder: Path, logs: Mapping[str, Log], tokenizer: str) -> None:
    """Open a folder with trainings: their curves, an episode of the last step, and the comparison of two trainings."""
    with running_chromium() as browser, running_viewer(folder, tokenizer) as address:
        with watched_page(browser, address) as watched:
            watched.page.goto(address)
            check_curves(watched.page, logs)
            name = sorted(logs)[0]
            check_overlay(watched.page, address, max((folder / name).iterdir()), logs[name][-1])
            if len(logs) == 2:
                check_comparison(watched.page, address, folder, *sorted(logs))


def check_curves(page: Any, logs: Mapping[str, Log]) -> None:
    """Each training is one line with a point for each step, at the reward that the trainer logged."""
    page.wait_for_selector("html[data-ready]")
    until(page, "!document.querySelector('#top').textContent.includes('reading')")
    lines = page.eval_on_selector_all(
        "[data-key=reward] .curve-line", "all => all.map(one => one.getAttribute('d').match(/[ML]/g).length)"
    )
    assert lines == [len(log) for log in logs.values()]
    curves = page.evaluate("fetch('api/training?by=step&since=-1').then(answer => answer.json())")["curves"]
    assert {name: len(points) for name, points in curves.items()} == {name: len(log) for name, log in logs.items()}
    for name, log in logs.items():
        assert [point["reward"] for point in curves[name]] == pytest.approx([line["reward"] for line in log], rel=1e-4)


def check_overlay(page: Any, address: str, step: Path, logged: Mapping[str, Any]) -> None:
    """The cards of tokens show what the trainer wrote, and all that was written has the mean that it logged."""
    records = list(Ledger(step).episodes())
    record, run = records[0], quote(f"{step.parent.name}/{step.name}", safe="")
    page.goto(f"{address.partition('?')[0]}run/{run}/#e={quote(record.id, safe='')}&c=trainer.entropy")
    page.wait_for_selector(".pair .t")
    page.wait_for_selector(".trainer-choice")
    page.wait_for_selector(".loading-tokenizer", state="detached")
    assert page.locator(".trainer-choice").input_value() == "trainer.entropy"
    values, turn = TrainerFile(step).of(record.id), record.tree()[0]
    for at in range(min(TOKENS, len(turn.sampled))):
        card = card_of(page, at, turn.sampled_start + at)
        stated = dict(part.rpartition(" ")[::2] for part in card["trainer"].replace("\u2212", "-").split(" · "))
        assert set(stated) == {name.replace("_", " ") for name in values}
        for name, given in values.items():
            value = given[turn.id]
            wanted = value[at] if isinstance(value, list) else value
            assert float(stated[name.replace("_", " ")]) == pytest.approx(wanted, rel=SHOWN), (name, at)
    ask = "ids => Promise.all(ids.map(id => fetch(`api/trainer?id=${encodeURIComponent(id)}`).then(one => one.json())))"
    entropies, masks = list[float](), list[float]()
    for answer in page.evaluate(ask, [one.id for one in records]):
        for id, given in answer["entropy"].items():
            mask = answer["loss_mask"][id]
            entropies += given
            masks += mask if isinstance(mask, list) else [mask] * len(given)
    assert np.average(entropies, weights=masks) == pytest.approx(logged["entropy"], rel=1e-4)


def card_of(page: Any, number: int, position: int) -> dict[str, str]:
    """Point at a sampled token; return the card's lines by label."""
    for _ in range(100):  # a page that is still drawing replaces what was pointed at
        page.mouse.move(0, 0)
        page.locator(".kind-sampled .t").nth(number).hover()
        page.wait_for_timeout(50)
        texts = page.eval_on_selector_all("#card:not([hidden]) span", "all => all.map(one => one.textContent)")
        card = dict(zip(texts[::2], texts[1::2], strict=True))
        if card.get("token", "").endswith(f"position {position}"):
            return card
    raise AssertionError(f"no card of the token at position {position}")


def check_comparison(page: Any, address: str, folder: Path, a: str, b: str) -> None:
    """`eval A B` and the page state the same difference, of tasks that both have."""
    told = io.StringIO()
    with redirect_stdout(told):
        assert main(["eval", str(folder / a), str(folder / b), "--json"]) == 0
    found = json.loads(told.getvalue())
    assert found["only"] == [0, 0], "different seeds, the same tasks"
    page.goto(f"{address.partition('?')[0]}#p=compare&a={a}&b={b}")
    page.wait_for_selector(".answer .text")
    shown = page.locator(".versus-figure").first.inner_text().replace("\u2212", "-")
    for name in ("value", "low", "high"):
        assert f"{found['reward'][name]:+.2f}" in shown, (name, shown)
    assert page.locator(".task-line").count() == len(found["tasks"])
    counts = {name: count for name, count in found["counts"].items() if count}
    print(f"{b} against {a}: {found['reward']}, {len(found['tasks'])} tasks, {counts}")
