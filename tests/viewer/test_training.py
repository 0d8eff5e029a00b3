"""The viewer of a folder of runs, without a browser: what is read, followed, merged and answered."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.figures import Figures
from strands_sglang.ledger.summary import SummaryRow, run_rows
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.viewer import training_server
from strands_sglang.viewer.index import RunIndex
from strands_sglang.viewer.training import TrainingIndex, _spread
from strands_sglang.viewer.training_server import TrainingViewer, _FolderHandlers
from support.ledger.episodes import Recorder, plain_episode, written_run
from support.viewer.generated_training import write_step, write_training, write_whole_training

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


def test_whatever_is_wrong_with_a_run_the_others_are_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, created in (("alone", "yesterday"), ("other", 7.0)):
        if name == "other":
            shutil.copytree(folder / "alone", folder / "other")
        about = orjson.loads((folder / name / "run.json").read_bytes())
        (folder / name / "run.json").write_bytes(orjson.dumps({**about, "created": created}))

    def of(run: str, rows: list[SummaryRow]) -> Figures:
        if run == "seed-1/step-000003":
            raise ZeroDivisionError("figures")
        return figures_of(run, rows)

    figures_of = Figures.of
    monkeypatch.setattr(Figures, "of", of)
    index = refreshed(folder)
    assert [point["label"] for point in index.curves("step")[""]] == ["alone", "other"]
    errors = {one.place.name: one.error for one in index.runs() if one.error}
    assert errors == {"seed-1/step-000003": "ZeroDivisionError: figures"} and index.complete.is_set()
    assert [point["x"] for point in index.curves("step")["seed-1"]] == [0, 1, 2, 4]


def test_a_run_in_the_place_of_another_is_read_from_its_beginning(folder: Path) -> None:
    path = write_step(folder / "seed-2", 3, sealed=False, **OPTIONS)
    index = refreshed(folder)
    shutil.rmtree(path)
    write_step(folder / "seed-2", 3, seed=9, sealed=False, tasks=3, samples=1)
    index.refresh()
    assert index.curves("step")["seed-2"][3]["episodes"] == 3


def test_weight_versions_are_at_their_number(tmp_path: Path) -> None:
    for names, wanted in ((("v-40", "v-200", "v-9"), [9, 40, 200]), (("base", "v-7"), [0, 1])):
        folder = tmp_path / names[0]
        for number, name in enumerate(names):
            with written_run(folder / f"step-{number}") as writer:
                recorder = Recorder(writer.write, task="a", sample=0)
                recorder.call(None, context=[1], sampled=[2], versions=[(name, 0, 1)])
                recorder.end()
        points = refreshed(folder).curves("weights")[names[0]]
        assert [point["x"] for point in points] == wanted


def test_evaluations_within_a_training_are_a_curve_of_their_own(tmp_path: Path) -> None:
    write_whole_training(tmp_path / "first")
    index = refreshed(tmp_path)
    curves = index.curves("weights")
    shown = {name: [(point["label"], point["reward"], point["equal"]) for point in curves[name]] for name in curves}
    assert shown == {
        "first": [("weights 1", 0.5, 0.0), ("weights 2", 0.5, 0.0)],
        "first (eval)": [("weights default", 1.0, None), ("weights 1", 1.0, None)],
    }
    assert index.usual_curves() == "weights" and curves["first (eval)"][0]["runs"] == ["first"]
    by_step = index.curves("step")
    assert {name: points[0]["episodes"] for name, points in by_step.items()} == {"": 4, " (eval)": 2}
    assert list(index.figures("first").tasks) == ["g0", "g1"]
    assert sorted(index.figures("first (eval)").tasks) == ["eval.77", "eval.77.1"]
    (line,) = [one.to_dict() for one in index.runs()]
    assert line["evaluated"] and line["figures"]["episodes"] == 6, "the list of runs shows all that was recorded"


def test_curves_run_over_weights_only_where_no_run_is_a_step(recorded: Path, tmp_path: Path) -> None:
    assert refreshed(recorded).usual_curves() == "step"
    assert refreshed(recorded / "alone").usual_curves() == "step", "one version is no curve"
    write_whole_training(tmp_path / "first")
    shutil.copytree(recorded / "seed-2", tmp_path / "seed-2")
    assert refreshed(tmp_path).usual_curves() == "step"


def test_rows_have_the_order_of_their_events(tmp_path: Path) -> None:
    names = [f"task-{number}" for number in (*range(7, 20), *range(7))]
    with written_run(tmp_path) as writer:
        for name in names:
            plain_episode(writer.write, task=name, turns=1)
    index = RunIndex(tmp_path)
    index.refresh()
    assert [row["task_id"] for row in index.rows()] == names


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
    assert found["by"] == "step" and (await answer(client, "/api/training?since=-1&by=weights"))["by"] == "weights"
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


async def test_runs_that_nobody_looks_at_are_closed(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = _FolderHandlers(TrainingViewer(recorded))
    names = [f"seed-1/step-{number:06d}" for number in range(5)]
    for name in names:
        await handlers._opened(name)
    assert list(handlers.open) == names, "all were asked for a moment ago"
    monkeypatch.setattr(training_server, "_IDLE_SECONDS", -1.0)
    await handlers._opened("alone")
    assert list(handlers.open) == [*names[-2:], "alone"]
    await handlers.stop(web.Application())


async def test_a_run_that_changed_is_proved_again(folder: Path) -> None:
    viewer = TrainingViewer(folder)
    async with TestClient(TestServer(viewer.app(), host="127.0.0.1")) as client:
        await client.get(f"/?token={viewer.token}")
        found: dict[str, Any] = {"running": True}
        while found["running"]:
            found = await answer(client, "/api/proved?name=alone")
            await asyncio.sleep(0.05)
        assert found["verdict"] == "proved"
        (folder / "alone" / "run.json").touch()
        assert (await answer(client, "/api/proved?name=alone"))["running"], "the verdict was that of other files"
        viewer.index.refresh()
        runs = {run["name"]: run["changed"] for run in (await answer(client, "/api/training?since=-1"))["runs"]}
        assert runs["alone"] == (folder / "alone" / "run.json").stat().st_mtime_ns


async def test_runs_are_proved_when_they_are_asked_for(client: TestClient[Any, Any]) -> None:
    for _ in range(600):
        found = await answer(client, f"/api/proved?name={quote('seed-2/step-000000')}")
        if not found["running"]:
            break
        await asyncio.sleep(0.1)
    assert found == {"verdict": "proved", "running": False, "error": ""}
