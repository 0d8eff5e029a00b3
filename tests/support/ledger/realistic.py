"""Episodes as large as real ones, for figures: words by Zipf's law, logprobs as a softmax of 32-bit floats has them."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from support.ledger.episodes import END_OF_TURN, Recorder

_VOCABULARY = 150_000


@dataclass
class Realistic:
    """Records groups of episodes, many at a time, so that their events are mixed as in a run."""

    sink: Callable[[bytes], None]
    """Takes the events."""
    sampled: tuple[int, int] = (100, 500)
    """Fewest and most tokens a turn samples."""
    tool: tuple[int, int] = (60, 240)
    """Fewest and most tokens of a tool's result."""
    system: int = 600
    """Tokens of the system prompt and the tools, the same in all episodes."""
    first: int = 0
    """Number of the first task."""
    tasks: int = 6
    samples: int = 8
    turns: int = 8
    tokens: int = 0
    """Tokens recorded so far."""
    sampled_tokens: int = 0
    """Of these, sampled."""
    events: int = 0
    """Events recorded so far."""
    _rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def record(self) -> None:
        """Record all of them."""
        ranks = np.arange(1, _VOCABULARY + 1) ** -1.05
        self._odds = np.cumsum(ranks / ranks.sum())
        self._ids = self._rng.permutation(_VOCABULARY).astype(np.int32)
        system, order = self._text(self.system), random.Random(1)
        going = []
        for task in range(self.first, self.first + self.tasks):
            question = self._text(80)
            going += [self._episode(f"{task:012x}", sample, system + question) for sample in range(self.samples)]
        while going:
            episode = order.choice(going)
            if next(episode, None) is None:
                going.remove(episode)

    def _episode(self, task: str, sample: int, prompt: list[int]) -> Generator[Any]:
        recorder = Recorder(self._counted, task=task, sample=sample, prompt="What does the 7th of them say? " * 8)
        turn = None
        for number in range(self.turns):
            context = prompt if turn is None else [151644, *self._text(int(self._rng.integers(*self.tool))), 198]
            sampled = [*self._text(int(self._rng.integers(*self.sampled)) - 1), END_OF_TURN]
            rid, latency = self._rng.bytes(16).hex(), round(float(self._rng.random()) * 20_000, 3)
            turn = recorder.call(
                turn,
                context=context,
                sampled=sampled,
                logprobs=self._logprobs(len(sampled)).tolist(),
                versions=[("17", 0, len(sampled))],
                detail={"rid": rid, "latency_ms": latency},
            )
            self.tokens += len(context) + len(sampled)
            self.sampled_tokens += len(sampled)
            yield turn
            if number < self.turns - 1:  # the text of a result is about four bytes a token
                text = self._rng.choice(list("etaoin shrdlu "), size=2 * len(context)).tobytes().decode("utf-32")
                recorder.tool(f"call_{self._rng.bytes(12).hex()}", "search", content=text)
                yield turn
        recorder.reward(float(self._rng.integers(0, 2)))
        recorder.end()

    def _counted(self, event: bytes) -> None:
        self.events += 1
        self.sink(event)

    def _text(self, count: int) -> list[int]:
        ids: list[int] = self._ids[np.searchsorted(self._odds, self._rng.random(count) * self._odds[-1])].tolist()
        return ids

    def _logprobs(self, count: int) -> npt.NDArray[np.float64]:
        """Return the logprob of the likeliest token or another: about 60 % of tokens are as good as certain."""
        rng = self._rng
        doubt = 10 ** rng.uniform(-9, -2, count)
        chance = np.where(rng.random(count) < 0.6, 1 - doubt, rng.beta(1.5, 1.2, count)).clip(1e-6, 1)
        first = chance > 0.4
        total = np.where(first, 1 / chance, rng.uniform(1.2, 4, count)).astype(np.float32)  # of the exponentials
        behind = np.where(first, 0, np.round((-np.log(chance)).clip(0, 20) * 8) / 8).astype(np.float32)
        return (-behind - np.log(total)).astype(np.float64)
