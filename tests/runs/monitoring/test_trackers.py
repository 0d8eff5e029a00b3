"""Trackers: what each client is asked, errors, threads, and runs that the user has started."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from strands import Agent

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import RunMetrics, RunOptions, rollout
from strands_sglang.runs.monitoring.trackers import TRACKERS, TrackedRun, Tracking, tracker_for
from support.rollout.scripts import PromptEngine, steps

RUN = TrackedRun("abc", "first", None, {"samples_per_task": 2, "limits": {"max_turns": 3}})


class Client(ModuleType):
    """A client's module that writes down how it was called."""

    def __init__(self, name: str, **attributes: Any) -> None:
        super().__init__(name)
        self.asked: list[tuple[Any, ...]] = []
        self.__dict__.update(attributes)

    def method(self, name: str, returns: Any = None) -> Any:
        def called(*arguments: Any, **named: Any) -> Any:
            self.asked.append((name, arguments, named))
            return returns

        return called

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [one for one in self.asked if one[0] == name]


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client("wandb", run=None)
    run = SimpleNamespace(log=client.method("log"), finish=client.method("finish"))
    client.__dict__["init"] = client.method("init", run)
    client.__dict__["started"] = run
    monkeypatch.setitem(sys.modules, "wandb", client)
    return client


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client("mlflow")
    run = SimpleNamespace(info=SimpleNamespace(run_id="r1"))
    client.__dict__.update(
        active_run=client.method("active_run"),
        start_run=client.method("start_run", run),
        search_runs=client.method("search_runs", []),
        log_params=client.method("log_params"),
        end_run=client.method("end_run"),
        MlflowClient=lambda: SimpleNamespace(log_batch=client.method("log_batch")),
        entities=SimpleNamespace(Metric=lambda *fields: fields),
        started=run,
    )
    monkeypatch.setitem(sys.modules, "mlflow", client)
    return client


@pytest.fixture
def tensorboard(monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client("tensorboard.summary")
    writer = SimpleNamespace(**{name: client.method(name) for name in ("add_scalar", "flush", "close")})

    def opened(folder: str) -> Any:
        client.asked.append(("Writer", (folder,), {}))
        return writer

    client.__dict__["Writer"] = opened
    monkeypatch.setitem(sys.modules, "tensorboard", Client("tensorboard", summary=client))
    monkeypatch.setitem(sys.modules, "tensorboard.summary", client)
    return client


async def tracked(tracker: Any, *points: RunMetrics, run: TrackedRun = RUN, error: Exception | None = None) -> None:
    try:
        async with Tracking(tracker_for(tracker), run) as tracking:
            for point in points:
                tracking.send(point)
                await asyncio.sleep(0.02)
            tracking.send(points[-1], last=True)
            if error is not None:
                raise error
    except KeyError:
        assert error is not None


async def test_wandb(wandb: Client) -> None:
    await tracked("wandb", RunMetrics(done=3, reward_mean=0.5))
    assert wandb.named("init") == [
        ("init", (), {"id": "abc", "name": "first", "resume": "allow", "config": RUN.settings})
    ]
    _, (metrics,), named = wandb.named("log")[0]
    assert named == {"step": 3} and metrics["rollout/reward_mean"] == 0.5
    assert wandb.named("finish") == [("finish", (), {"exit_code": 0})]
    await tracked("wandb", RunMetrics(), error=KeyError())
    assert wandb.named("finish")[-1] == ("finish", (), {"exit_code": 1})


async def test_wandb_run_of_a_trainer(wandb: Client) -> None:
    wandb.__dict__["run"] = wandb.__dict__["started"]
    await tracked("wandb", RunMetrics(done=3))
    assert not wandb.named("init") and not wandb.named("finish")
    _, (metrics,), named = wandb.named("log")[0]
    assert named == {"commit": False} and metrics["rollout/step"] == 3


async def test_mlflow(mlflow: Client) -> None:
    await tracked("mlflow", RunMetrics(done=2, rewards=1))
    assert mlflow.named("start_run") == [
        ("start_run", (), {"run_name": "first", "tags": {"strands_sglang.run": "abc"}})
    ]
    assert mlflow.named("log_params") == [("log_params", ({"samples_per_task": "2", "limits.max_turns": "3"},), {})]
    _, (run,), named = mlflow.named("log_batch")[0]
    assert run == "r1" and ("rollout/rewards", 1.0) in [(point[0], point[1]) for point in named["metrics"]]
    assert {point[3] for point in named["metrics"]} == {2}
    assert mlflow.named("end_run") == [("end_run", ("FINISHED",), {})]
    mlflow.asked.clear()
    mlflow.__dict__["active_run"] = lambda: mlflow.__dict__["started"]
    await tracked("mlflow", RunMetrics())
    assert [one[0] for one in mlflow.asked] == ["log_batch", "log_batch"]


async def test_mlflow_continues_the_run_of_a_resumed_rollout(mlflow: Client, tmp_path: Path) -> None:
    recorded = TrackedRun("abc", "first", tmp_path, RUN.settings)
    await tracked("mlflow", RunMetrics(), run=recorded)
    assert mlflow.named("search_runs")[0][2]["filter_string"] == "tags.`strands_sglang.run` = 'abc'"
    assert mlflow.named("start_run")[-1][2]["run_name"] == "first" and len(mlflow.named("log_params")) == 1
    mlflow.__dict__["search_runs"] = mlflow.method("search_runs", [mlflow.__dict__["started"]])
    await tracked("mlflow", RunMetrics(), run=recorded)
    assert mlflow.named("start_run")[-1] == ("start_run", (), {"run_id": "r1"}) and len(mlflow.named("log_params")) == 1
    await tracked("mlflow", RunMetrics(), run=TrackedRun("a' OR '1", "x", tmp_path))
    assert len(mlflow.named("search_runs")) == 2  # an id of another form is not searched for


async def test_tensorboard(tensorboard: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await tracked("tensorboard", RunMetrics(done=4, turns=7), run=TrackedRun("abc", "first", tmp_path))
    assert tensorboard.asked[0] == ("Writer", (str(tmp_path / "tensorboard"),), {})
    assert ("add_scalar", ("rollout/turns", 7.0, 4), {}) in tensorboard.asked
    assert tensorboard.asked[-1][0] == "close" and (tmp_path / "tensorboard").is_dir()
    monkeypatch.chdir(tmp_path)
    await tracked("tensorboard", RunMetrics())
    assert tensorboard.named("Writer")[-1][1] == ("runs/first",)


class Own:
    """A tracker of a user's own."""

    def __init__(self, fails: str = "", seconds: float = 0.0) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.threads: set[int] = set()
        self.fails, self.seconds = fails, seconds

    def _called(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, *arguments))
        if name == self.fails:
            raise OSError("no route")

    def begin(self, run: TrackedRun) -> None:
        self._called("begin", run)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.threads.add(threading.get_ident())
        time.sleep(self.seconds)
        self._called("log", metrics, step)

    def end(self, failed: bool) -> None:
        self._called("end", failed)


async def test_log_is_called_in_one_other_thread_and_steps_never_decrease() -> None:
    own = Own()
    await tracked(own, RunMetrics(done=3), RunMetrics(done=2), RunMetrics(done=5, seconds=float("inf")))
    assert len(own.threads) == 1 and threading.get_ident() not in own.threads
    assert [one[2] for one in own.calls if one[0] == "log"] == [3, 3, 5, 5]
    assert "rollout/seconds" not in own.calls[-2][1]


async def test_points_that_come_too_fast_are_dropped_but_not_the_last() -> None:
    own = Own(seconds=0.2)
    await tracked(own, *(RunMetrics(done=number) for number in range(1, 6)))
    logged = [one[2] for one in own.calls if one[0] == "log"]
    assert logged[0] == 1 and logged[-1] == 5 and len(logged) < 5
    assert own.calls[-1] == ("end", False)


async def test_errors(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigurationError, match="Own could not start: OSError: no route"):
        await tracked(Own("begin"), RunMetrics())
    with caplog.at_level(logging.WARNING):
        own = Own("log")
        await tracked(own, RunMetrics(), RunMetrics(done=1))
        assert [one[0] for one in own.calls] == ["begin", "log", "end"]
        assert caplog.text.count("tracker failed and is not called again") == 1
        await tracked(Own("end"), RunMetrics())
        assert caplog.text.count("tracker failed") == 2


def test_wrong_trackers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="tracker must be one of 'wandb', 'mlflow', 'tensorboard', or an obj"):
        tracker_for("comet")
    wrong: Any = SimpleNamespace(begin=print)
    with pytest.raises(ConfigurationError, match="implement log, end"):
        tracker_for(wrong)
    for name, module in (("wandb", "wandb"), ("mlflow", "mlflow"), ("tensorboard", "tensorboard.summary")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigurationError, match=rf"tracker='{name}' needs {name} .*strands-sglang\[{name}\]"):
            tracker_for(name)
    assert tracker_for(None) is None and list(TRACKERS) == ["wandb", "mlflow", "tensorboard"]


async def test_a_run_is_tracked(tmp_path: Path) -> None:
    own, engine = Own(), PromptEngine(steps(0))
    for _ in range(2):  # the second call only restores
        run = await rollout(
            lambda task, model: Agent(model=model, callback_handler=None),
            ["one", "two"],
            client=engine,
            tokenizer=engine.tokenizer,
            directory=tmp_path / "run",
            reward=lambda episode: 1.0,
            tracker=own,
            options=RunOptions(metrics_interval=0.05),
        )
    begun = [one[1] for one in own.calls if one[0] == "begin"]
    assert [one.id for one in begun] == [run.run_id] * 2 and begun[0].name == "run"
    assert begun[0].settings["samples_per_task"] == 1 and begun[0].settings["tokenizer"]
    last = [one for one in own.calls if one[0] == "log"][-1]
    assert last[2] == 2 and last[1]["rollout/reward_mean"] == 1.0 and own.calls[-1] == ("end", False)


async def test_real_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard.summary")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    await tracked("tensorboard", RunMetrics(done=4, turns=7), run=TrackedRun("abc", "first", tmp_path))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    points = events.Tensors("rollout/turns")
    assert [(point.step, point.tensor_proto.float_val[0]) for point in points] == [(4, 7.0), (4, 7.0)]


async def test_real_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    await tracked("mlflow", RunMetrics(done=4, turns=7))
    (run,) = mlflow.search_runs(output_format="list", search_all_experiments=True)
    assert run.data.metrics["rollout/turns"] == 7 and run.info.run_name == "first" and run.info.status == "FINISHED"
    assert run.data.params["limits.max_turns"] == "3"
    resumed = TrackedRun("def", "second", tmp_path, RUN.settings)
    for done in (3, 5):
        await tracked("mlflow", RunMetrics(done=done), run=resumed)
    wanted = "tags.`strands_sglang.run` = 'def'"
    (run,) = mlflow.search_runs(filter_string=wanted, output_format="list", search_all_experiments=True)
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "rollout/done")
    assert {(point.step, point.value) for point in history} == {(3, 3.0), (5, 5.0)} and run.info.status == "FINISHED"


async def test_real_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    if not hasattr(wandb, "init"):
        pytest.skip("a folder of this name, not the client")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    await tracked("wandb", RunMetrics(done=4, turns=7))
    assert list(tmp_path.rglob("run-*.wandb"))
