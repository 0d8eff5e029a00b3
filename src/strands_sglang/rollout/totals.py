"""The running numbers of a run: `Totals` counts, `RunMetrics` is what it has counted so far.

Invariant: counting costs the same at the first episode and at the millionth, and keeps nothing of an episode that
ended but numbers. It is used by one thread.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields

from strands_sglang.rollout.ended import Ended
from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.figures import History

WINDOW = 10.0
"""Seconds that "now" is an average over."""
_POINTS = 64
"""Points kept of the reward's history."""
_VERSIONS = 32
"""Weight versions kept, the newest."""


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The numbers of a run at one moment."""

    seconds: float = 0.0
    """Since it began, in this process."""
    total: int | None = None
    """Episodes it is about; None: not known."""
    done: int = 0
    """Episodes that ended, those of an earlier process included."""
    restored: int = 0
    """Of these, read back from an earlier process."""
    live: int = 0
    """Episodes under way."""
    waiting: int | None = None
    """Episodes that have not begun; None: not known."""
    eta: float | None = None
    """Seconds to the end, as it looks now; None: nobody can tell yet."""
    turns: int = 0
    """Engine calls recorded in this process."""
    sampled_tokens: int = 0
    """Tokens they sampled."""
    turns_per_second: float = 0.0
    """Over the last 10 seconds."""
    tokens_per_second: float = 0.0
    """Sampled, over the last 10 seconds."""
    tokens_per_second_overall: float = 0.0
    """Sampled, since the beginning."""
    cache_hit_rate: float | None = None
    """Part of the prompt tokens that came from the engine's cache; None: the engine did not tell."""
    rewards: int = 0
    """Episodes with a reward."""
    reward_mean: float | None = None
    """Their mean; None: there is none."""
    reward_history: tuple[float, ...] = ()
    """Means of equally many rewards each, oldest first: at most 64 points over the whole run."""
    reward_errors: int = 0
    """Episodes whose reward could not be had."""
    ended: dict[Ended, int] = field(default_factory=dict)
    """Episodes by why they ended; most frequent first."""
    failures: int = 0
    """Of these, where something broke."""
    unreachable_seconds: float = 0.0
    """Since when the engine cannot be reached; 0: it can."""
    latest_trouble: str = ""
    """The last failure, or error of a reward, with the episode's id; "": there was none."""
    tool_calls: int = 0
    """Tools that were run."""
    tool_errors: int = 0
    """Of these, with an error as their result; timeouts included."""
    tool_timeouts: int = 0
    """Of these, that took too long."""
    audits: int = 0
    """Conversations that were held against one rendering of the chat template."""
    audit_differences: int = 0
    """Of these, that were another text in a place that was called proved."""
    groups_kept: int = 0
    """Complete groups that were kept."""
    groups_dropped: int = 0
    """Complete groups that a filter dropped."""
    filter_errors: int = 0
    """How often a filter raised."""
    versions: dict[str | None, int] = field(default_factory=dict)
    """Episodes by weight version their tokens were sampled with, oldest first, the newest 32; None: not told."""

    def to_dict(self, prefix: str = "rollout/") -> dict[str, float]:
        """Return its numbers under flat names, as trackers want them; what is not known is left out."""
        flat: dict[str, float] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, (int, float)):
                flat[prefix + one.name] = value
        flat.update({f"{prefix}ended/{ended.value}": count for ended, count in self.ended.items()})
        flat[f"{prefix}weight_versions"] = len(self.versions)
        return flat


class Totals:
    """Counts what happens in a run."""

    def __init__(self, total: int | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to count.

        Args:
            total: Episodes the run is about; None: not known (yet: `total` may be set).
            clock: Seconds from anywhere.
        """
        self.total = total
        """Episodes the run is about; None: not known."""
        self.filter_errors = 0
        """How often a filter raised."""
        self.unreachable: Callable[[], float] = lambda: 0.0
        """Says for how many seconds the engine cannot be reached; 0: it can."""
        self._clock = clock
        self._start = clock()
        self._live: dict[str, float] = {}
        self._done = self._restored = self._turns = self._tokens = self._prompt = self._cached = 0
        self._cache_told = False
        self._lasted, self._longest, self._timed, self._begun = 0.0, 0.0, 0, 0.0
        self._recent: deque[list[float]] = deque()  # [second, tokens, turns]
        self._rewards, self._reward_sum, self._reward_errors = 0, 0.0, 0
        self._history = History(_POINTS)
        self._ended: Counter[Ended] = Counter()
        self._trouble = ""
        self._tools = [0, 0, 0, 0, 0]
        self._groups = {True: 0, False: 0}
        self._versions: dict[str | None, int] = {}

    def began(self, episode: str) -> None:
        """Count an episode that began, or began again."""
        self._left(episode)
        self._live[episode] = self._clock()
        self._begun += self._live[episode]

    def turn(self, sampled: int, cached: int | None, prompt: int) -> None:
        """Count an engine call.

        Args:
            sampled: Tokens it sampled.
            cached: Tokens of its prompt that came from the engine's cache; None: the engine did not tell.
            prompt: Tokens of its prompt.
        """
        self._turns += 1
        self._tokens += sampled
        if cached is not None:
            self._cache_told = True
            self._cached += cached
            self._prompt += prompt
        second = float(int(self._clock()))
        if not self._recent or self._recent[-1][0] != second:
            self._recent.append([second, 0, 0])
            self._forget(second)
        self._recent[-1][1] += sampled
        self._recent[-1][2] += 1

    def finished(self, episode: Episode, *, restored: bool = False) -> None:
        """Count an episode that ended; `restored`: in an earlier process, so it says nothing about speed."""
        began = self._left(episode.id)
        if began is not None and not restored and episode.ended is not Ended.CUT_SHORT:
            lasted = self._clock() - began
            self._lasted, self._timed = self._lasted + lasted, self._timed + 1
            self._longest = max(self._longest, lasted)
        self._done += 1
        self._restored += restored
        self._ended[episode.ended] += 1
        used = episode.metrics
        counts = (used.tool_calls, used.tool_errors, used.tool_timeouts, used.audits, used.audit_differences)
        for place, count in enumerate(counts):
            self._tools[place] += count
        for version in used.versions:
            self._versions[version] = self._versions.get(version, 0) + 1
            if len(self._versions) > _VERSIONS:
                del self._versions[next(iter(self._versions))]
        if episode.failure is not None and episode.ended.failed:
            self._trouble = f"{episode.id}: {episode.failure.kind}: {episode.failure.message}"
        if episode.score.error is not None:
            self._reward_errors += 1
            self._trouble = f"{episode.id}: reward: {episode.score.error}"
        if episode.reward is not None:
            self._rewards += 1
            self._reward_sum += episode.reward
            self._history.add(episode.reward)

    def groups(self, kept: int, dropped: int) -> None:
        """Set how many complete groups were kept, and how many were not."""
        self._groups[True], self._groups[False] = kept, dropped

    def snapshot(self) -> RunMetrics:
        """Return the numbers as they are now."""
        now = self._clock()
        self._forget(now)
        seconds = now - self._start
        span = max(min(WINDOW, seconds), 1.0)  # the first second would promise too much
        waiting = None if self.total is None else max(self.total - self._done - len(self._live), 0)
        return RunMetrics(
            seconds=seconds,
            total=self.total,
            done=self._done,
            restored=self._restored,
            live=len(self._live),
            waiting=waiting,
            eta=self._eta(waiting),
            turns=self._turns,
            sampled_tokens=self._tokens,
            turns_per_second=sum(bucket[2] for bucket in self._recent) / span,
            tokens_per_second=sum(bucket[1] for bucket in self._recent) / span,
            tokens_per_second_overall=self._tokens / max(seconds, 1.0),
            cache_hit_rate=self._cached / self._prompt if self._cache_told and self._prompt else None,
            rewards=self._rewards,
            reward_mean=self._reward_sum / self._rewards if self._rewards else None,
            reward_history=self._history.points(),
            reward_errors=self._reward_errors,
            ended=dict(self._ended.most_common()),
            failures=sum(count for ended, count in self._ended.items() if ended.failed),
            unreachable_seconds=self.unreachable(),
            latest_trouble=self._trouble,
            tool_calls=self._tools[0],
            tool_errors=self._tools[1],
            tool_timeouts=self._tools[2],
            audits=self._tools[3],
            audit_differences=self._tools[4],
            groups_kept=self._groups[True],
            groups_dropped=self._groups[False],
            filter_errors=self.filter_errors,
            versions=dict(self._versions),
        )

    def _left(self, episode: str) -> float | None:
        """Take an episode out of those under way; return when it began."""
        began = self._live.pop(episode, None)
        self._begun -= began or 0.0
        return began

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - WINDOW:
            self._recent.popleft()

    def _eta(self, waiting: int | None) -> float | None:
        """Return how long it takes when episodes last as long as they did and as many run at a time as now.

        First those that wait have to begin, then the longest of the last ones has to end, which grows with the
        logarithm of their number. Unlike the number done so far by the time it took, this is right from the first
        episodes on, when many are under way and few have ended.
        """
        live = len(self._live)
        if waiting == 0 and not live:
            return 0.0
        if waiting is None or not self._timed:
            return None
        now = self._clock()
        # Episodes that have not ended count with the time they have had: else only short ones would be seen at first.
        mean = (self._lasted + live * now - self._begun) / self._timed
        longest = max(self._longest, now - next(iter(self._live.values()), now), mean)
        among = math.log(max(live, 1)) / math.log(max(self._timed, live, 2))
        return waiting * mean / max(live, 1) + mean + (longest - mean) * among
