"""Progress displays: choice of display, text lines, formatted numbers, and displays that raise."""

from __future__ import annotations

import asyncio
import io
import logging
import math
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.monitoring.live_view import LiveView
from strands_sglang.runs.monitoring.metrics import RunCounters, RunMetrics, bar, curve, duration, rounded, shrunk
from strands_sglang.runs.monitoring.progress import Display, ProgressKind, Reporter, TextView, display_for
from support.rollout.finished import finished

SOME = RunMetrics(
    seconds=61.4,
    total=64,
    done=12,
    live=8,
    waiting=44,
    eta=95.2,
    tokens_per_second=1234.5,
    turns_per_second=3.21,
    cache_hit_rate=0.8333,
    rewards=11,
    reward_mean=0.5125,
    end_reasons={EndReason.ANSWERED: 10, EndReason.AGENT_ERROR: 2},
    failures=2,
    latest_error='t/3: ValueError: a "word"\nand a line',
    versions={"step 1": 3, None: 9},
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Recorder:
    interval = 0.0

    def __init__(self, breaks: str = "") -> None:
        self.breaks = breaks
        self.called: list[str] = []

    def _record(self, name: str) -> None:
        self.called.append(name)
        if name == self.breaks:
            raise RuntimeError("no screen")

    def begin(self, total: int | None) -> None:
        self._record("begin")

    def update(self, snapshot: RunMetrics) -> None:
        self._record("update")

    def end(self, snapshot: RunMetrics) -> None:
        self._record("end")


def chosen(progress: Any, stream: io.StringIO) -> Any:
    return display_for(progress, stream=stream)._progress


def test_display_for_stream_and_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    assert isinstance(chosen("auto", Terminal()), LiveView)
    assert isinstance(chosen(ProgressKind.AUTO, io.StringIO()), TextView)
    assert isinstance(chosen("lines", Terminal()), TextView)
    assert isinstance(chosen("live", io.StringIO()), LiveView)
    assert chosen("none", Terminal()) is None and chosen(None, Terminal()) is None
    closed = Terminal()
    closed.close()
    monkeypatch.setattr(closed, "isatty", closed.read, raising=False)  # raises ValueError
    assert isinstance(chosen("auto", closed), TextView)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(chosen("auto", Terminal()), TextView)
    with pytest.raises(ConfigurationError, match="progress must be one of 'auto', 'live', 'lines', 'none'"):
        display_for("fancy")
    with pytest.raises(ConfigurationError, match="implement update, end"):
        display_for(type("Half", (), {"begin": print})())


def test_without_rich_lines_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert isinstance(chosen("auto", Terminal()), TextView)
    with pytest.raises(ConfigurationError, match=r"strands-sglang\[progress\]"):
        display_for("live")


def test_lines_are_parsable() -> None:
    stream = io.StringIO()
    lines = TextView("my run", stream)
    lines.begin(64)
    lines.update(SOME)
    lines.end(RunMetrics())
    first, second, third = stream.getvalue().splitlines()
    assert first.startswith("my-run state=begins done=0 total=64 live=0 ")
    title, *items = shlex.split(second)
    fields = dict(item.split("=", 1) for item in items)
    assert title == "my-run"
    assert fields["done"] == "12" and fields["total"] == "64" and fields["eta_seconds"] == "95"
    assert fields["tokens_per_second"] == "1234" and fields["turns_per_second"] == "3.2"
    assert fields["cache_hit_rate"] == "0.8333" and fields["reward_mean"] == "0.5125"
    assert fields["end_reason_answered"] == "10" and fields["end_reason_agent_error"] == fields["failures"] == "2"
    assert fields["version"] == "step_1" and "latest_error" in fields
    assert (
        third
        == "my-run state=ended done=0 live=0 seconds=0 tokens_per_second=0 turns_per_second=0.0 rewards=0 failures=0"
    )


def test_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    display = display_for("lines")
    display.begin(3)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("rollout state=begins done=0 total=3")


def test_display_is_updated_at_its_interval() -> None:
    now = [0.0]
    recorder = Recorder()
    recorder.interval = 10.0
    display = Display(recorder, clock=lambda: now[0])
    assert not display.due()
    display.begin(None)
    for _ in range(100):
        now[0] += 0.25
        display.update(SOME)
    display.end(SOME)
    display.end(SOME)
    assert recorder.called == ["begin", "update", "update", "end"]
    nothing = Display(None)
    nothing.begin(1)
    assert not nothing.due()
    nothing.end(SOME)


@pytest.mark.parametrize("breaks", ["begin", "update", "end"])
def test_display_that_raises_is_logged_once_and_not_called_again(breaks: str, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(breaks)
    display = Display(recorder)
    with caplog.at_level(logging.WARNING):
        display.begin(2)
        for _ in range(3):
            display.update(SOME)
        display.end(SOME)
    assert [record.getMessage() for record in caplog.records] == [
        "progress=<Recorder>, error=<RuntimeError: no screen> | display failed, run continues without it"
    ]
    assert recorder.called[-1] == breaks and recorder.called.count(breaks) == 1


def test_display_that_raises_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    class BrokenClose(Recorder):
        def close(self) -> None:
            self.called.append("close")
            raise RuntimeError("stuck")

    broken = BrokenClose("update")
    display = Display(broken)
    display.begin(2)
    display.update(SOME)
    display.end(SOME)
    assert broken.called == ["begin", "update", "close"]
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_line_of_real_snapshot() -> None:
    totals = RunCounters(2)
    totals.finished(finished("t", 0, 1.0))
    stream = io.StringIO()
    TextView(stream=stream).update(totals.snapshot())
    assert "reward_mean=1 rewards=1 end_reason_answered=1" in stream.getvalue()


@given(st.floats(-1, 2), st.integers(0, 200), st.sampled_from([" #", " ╸━", " ▏▎▍▌▋▊▉█"]))
def test_bar(part: float, width: int, cells: str) -> None:
    drawn = bar(part, width, cells)
    assert len(drawn) == width
    assert bool(drawn.strip()) == (part > 0 and width > 0)
    if part >= 1:
        assert drawn == cells[-1] * width


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=200), st.integers(1, 64))
def test_curve_and_shrunk(points: list[float], most: int) -> None:
    heights = "01234567"
    drawn = curve(points, heights)
    assert len(drawn) == len(points)
    if points and min(points) < max(points) and math.isfinite(max(points) - min(points)):
        assert drawn[points.index(max(points))] == "7" and drawn[points.index(min(points))] == "0"
    small = [point / 1e10 for point in points if abs(point) < 1e300]
    less = shrunk(small, most)
    assert len(less) == min(len(small), most)
    if less:
        slack = 1e-9 * (1 + max(map(abs, small)))
        assert min(small) - slack <= min(less) and max(less) <= max(small) + slack


def test_duration_and_rounded() -> None:
    durations = [duration(seconds) for seconds in (-1, 0, 42.4, 60, 3599.6, 7384, 86400 * 2 + 4 * 3600)]
    assert durations == ["0 s", "0 s", "42 s", "1:00", "1:00:00", "2:03:04", "2 d 4 h"]
    assert [rounded(number) for number in (0, 4.5, 61.23, 12431.4, 1_234_567)] == ["0", "4.5", "61.2", "12,431", "1.2M"]


def test_lines_contain_no_control_characters() -> None:
    control = "\x1b[2J\x1b]0;t\x07\x9b31m\x9d0;x\x9c \u202eABC\u2066\u200b\r\nfake done=9 \x7f\x00\u2028"
    stream = io.StringIO()
    lines = TextView(f"run{control}", stream)
    lines.begin(1)
    snapshot = RunMetrics(total=1, latest_error=control, versions={f"v{control}": 3})
    lines.update(snapshot)
    lines.end(snapshot)
    assert len(stream.getvalue().split("\n")) == 4
    assert all(line.isprintable() for line in stream.getvalue().split("\n"))
    assert "version=v" in stream.getvalue()


def test_lines_show_unreachable_engine() -> None:
    stream = io.StringIO()
    lines = TextView(stream=stream)
    lines.update(RunMetrics(total=4, unreachable_seconds=40.4))
    lines.update(RunMetrics(total=4))
    first, second = stream.getvalue().splitlines()
    assert "engine_unreachable_seconds=40" in first.split() and "unreachable" not in second


async def test_metrics_are_reported_periodically_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.runs.monitoring.progress._INTERVAL", 0.01)
    reported: list[RunMetrics] = []
    async with Reporter(RunCounters(3), display_for("none"), reported.append, 0.05) as reporter:
        for _ in range(3):
            reporter.totals.turn(10, 5, 20)
        await asyncio.sleep(0.3)
        before = len(reported)
        assert 2 <= before <= 6
    assert len(reported) == before + 1
    assert (reported[-1].turns, reported[-1].sampled_tokens, reported[-1].total) == (3, 30, 3)
    assert len(asyncio.all_tasks()) == 1


async def test_error_in_block_propagates() -> None:
    reported: list[RunMetrics] = []
    with pytest.raises(LookupError):
        async with Reporter(RunCounters(3), display_for("none"), reported.append):
            raise LookupError("inside")
    assert len(reported) == 1 and len(asyncio.all_tasks()) == 1
