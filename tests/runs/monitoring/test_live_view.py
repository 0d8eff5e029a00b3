"""`LiveView`: contents of the panel at any width, with and without colours, and redirected output."""

from __future__ import annotations

import dataclasses
import io
import logging
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.monitoring.live_view import LiveView, View
from strands_sglang.runs.monitoring.metrics import RunMetrics

FINAL = [one for one in EndReason if one is not EndReason.PAUSED]
FULL = RunMetrics(
    seconds=761,
    total=1024,
    done=412,
    live=256,
    waiting=356,
    eta=1100,
    turns=9021,
    turns_per_second=61.23,
    tokens_per_second=12431,
    cache_hit_rate=0.834,
    rewards=398,
    reward_mean=0.412,
    reward_history=tuple(number / 60 for number in range(60)),
    reward_errors=2,
    end_reasons=dict(zip(FINAL, (361, 22, 11, 7, 5, 4, 3, 2, 2, 2, 2, 1, 1, 1), strict=True)),
    failures=3,
    latest_error="algebra-17/3: ValueError: could not convert string to float: 'forty-two', which \x1b[2J nobody saw",
    tool_calls=12030,
    tool_errors=31,
    tool_timeouts=4,
    groups_kept=41,
    groups_dropped=12,
    filter_errors=1,
    versions={"step-16": 200, "step-17": 212},
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Ascii(io.StringIO):
    encoding = "ascii"


def drawn(view: View, width: int = 80, stream: io.StringIO | None = None) -> str:
    stream = stream or io.StringIO()
    Console(file=stream, width=width, no_color=True, legacy_windows=False).print(view)
    return stream.getvalue()


def test_panel_is_readable_without_colours() -> None:
    text = drawn(View(FULL, "runs/first"))
    for expected in (
        "runs/first",
        "412/1,024   40 %  ETA   18:20",
        "12,431",
        "61.2",
        "83 %",
        "step-17",
        "0.412 over 398",
        "✓ answered",
        "◦ turn limit",
        "✗ engine",
        "✗ agent",
        "41 kept, 12 dropped",
        "12,030 run, 31 with errors, 4 timed out",
        "2 failed",
        "1 raised",
        "algebra-17/3: ValueError",
        "12:41",
    ):
        assert expected in text, expected
    assert "\x1b" not in text, "an error message must not move the cursor"
    assert len(text.splitlines()) <= 24, "it fits a small terminal"
    assert "others" in text


def test_failures_are_always_shown() -> None:
    text = drawn(View(FULL))
    failures = [line.split()[2] for line in text.splitlines() if "✗ " in line and "algebra" not in line]
    assert failures == ["engine", "tool", "other", "agent"]


@settings(deadline=None)
@given(
    st.integers(20, 200),
    st.booleans(),
    st.sampled_from([FULL, RunMetrics(), RunMetrics(total=0), RunMetrics(total=5, done=7, live=10**9)]),
    st.text(max_size=300),
    st.booleans(),
)
def test_all_lines_have_the_same_width(width: int, ascii_only: bool, now: RunMetrics, words: str, over: bool) -> None:
    now = dataclasses.replace(now, latest_error=words, versions={words: 1})
    text = drawn(View(now, words, over), max(width, 40), Ascii() if ascii_only else None)
    lines = text.removesuffix("\n").split("\n")
    assert {cell_len(line) for line in lines} == {min(max(width, 40), 120)}
    if ascii_only and words.isascii():
        assert text.isascii()


def test_first_and_final_panel() -> None:
    begin = drawn(View(RunMetrics(total=8)))
    assert "0/8    0 %  ETA   --:--" in begin and "reward" not in begin
    assert "12 done" in drawn(View(RunMetrics(done=12)))
    end = drawn(View(RunMetrics(total=8, done=8, seconds=75, end_reasons={EndReason.ANSWERED: 8}), over=True))
    assert "8/8  100 %" in end and "ETA" not in end and "ended after 1:15" in end


@pytest.mark.soak
def test_update_is_fast() -> None:
    view = LiveView(
        "run", console=Console(file=io.StringIO(), force_terminal=True, width=120, color_system="truecolor")
    )
    view.begin(100)
    view.update(FULL)
    began = time.process_time()
    for _ in range(50):
        view.update(FULL)
    assert (time.process_time() - began) / 50 < 0.02
    view.end(FULL)


def test_output_and_logs_appear_above_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, into_file = Terminal(), io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", into_file)
    handler = logging.StreamHandler()  # keeps the stream as it is now
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [handler])
    view = LiveView("run", console=Console(file=screen, force_terminal=True, width=80))
    view.begin(10)
    view.update(FULL)
    logging.getLogger("somebody").warning("careful")
    print("data")
    print("noise", file=sys.stderr)
    assert handler.stream is not screen
    view.end(FULL)
    view.close()
    assert sys.stderr is screen and sys.stdout is into_file and handler.stream is screen
    assert into_file.getvalue() == "data\n", "a stream that is not a terminal is not redirected"
    text = screen.getvalue()
    assert "careful" in text and "noise" in text
    assert text.count("\x1b[?25l") == 1 and text.rstrip().endswith("\x1b[?25h"), "the cursor is restored"
    view.update(FULL)  # ignored after the end
    assert screen.getvalue() == text


def test_close_restores_terminal_after_drawing_error(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    view = LiveView("run", console=Console(file=screen, force_terminal=True, width=80))
    view.begin(10)

    def broken(*_: Any) -> Any:
        raise RuntimeError("no screen")

    monkeypatch.setattr(View, "_numbers", broken)
    with pytest.raises(RuntimeError):
        view.update(FULL)
    with pytest.raises(RuntimeError):
        view.close()
    assert sys.stderr is screen
    assert "\x1b[?25h" in screen.getvalue()


def test_unreachable_engine_is_shown_before_other_errors() -> None:
    down = dataclasses.replace(FULL, unreachable_seconds=40.4)
    text = drawn(View(down, "runs/first"))
    assert "engine unreachable for 40 s" in text and "forty-two" not in text
    assert "unreachable" not in drawn(View(down, "runs/first", over=True))
