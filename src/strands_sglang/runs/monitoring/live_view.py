"""Progress as a panel in a terminal or a notebook: `LiveView`. The only module that imports rich.

Invariant: it draws only when one of its methods is called, on the event loop, in a few milliseconds. The panel is
readable without colours. Lines that the program prints or logs meanwhile appear above it.
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

from strands_sglang._terminal import is_terminal
from strands_sglang.runs.monitoring.metrics import RunMetrics, bar, curve, duration, rounded, shrunk

_MIN_WIDTH, _MAX_WIDTH = 40, 120  # columns
_MAX_REASONS = 7  # number of end reasons with a row of their own; the others share one row if they are two or more
_LABEL = 18  # columns: the longest end reason and its mark
_Row: TypeAlias = "list[tuple[str, str]]"  # a line as pairs of text and style


@dataclass(frozen=True, slots=True)
class _Characters:
    bar: str
    """Fill levels of one column, empty to full."""
    done: str
    left: str
    curve: str
    """Heights, lowest to highest."""
    marks: tuple[str, str, str]
    """Marks of an end reason: complete, stopped by a limit or by the run, failed."""
    frame: str
    """Four corners, a horizontal line, a vertical line."""


_UNICODE = _Characters(" ╸━", "━", "─", "▁▂▃▄▅▆▇█", ("✓", "◦", "✗"), "╭╮╰╯─│")
_ASCII = _Characters(" #", "#", "-", "_.-=+*%#", ("+", "o", "x"), "++++-|")


class LiveView:
    """Draws a panel and redraws it in the same place."""

    interval = 0.25  # seconds between two updates

    def __init__(self, title: str = "rollout", stream: TextIO | None = None, console: Console | None = None) -> None:
        """Choose where to draw: a rich console, else a stream; None: stderr."""
        self._title = title
        self._console = console or Console(file=stream or sys.stderr)
        self._live: Live | None = None
        self._moved: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []

    def begin(self, total: int | None) -> None:
        """Draw the panel for the first time and redirect terminal output above it."""
        # Output that goes to a file must stay there: only output to the terminal is redirected above the panel.
        before = (sys.stdout, sys.stderr)
        self._live = Live(
            View(RunMetrics(total=total), self._title),
            console=self._console,
            auto_refresh=False,
            redirect_stdout=is_terminal(sys.stdout),
            redirect_stderr=is_terminal(sys.stderr),
        )
        self._live.start(refresh=True)
        for handler in logging.getLogger().handlers:
            # A handler keeps the stream it was created with, and would write into the middle of the panel.
            if isinstance(handler, logging.StreamHandler) and handler.stream in before:
                self._moved.append((handler, handler.stream))
                handler.setStream(sys.stdout if handler.stream is before[0] else sys.stderr)

    def update(self, snapshot: RunMetrics) -> None:
        """Redraw the panel."""
        if self._live is not None:
            self._live.update(View(snapshot, self._title), refresh=True)

    def end(self, snapshot: RunMetrics) -> None:
        """Draw the final panel, which stays on the screen."""
        if self._live is not None:
            self._live.update(View(snapshot, self._title, over=True))
        self.close()

    def close(self) -> None:
        """Restore the streams and the cursor."""
        for handler, stream in self._moved:
            handler.setStream(stream)
        self._moved = []
        live, self._live = self._live, None
        if live is not None:
            live.stop()


@dataclass(frozen=True, slots=True)
class View:
    """The panel at one moment. It lays itself out: rich measures all text at every level, longer than a turn takes."""

    now: RunMetrics
    title: str = "rollout"
    over: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the panel with the available width, at least 40 and at most 120 columns."""
        characters = _ASCII if options.ascii_only else _UNICODE
        width = max(min(options.max_width, _MAX_WIDTH), _MIN_WIDTH)
        inner_width = width - 6
        now = self.now
        blocks = [
            [self._progress(inner_width, characters)],
            self._numbers(inner_width),
            self._reward(inner_width, characters),
            self._reasons(inner_width, characters),
            [*self._facts(), *self._latest_error(inner_width, characters)],
        ]
        rows: list[_Row] = []
        for block in filter(None, blocks):
            rows += [[], *block] if rows else block
        frame = console.get_style("red" if now.failures == now.done > 0 else "green" if self.over else "cyan")
        corner, line, side = characters.frame[:4], characters.frame[4], characters.frame[5]
        name = set_cell_size(_printable(self.title), min(cell_len(_printable(self.title)), inner_width - 4))
        yield Segment(f"{corner[0]}{line} ", frame)
        yield Segment(name, console.get_style("bold"))
        yield Segment(f" {line * (width - 5 - cell_len(name))}{corner[1]}\n", frame)
        for row in rows:
            yield Segment(f"{side}  ", frame)
            for text, style in row:
                yield Segment(text, console.get_style(style) if style else None)
            yield Segment(" " * max(inner_width - sum(cell_len(text) for text, _ in row), 0))
            yield Segment(f"  {side}\n", frame)
        time = f"{'ended after ' if self.over else ''}{duration(now.seconds)}"
        yield Segment(f"{corner[2]}{line * (width - 5 - len(time))} ", frame)
        yield Segment(time, console.get_style("dim"))
        yield Segment(f" {line}{corner[3]}\n", frame)

    def _progress(self, inner_width: int, characters: _Characters) -> _Row:
        now = self.now
        if now.total is None:
            return [(f"{now.done:,} done", "bold")]
        part = min(now.done / now.total, 1.0) if now.total else 1.0
        tail = f"  {now.done:,}/{now.total:,}  {int(part * 100):>3} %"
        if not self.over:
            tail += f"  ETA {'--:--' if now.eta is None else duration(now.eta):>7}"
        wide = max(inner_width - len(tail), 4)
        full = int(wide * part)
        return [
            (characters.done * full, "bold green" if self.over else "bold cyan"),
            (characters.left * (wide - full), "bright_black"),
            (tail, "bold"),
        ]

    def _numbers(self, inner_width: int) -> list[_Row]:
        now = self.now
        speed = now.tokens_per_second_overall if self.over else now.tokens_per_second
        turns = now.turns / max(now.seconds, 1.0) if self.over else now.turns_per_second
        cells = {
            "tokens/s": rounded(speed),
            "turns/s": rounded(turns),
            "live": f"{now.live:,}",
            "waiting": "-" if now.waiting is None else f"{now.waiting:,}",
            "cached": "-" if now.cache_hit_rate is None else f"{100 * now.cache_hit_rate:.0f} %",
            "weights": _printable(now.newest_version or "-"),
        }
        column = inner_width // len(cells)
        widths = [column] * (len(cells) - 1) + [inner_width - column * (len(cells) - 1)]
        rows = []
        for texts, style in ((cells.keys(), "dim"), (cells.values(), "bold")):
            fitted = [set_cell_size(text, wide - 1) for text, wide in zip(texts, widths, strict=True)]
            rows.append([(" ".join(fitted), style)])
        return rows

    def _reward(self, inner_width: int, characters: _Characters) -> list[_Row]:
        now = self.now
        if now.reward_mean is None:
            return []
        mean, about = f"{now.reward_mean:.3f}", f" over {now.rewards:,}"
        points = shrunk(now.reward_history, max(inner_width - _LABEL - len(mean) - len(about) - 2, 4))
        drawn = "  " + curve(points, characters.curve) if len(points) > 1 else ""
        return [[("reward".ljust(_LABEL), "dim"), (mean, "bold"), (about, "dim"), (drawn, "magenta")]]

    def _reasons(self, inner_width: int, characters: _Characters) -> list[_Row]:
        """Return one row per end reason: the most frequent ones, and all failures."""
        counts = list(self.now.end_reasons.items())
        most_named = _MAX_REASONS if len(counts) > _MAX_REASONS + 1 else len(counts)
        named = sorted(counts, key=lambda one: not one[0].failed)[:most_named]
        reasons = [
            (2 if ended.failed else int(not ended.complete), ended.value, n)
            for ended, n in counts
            if (ended, n) in named
        ]
        if len(named) < len(counts):
            reasons.append((1, "others", sum(n for ended, n in counts if (ended, n) not in named)))
        done = sum(self.now.end_reasons.values())
        most = max((count for _, _, count in reasons), default=1)
        digits = len(f"{most:,}")
        wide = max(inner_width - _LABEL - digits - 9, 0)
        rows: list[_Row] = []
        for kind, name, count in reasons:
            colour = ("green", "yellow", "red")[kind]
            head = set_cell_size(f"{characters.marks[kind]} {name.replace('_', ' ')}", _LABEL)
            share = f"{100 * count / done:.0f} %" if 100 * count >= done else "<1 %"
            drawn = bar(count / most, wide, characters.bar)
            rows.append([(head + drawn, colour), (f"  {count:>{digits},}", ""), (f"  {share:>5}", "dim")])
        return rows

    def _facts(self) -> list[_Row]:
        now = self.now
        late = f", {now.tool_timeouts:,} timed out" if now.tool_timeouts else ""
        groups = f"{now.groups_kept:,} kept, {now.groups_dropped:,} dropped"
        groups += f" ({now.groups_stale:,} too old)" if now.groups_stale else ""
        facts = {
            "groups": groups if now.groups_kept or now.groups_dropped else "",
            "tools": f"{now.tool_calls:,} run, {now.tool_errors:,} with errors{late}" if now.tool_errors else "",
            "rewards": f"{now.reward_errors:,} failed" if now.reward_errors else "",
            "filters": f"{now.filter_errors:,} raised" if now.filter_errors else "",
        }
        return [[(name.ljust(_LABEL), "dim"), (fact, "")] for name, fact in facts.items() if fact]

    def _latest_error(self, inner_width: int, characters: _Characters) -> list[_Row]:
        down = round(self.now.unreachable_seconds)
        if down and not self.over:
            return [[(f"{characters.marks[2]} engine unreachable for {down:,} s", "bold red")]]
        if not self.now.latest_error:
            return []
        text = f"{characters.marks[2]} {_printable(self.now.latest_error)}"
        # Wide characters take two columns.
        columns = inner_width if text.isascii() or cell_len(text) == len(text) else inner_width // 2
        return [[(line, "red")] for line in textwrap.wrap(text, columns, max_lines=2, placeholder=" ...")]


def _printable(text: str) -> str:
    """Return the first 2000 characters of a text in one line, without control characters."""
    return " ".join("".join(character if character.isprintable() else " " for character in text[:2000]).split())
