"""Progress as a panel in a terminal or a notebook: `LiveView`. The one file that needs rich.

Invariant: it draws only when it is asked to, on the event loop, in a few milliseconds. What it says can be read
without colours. Lines that a program prints or logs meanwhile appear above it.
"""

from __future__ import annotations

import logging
import sys
import textwrap
from dataclasses import dataclass
from typing import TextIO, TypeAlias

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment

from strands_sglang.rollout.figures import bar, curve, duration, rounded, shrunk
from strands_sglang.rollout.plain_lines import newest_version
from strands_sglang.rollout.totals import RunMetrics

_NARROWEST, _WIDEST = 40, 120
"""Columns it takes."""
_REASONS = 6
"""Reasons shown; the others together, if there are two or more."""
_LABEL = 14
"""Columns of the names on the left."""
_Row: TypeAlias = "list[tuple[str, str]]"
"""A line as texts and their styles."""


@dataclass(frozen=True, slots=True)
class _Signs:
    """What bars and curves are made of."""

    bar: str
    """Parts of a cell, empty to full."""
    done: str
    """The part of the progress bar that is done."""
    left: str
    """The part of it that is left."""
    curve: str
    """Heights, lowest to highest."""
    marks: tuple[str, str, str]
    """Ended by itself, cut, failed."""
    frame: str
    """Four corners, a line across, a line down."""


_UNICODE = _Signs(" ╸━", "━", "─", "▁▂▃▄▅▆▇█", ("✓", "◦", "✗"), "╭╮╰╯─│")
_ASCII = _Signs(" #", "#", "-", "_.-=+*%#", ("+", "o", "x"), "++++-|")


class LiveView:
    """Draws a panel, again and again in the same place."""

    interval = 0.25
    """Seconds between two drawings."""

    def __init__(self, title: str = "rollout", stream: TextIO | None = None, console: Console | None = None) -> None:
        """Choose where to draw.

        Args:
            title: What the run is called.
            stream: Where to draw; None: stderr.
            console: A console of rich's, instead of a stream.
        """
        self._title = title
        self._console = console or Console(file=stream or sys.stderr)
        self._live: Live | None = None
        self._moved: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []

    def begin(self, total: int | None) -> None:
        """Draw it for the first time."""
        # What a program prints into a file must stay there: only what would land on the screen is led above the panel.
        before = (sys.stdout, sys.stderr)
        self._live = Live(
            View(RunMetrics(total=total), self._title),
            console=self._console,
            auto_refresh=False,
            redirect_stdout=_is_screen(sys.stdout),
            redirect_stderr=_is_screen(sys.stderr),
        )
        self._live.start(refresh=True)
        for handler in logging.getLogger().handlers:
            # A handler keeps the stream it was made with, and would write into the middle of the panel.
            if isinstance(handler, logging.StreamHandler) and handler.stream in before:
                self._moved.append((handler, handler.stream))
                handler.setStream(sys.stdout if handler.stream is before[0] else sys.stderr)

    def update(self, snapshot: RunMetrics) -> None:
        """Draw it again."""
        if self._live is not None:
            self._live.update(View(snapshot, self._title), refresh=True)

    def end(self, snapshot: RunMetrics) -> None:
        """Draw it for the last time; it stays where it is."""
        if self._live is not None:
            self._live.update(View(snapshot, self._title, over=True))
        self.close()

    def close(self) -> None:
        """Give streams and cursor back."""
        for handler, stream in self._moved:
            handler.setStream(stream)
        self._moved = []
        live, self._live = self._live, None
        if live is not None:
            live.stop()


@dataclass(frozen=True, slots=True)
class View:
    """The panel of one moment, as something that rich can print.

    It is laid out by hand: rich's own panels count the width of everything at every level, which takes longer than a
    turn does.
    """

    now: RunMetrics
    """The numbers."""
    title: str = "rollout"
    """What the run is called."""
    over: bool = False
    """Whether the run has ended."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it as wide as there is room, 40 to 120 columns."""
        signs = _ASCII if options.ascii_only else _UNICODE
        width = max(min(options.max_width, _WIDEST), _NARROWEST)
        room = width - 6
        now = self.now
        blocks = [[self._progress(room, signs)], self._numbers(room), self._reward(room, signs)]
        blocks += [self._reasons(room, signs), [*self._facts(), *self._trouble(room, signs)]]
        rows: list[_Row] = []
        for block in filter(None, blocks):
            rows += [[], *block] if rows else block
        frame = console.get_style("red" if now.failures == now.done > 0 else "green" if self.over else "cyan")
        corner, line, side = signs.frame[:4], signs.frame[4], signs.frame[5]
        name = set_cell_size(_printable(self.title), min(cell_len(_printable(self.title)), room - 4))
        yield Segment(f"{corner[0]}{line} ", frame)
        yield Segment(name, console.get_style("bold"))
        yield Segment(f" {line * (width - 5 - cell_len(name))}{corner[1]}\n", frame)
        for row in rows:
            yield Segment(f"{side}  ", frame)
            for text, style in row:
                yield Segment(text, console.get_style(style) if style else None)
            yield Segment(" " * max(room - sum(cell_len(text) for text, _ in row), 0))
            yield Segment(f"  {side}\n", frame)
        time = f"{'ended after ' if self.over else ''}{duration(now.seconds)}"
        yield Segment(f"{corner[2]}{line * (width - 5 - len(time))} ", frame)
        yield Segment(time, console.get_style("dim"))
        yield Segment(f" {line}{corner[3]}\n", frame)

    def _progress(self, room: int, signs: _Signs) -> _Row:
        now = self.now
        if now.total is None:
            return [(f"{now.done:,} done", "bold")]
        part = min(now.done / now.total, 1.0) if now.total else 1.0
        tail = f"  {now.done:,}/{now.total:,}  {int(part * 100):>3} %"
        if not self.over:
            tail += f"  ETA {'--:--' if now.eta is None else duration(now.eta):>7}"
        wide = max(room - len(tail), 4)
        full = int(wide * part)
        return [
            (signs.done * full, "bold green" if self.over else "bold cyan"),
            (signs.left * (wide - full), "bright_black"),
            (tail, "bold"),
        ]

    def _numbers(self, room: int) -> list[_Row]:
        now = self.now
        speed = now.tokens_per_second_overall if self.over else now.tokens_per_second
        turns = now.turns / max(now.seconds, 1.0) if self.over else now.turns_per_second
        cells = {
            "tokens/s": rounded(speed),
            "turns/s": rounded(turns),
            "live": f"{now.live:,}",
            "waiting": "-" if now.waiting is None else f"{now.waiting:,}",
            "cached": "-" if now.cache_hit_rate is None else f"{100 * now.cache_hit_rate:.0f} %",
            "weights": _printable(newest_version(now) or "-"),
        }
        column = room // len(cells)
        widths = [column] * (len(cells) - 1) + [room - column * (len(cells) - 1)]
        rows = []
        for texts, style in ((cells.keys(), "dim"), (cells.values(), "bold")):
            fitted = [set_cell_size(text, wide - 1) for text, wide in zip(texts, widths, strict=True)]
            rows.append([(" ".join(fitted), style)])
        return rows

    def _reward(self, room: int, signs: _Signs) -> list[_Row]:
        now = self.now
        if now.reward_mean is None:
            return []
        mean, about = f"{now.reward_mean:.3f}", f" over {now.rewards:,}"
        points = shrunk(now.reward_history, max(room - _LABEL - len(mean) - len(about) - 2, 4))
        drawn = "  " + curve(points, signs.curve) if len(points) > 1 else ""
        return [[("reward".ljust(_LABEL), "dim"), (mean, "bold"), (about, "dim"), (drawn, "magenta")]]

    def _reasons(self, room: int, signs: _Signs) -> list[_Row]:
        """Draw why episodes ended: the most frequent reasons, and failures however few they are."""
        counts = list(self.now.ended.items())
        named = sorted(counts, key=lambda one: not one[0].failed)[:_REASONS] if len(counts) > _REASONS + 1 else counts
        shown = [
            (2 if ended.failed else int(not ended.complete), ended.value, n)
            for ended, n in counts
            if (ended, n) in named
        ]
        if len(named) < len(counts):
            shown.append((1, "others", sum(n for ended, n in counts if (ended, n) not in named)))
        done = sum(self.now.ended.values())
        most = max((count for _, _, count in shown), default=1)
        digits = len(f"{most:,}")
        wide = max(room - _LABEL - digits - 9, 4)
        rows: list[_Row] = []
        for kind, name, count in shown:
            colour = ("green", "yellow", "red")[kind]
            head = f"{signs.marks[kind]} {name.replace('_', ' ')}".ljust(_LABEL)
            share = f"{100 * count / done:.0f} %" if 100 * count >= done else "<1 %"
            drawn = bar(count / most, wide, signs.bar)
            rows.append([(head + drawn, colour), (f"  {count:>{digits},}", ""), (f"  {share:>5}", "dim")])
        return rows

    def _facts(self) -> list[_Row]:
        now = self.now
        late = f", {now.tool_timeouts:,} timed out" if now.tool_timeouts else ""
        facts = {
            "groups": f"{now.groups_kept:,} kept, {now.groups_dropped:,} dropped"
            if now.groups_kept or now.groups_dropped
            else "",
            "tools": f"{now.tool_calls:,} run, {now.tool_errors:,} with errors{late}" if now.tool_errors else "",
            "rewards": f"{now.reward_errors:,} failed" if now.reward_errors else "",
            "filters": f"{now.filter_errors:,} raised" if now.filter_errors else "",
        }
        return [[(name.ljust(_LABEL), "dim"), (fact, "")] for name, fact in facts.items() if fact]

    def _trouble(self, room: int, signs: _Signs) -> list[_Row]:
        down = round(self.now.unreachable_seconds)
        if down and not self.over:
            return [[(f"{signs.marks[2]} engine unreachable for {down:,} s", "bold red")]]
        if not self.now.latest_trouble:
            return []
        text = f"{signs.marks[2]} {_printable(self.now.latest_trouble)}"
        columns = room if text.isascii() or cell_len(text) == len(text) else room // 2  # wide letters take two
        return [[(line, "red")] for line in textwrap.wrap(text, columns, max_lines=2, placeholder=" ...")]


def _printable(text: str) -> str:
    """Return a text in one line, without what would move a cursor."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text[:2000]).split())


def _is_screen(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):  # closed, or not quite a file
        return False
