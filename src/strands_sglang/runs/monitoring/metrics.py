"""Live metrics of a run: `RunCounters` counts, `RunMetrics` is a snapshot of the counts; and numbers as text.

Invariant: counting an episode takes constant time and memory, however many were counted before; only numbers are kept
of an episode that ended. A `RunCounters` is used by one thread. A bar or curve is never wider than the given width.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise

from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode


def bar(part: float, width: int, cells: str) -> str:
    """Return a bar with `part` (0 to 1) filled, at least a step if above 0; `cells`: fill levels of a column."""
    steps = len(cells) - 1
    filled = min(max(math.ceil(part * width * steps) if part > 0 else 0, 0), width * steps)
    whole, rest = divmod(filled, steps)
    return (cells[-1] * whole + (cells[rest] if rest else "")).ljust(width)


def curve(points: Sequence[float], heights: str) -> str:
    """Return one character per point, scaled from the lowest to the highest; a flat curve is drawn in the middle."""
    if not points:
        return ""
    low, high = min(points), max(points)
    if high <= low:
        return heights[len(heights) // 2] * len(points)
    top = len(heights) - 1
    # Halve before subtracting: the difference of two floats may overflow.
    span = high / 2 - low / 2
    return "".join(heights[min(round((point / 2 - low / 2) / span * top), top)] for point in points)


def shrunk(points: Sequence[float], most: int) -> list[float]:
    """Return at most `most` points, each the mean of the neighbouring points it replaces."""
    count = len(points)
    if count <= most:
        return list(points)
    edges = [index * count // most for index in range(most + 1)]
    return [math.fsum(points[a:b]) / (b - a) for a, b in pairwise(edges)]


def duration(seconds: float) -> str:
    """Return seconds in a readable form: "42 s", "3:05", "11:02:03", "2 d 4 h"."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}:{rest:02}"
    if hours < 24:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{hours // 24} d {hours % 24} h"


def rounded(number: float) -> str:
    """Return a number in a short form: "0", "61.2", "12,431", "1.2M"."""
    if number >= 1e6:
        return f"{number / 1e6:,.1f}M"
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:,.1f}"


class RollingSeries:
    """A series of bounded length: when it is full, neighbouring points are merged into their mean."""

    def __init__(self, points: int) -> None:
        """Create an empty series of at most `points` points; `points` must be even."""
        self._max_points, self._size = points, 1
        self._points: list[float] = []
        self._sum, self._count = 0.0, 0

    def add(self, value: float) -> None:
        """Add a number."""
        self._sum += value
        self._count += 1
        if self._count < self._size:
            return
        self._points.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self._points) == self._max_points:
            self._points = [(a + b) / 2 for a, b in zip(self._points[::2], self._points[1::2], strict=True)]
            self._size *= 2

    def points(self) -> tuple[float, ...]:
        """Return the points, oldest first; each is the mean of the same number of values."""
        return tuple(self._points)


WINDOW = 10.0  # length in seconds of the window that current rates are averaged over
_POINTS = 64
_VERSIONS = 32


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The metrics of a run at one moment."""

    seconds: float = 0.0
    """Seconds since the run started in this process."""
    total: int | None = None
    """Number of episodes of the run; None: not known."""
    done: int = 0
    """Episodes that ended, including those restored from a previous run."""
    restored: int = 0
    """The part of `done` that was restored from a previous run."""
    live: int = 0
    waiting: int | None = None
    """Episodes that have not started; None: not known."""
    eta: float | None = None
    """Estimated seconds until the run ends; None: no estimate yet."""
    turns: int = 0
    """Engine calls recorded in this process."""
    sampled_tokens: int = 0
    turns_per_second: float = 0.0
    tokens_per_second: float = 0.0
    tokens_per_second_overall: float = 0.0
    cache_hit_rate: float | None = None
    """Fraction of prompt tokens served from the engine's prefix cache, 0 to 1; None: the engine did not report it."""
    rewards: int = 0
    reward_mean: float | None = None
    """Mean of all rewards; None if there is no reward."""
    reward_history: tuple[float, ...] = ()
    """Means over the same number of rewards each, oldest first; at most 64 points for the whole run."""
    reward_errors: int = 0
    end_reasons: dict[EndReason, int] = field(default_factory=dict)
    failures: int = 0
    """Episodes that failed (`EndReason.failed`)."""
    unreachable_seconds: float = 0.0
    """Seconds for which the engine has been unreachable; 0: it is reachable."""
    latest_error: str = ""
    """The latest failure or reward error, with the episode's id; "": there was none."""
    tool_calls: int = 0
    """Tool calls, including those answered from the record."""
    tool_errors: int = 0
    """Tool calls with an error as their result, including timeouts."""
    tool_timeouts: int = 0
    audits: int = 0
    """Conversations that were compared with one rendering of the chat template."""
    audit_differences: int = 0
    """Audited conversations that differed from the rendering where the template was proved."""
    groups_kept: int = 0
    groups_dropped: int = 0
    groups_stale: int = 0
    """Groups that were not trained because a token was too old; part of `groups_dropped`."""
    filter_errors: int = 0
    versions: dict[str | None, int] = field(default_factory=dict)
    """Episodes by weight version of their tokens (None: not reported), oldest first, the newest 32 versions."""

    @property
    def newest_version(self) -> str | None:
        """The weight version that appeared last; None if the engine reported none."""
        return next((version for version in reversed(list(self.versions)) if version is not None), None)

    def to_dict(self, prefix: str = "rollout/") -> dict[str, float]:
        """Return the numbers under flat names, for an experiment tracker; unknown numbers are left out."""
        flat: dict[str, float] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, (int, float)):
                flat[prefix + one.name] = value
        flat.update({f"{prefix}end_reason/{reason.value}": count for reason, count in self.end_reasons.items()})
        flat[f"{prefix}weight_versions"] = len(self.versions)
        return flat


class RunCounters:
    """Counts episodes, turns, tokens and rewards of a run."""

    def __init__(self, total: int | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start counting; `total` None: the number of episodes is not known (it may be set later)."""
        self.total = total
        self.unreachable: Callable[[], float] = lambda: 0.0
        """Returns the seconds for which the engine has been unreachable; 0: it is reachable."""
        self._clock = clock
        self._start = clock()
        self._live: dict[str, float] = {}
        self._counts: Counter[str] = Counter()  # by the name of their field in `RunMetrics`
        self._prompt = self._cached = 0  # tokens of the calls for which the engine reported its cache
        self._duration_sum, self._longest, self._timed, self._start_sum = 0.0, 0.0, 0, 0.0
        self._recent: deque[list[float]] = deque()  # [second, tokens, turns]
        self._reward_sum = 0.0
        self._history = RollingSeries(_POINTS)
        self._ended: Counter[EndReason] = Counter()
        self._latest_error = ""
        self._versions: dict[str | None, int] = {}

    def began(self, episode: str) -> None:
        """Count an episode that started or was restarted."""
        self._remove_live(episode)
        self._live[episode] = self._clock()
        self._start_sum += self._live[episode]

    def turn(self, sampled: int, cached: int | None, prompt: int) -> None:
        """Count an engine call; `cached` None: the engine did not report it."""
        self._counts["turns"] += 1
        self._counts["sampled_tokens"] += sampled
        if cached is not None:
            self._cached += cached
            self._prompt += prompt
        second = float(int(self._clock()))
        if not self._recent or self._recent[-1][0] != second:
            self._recent.append([second, 0, 0])
            self._drop_old(second)
        self._recent[-1][1] += sampled
        self._recent[-1][2] += 1

    def finished(self, episode: Episode, *, restored: bool = False) -> None:
        """Count an episode that ended; `restored`: in a previous run, so that its duration is not counted."""
        began = self._remove_live(episode.id)
        if began is not None and not restored and episode.end_reason is not EndReason.NOT_NEEDED:
            lasted = self._clock() - began
            self._duration_sum, self._timed = self._duration_sum + lasted, self._timed + 1
            self._longest = max(self._longest, lasted)
        self._counts["done"] += 1
        self._counts["restored"] += restored
        self._ended[episode.end_reason] += 1
        used = episode.metrics
        for name in ("tool_calls", "tool_errors", "tool_timeouts", "audits", "audit_differences"):
            self._counts[name] += getattr(used, name)
        for version in used.versions:
            self._versions[version] = self._versions.get(version, 0) + 1
            if len(self._versions) > _VERSIONS:
                del self._versions[next(iter(self._versions))]
        if episode.failure is not None and episode.end_reason.failed:
            self._latest_error = f"{episode.id}: {episode.failure.kind}: {episode.failure.message}"
        if episode.reward_detail.error is not None:
            self._counts["reward_errors"] += 1
            self._latest_error = f"{episode.id}: reward: {episode.reward_detail.error}"
        if episode.reward is not None:
            self._counts["rewards"] += 1
            self._reward_sum += episode.reward
            self._history.add(episode.reward)

    def groups(self, kept: int, dropped: int, filter_errors: int = 0, stale: int = 0) -> None:
        """Set the numbers of complete groups that were kept, dropped, and too old, and how often a filter raised."""
        numbers = {
            **{"groups_kept": kept, "groups_dropped": dropped, "groups_stale": stale},
            "filter_errors": filter_errors,
        }
        for name, number in numbers.items():
            self._counts[name] = number

    def snapshot(self) -> RunMetrics:
        """Return the current metrics."""
        now = self._clock()
        self._drop_old(now)
        seconds = now - self._start
        span = max(min(WINDOW, seconds), 1.0)  # rates over less than a second would be far too high
        counts = self._counts
        waiting = None if self.total is None else max(self.total - counts["done"] - len(self._live), 0)
        return RunMetrics(
            seconds=seconds,
            total=self.total,
            live=len(self._live),
            waiting=waiting,
            eta=self._eta(waiting),
            turns_per_second=sum(bucket[2] for bucket in self._recent) / span,
            tokens_per_second=sum(bucket[1] for bucket in self._recent) / span,
            tokens_per_second_overall=counts["sampled_tokens"] / max(seconds, 1.0),
            cache_hit_rate=self._cached / self._prompt if self._prompt else None,
            reward_mean=self._reward_sum / counts["rewards"] if counts["rewards"] else None,
            reward_history=self._history.points(),
            end_reasons=dict(self._ended.most_common()),
            failures=sum(count for ended, count in self._ended.items() if ended.failed),
            unreachable_seconds=self.unreachable(),
            latest_error=self._latest_error,
            versions=dict(self._versions),
            **counts,
        )

    def _remove_live(self, episode: str) -> float | None:
        """Remove an episode from the running ones; return its start time, None if it was not running."""
        began = self._live.pop(episode, None)
        self._start_sum -= began or 0.0
        return began

    def _drop_old(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - WINDOW:
            self._recent.popleft()

    def _eta(self, waiting: int | None) -> float | None:
        """Return the estimated seconds to the end, for episodes as long as before and as many at a time as now.

        First all waiting episodes must start; then the longest of the last ones must end, and its expected duration
        grows with the logarithm of their number. Unlike the ratio of finished episodes to elapsed time, this is
        accurate from the first episodes, when many are running and few have ended.
        """
        live = len(self._live)
        if waiting == 0 and not live:
            return 0.0
        if waiting is None or not self._timed:
            return None
        now = self._clock()
        # Running episodes count with their time so far; otherwise only short episodes would count at first.
        mean = (self._duration_sum + live * now - self._start_sum) / self._timed
        longest = max(self._longest, now - next(iter(self._live.values()), now), mean)
        weight = math.log(max(live, 1)) / math.log(max(self._timed, live, 2))
        return waiting * mean / max(live, 1) + mean + (longest - mean) * weight
