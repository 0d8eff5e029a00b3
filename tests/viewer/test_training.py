"""The viewer of a folder of runs, without a browser: what is read, followed, merged and answered."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp.test_utils import TestClient, TestServer

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.figures import Figures
from strands_sglang.ledger.summary import run_rows
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.viewer.index import RunIndex
from strands_sglang.viewer.training import TrainingIndex, _spread
from strands_sglang.viewer.training_server import TrainingViewer
from support.ledger.episodes import plain_episode
from support.viewer.generated_training import write_step, write_training

OPTIONS: dict[str, Any] = {"tasks": 2, "samples": 2}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folder") / "runs"
    write_training(folder / "seed-1", 5, **OPTIONS)
    write_training(folder / "seed-2", 3, seed=2, **OPTIONS)
    write_step(folder / "x", 2, seed=3, **OPTIONS).rename(folder / "seed-1" / "step-000004.1")
    write_step(folder / "x", 0, **OPTIONS).rename(folder / "alone")
    shutil.rmtree(folder / "x")
    return folder


@pytest.fixture
def folder(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "runs"))


def refreshed(folder: Path) -> TrainingIndex:
    index = TrainingIndex(folder)
    index.refresh()
    return index


def test_curves_over_steps(recorded: Path) -> None:
    curves = refreshed(recorded).curves("step")
    assert {name: [point["x"] for point in points] for name, points in curves.items()} == {
        "": [0], "seed-1": [0, 1, 2, 3, 4], "seed-2": [0, 1, 2],
    }  # fmt: skip
    repeated = curves["seed-1"][4]
    assert repeated["runs"] == ["seed-1/step-000004.1"], "the newest attempt of a step"
    rows = run_rows(recorded / "seed-1" / "step-000002")
    wanted = Figures.of("seed-1/step-000002", rows).to_dict()
    assert {name: curves["seed-1"][2][name] for name in wanted} == wanted


def test_curves_over_weights(recorded: Path) -> None:
    index = refreshed(recorded)
    points = index.curves("weights")["seed-2"]
    assert [point["label"] for point in points] == ["weights step-0", "weights step-1", "weights step-2"]
    steps = [one.figures.episodes for one in index.chosen("seed-2") if one.figures is not None]
    assert sum(point["episodes"] for point in points) == sum(steps)


def test_a_run_that_grows_is_followed_from_where_it_was_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = write_step(folder / "seed-2", 3, sealed=False, **OPTIONS)
    index = refreshed(folder)
    read: list[str] = []
    monkeypatch.setattr(RunIndex, "_add", _counted(RunIndex._add, read))
    before = index.version
    index.refresh()
    assert (read, index.version) == ([], before), "nothing changed: nothing is read"
    with LedgerWriter(live) as writer:
        events = len(plain_episode(writer.write, task="late").events)
    index.refresh()
    assert len(read) == events and index.version > before
    assert index.curves("step")["seed-2"][3]["episodes"] == 5
    shutil.rmtree(folder / "seed-2" / "step-000001")
    write_step(folder / "seed-2", 4, **OPTIONS)
    index.refresh()
    assert [point["x"] for point in index.curves("step")["seed-2"]] == [0, 2, 3, 4]


def _counted(add: Any, read: list[str]) -> Any:
    def counting(self: RunIndex, raw: bytes, shard: str, section: int) -> None:
        read.append(shard)
        add(self, raw, shard, section)

    return counting


def test_figures_change_with_the_files(folder: Path) -> None:
    index = refreshed(folder)
    path = folder / "seed-2" / "step-000002"
    before = index.curves("step")["seed-2"][2]["reward"]
    shutil.rmtree(path)
    write_step(folder / "seed-2", 2, seed=11, best=0.0, **{**OPTIONS, "samples": 3})
    index.refresh()
    point = index.curves("step")["seed-2"][2]
    assert point["episodes"] == 6 and point["reward"] == Figures.of("", run_rows(path)).to_dict()["reward"] != before


def test_a_damaged_run_does_not_hide_the_others(folder: Path) -> None:
    (folder / "seed-1" / "step-000001" / "run.json").write_text("{")
    index = refreshed(folder)
    errors = {one.place.name: one.error for one in index.runs() if one.error}
    assert list(errors) == ["seed-1/step-000001"] and "run.json" in errors["seed-1/step-000001"]
    assert len(index.curves("step")["seed-2"]) == 3


@pytest.mark.parametrize("count", [0, 1, 2, 3, 64, 500])
def test_the_newest_run_is_read_first_then_some_of_everywhere(count: int) -> None:
    order = _spread(list(range(count)))
    assert sorted(order) == list(range(count))
    assert order[:1] == ([count - 1] if count else [])
    if count == 500:
        gaps = sorted(order[:16])
        assert max(b - a for a, b in itertools.pairwise(gaps)) <= 64


def test_a_folder_without_runs(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="or a folder with runs"):
        TrainingViewer(tmp_path)


@pytest.fixture
async def client(recorded: Path) -> AsyncIterator[TestClient[Any, Any]]:
    viewer = TrainingViewer(recorded)
    async with TestClient(TestServer(viewer.app(), host="127.0.0.1")) as client:
        assert (await client.get("/api/training")).status == 401
        assert (await client.get(f"/?token={viewer.token}")).status == 200
        while not (found := await answer(client, "/api/training?since=-1"))["complete"]:
            assert found["runs"]  # names at once, figures as they are read
            await asyncio.sleep(0.02)
        yield client


async def answer(client: TestClient[Any, Any], path: str, status: int = 200) -> Any:
    async with client.get(path) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def test_the_list_is_sent_when_it_changed(client: TestClient[Any, Any]) -> None:
    found = await answer(client, "/api/training?since=-1")
    assert [run["name"] for run in found["runs"]][:2] == ["alone", "seed-1/step-000000"]
    assert all(run["figures"]["episodes"] == 4 for run in found["runs"])
    assert await answer(client, f"/api/training?since={found['version']}") == {
        "version": found["version"], "complete": True,
    }  # fmt: skip


async def test_a_run_of_the_folder_has_its_page(client: TestClient[Any, Any], recorded: Path) -> None:
    base = f"/run/{quote('seed-1/step-000002', safe='')}"
    async with client.get(f"{base}/") as page:
        assert page.status == 200 and "main.js" in await page.text()
    rows = (await answer(client, f"{base}/api/rows?since=0"))["rows"]
    assert {row["id"] for row in rows} == {row["id"] for row in run_rows(recorded / "seed-1" / "step-000002")}
    episode = await answer(client, f"{base}/api/episode?id={quote(rows[0]['id'])}")
    assert episode["row"]["id"] == rows[0]["id"]
    tasks = await answer(client, f"{base}/api/tasks")
    assert [task["task"] for task in tasks] == ["add-0", "multiply-1"] and tasks[0]["best"][0] == ""


@pytest.mark.parametrize("name", ["..", "../seed-1", "seed-1", "none", "/etc", "seed-1/../alone"])
async def test_only_runs_of_the_folder_are_opened(client: TestClient[Any, Any], name: str) -> None:
    for path in (f"/run/{quote(name, safe='')}/api/rows", f"/api/proved?name={quote(name)}"):
        async with client.get(path) as response:
            assert response.status == 404
    await answer(client, f"/run/{quote('alone')}/api/nothing", 404)


async def test_tasks_and_comparison(client: TestClient[Any, Any]) -> None:
    tasks = await answer(client, "/api/tasks?of=seed-1&last=2")
    assert [(task["task"], task["episodes"], task["groups"]) for task in tasks] == [
        ("add-0", 4, 2),
        ("multiply-1", 4, 2),
    ]
    found = await answer(client, "/api/compare?a=seed-1&b=seed-2&last=1")
    assert [line["task"] for line in found["tasks"]] == ["add-0", "multiply-1"]
    assert found["tasks"][0]["best"][0][0] == "seed-1/step-000004.1" and found["tasks"][0]["counts"] == [2, 2]
    await answer(client, "/api/compare?a=seed-1&b=nothing", 404)


async def test_runs_are_proved_when_they_are_asked_for(client: TestClient[Any, Any]) -> None:
    for _ in range(600):
        found = await answer(client, f"/api/proved?name={quote('seed-2/step-000000')}")
        if not found["running"]:
            break
        await asyncio.sleep(0.1)
    assert found == {"verdict": "proved", "running": False, "error": ""}
