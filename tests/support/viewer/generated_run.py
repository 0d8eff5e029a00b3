"""Large runs for the viewer, written in seconds: thousands of episodes, or one episode of very many tokens.

Token ids are drawn from pieces of real text where a tokenizer is given. Every episode is a valid record: `verify`
proves the run.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from strands_sglang.ledger.encoding import HashChain, ids_digest, trajectory_summary
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.run_dir import write_run
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.tokens import Join, TokenTree, VersionSpan

RUN = "7c" * 16
ENDS = ("answered", "answered", "answered", "answered", "turn_limit", "token_limit", "failed_call", "engine_error")


class EpisodeGenerator:
    """Writes generated episodes of a run."""

    def __init__(
        self,
        directory: Path,
        *,
        pool: Sequence[int] | None = None,
        seed: int = 0,
        samples: int = 8,
        parts: Sequence[str] = (),
    ) -> None:
        """Create the run; `parts`: names of the parts of each reward."""
        self.samples, self.parts = samples, parts
        self.rng = random.Random(seed)
        self.directory = directory
        if not (directory / "run.json").exists():
            write_run(
                directory, {"run": RUN, "samples_per_task": samples, "fingerprint": {"template": "t", "parser": "p"}}
            )
        self.writer = LedgerWriter(directory)
        ids = list(pool) if pool is not None else [self.rng.randrange(150_000) for _ in range(60_000)]
        self.pool = array("i", ids * (1 + 120_000 // len(ids)))
        noise = np.random.default_rng(seed).exponential(0.4, len(self.pool)).astype(np.float32)
        self.logprobs = array("d", (-noise.astype(np.float64)).tolist())
        self.clock = time.time() - 36_000

    def _cut(self, count: int) -> array[int]:
        start = self.rng.randrange(len(self.pool) - count)
        return self.pool[start : start + count]

    def write(self, number: int, *, tokens: int = 5000, turns: int = 4, finish: bool = True) -> str:
        """Write one episode of about so many tokens; return its id."""
        for _ in self.turns(number, tokens=tokens, turns=turns, finish=finish):
            pass
        return self.id_of(number)

    def id_of(self, number: int) -> str:
        return f"task-{number // self.samples:05d}/{number % self.samples}"

    def turns(self, number: int, *, tokens: int = 5000, turns: int = 4, finish: bool = True) -> Iterator[int]:
        """Write one episode turn by turn; yields the number of each turn after it was written."""
        id = self.id_of(number)
        task, _, sample = id.rpartition("/")
        chain = HashChain(self.writer.write, id)
        prompt = f"Generated question {number}: what is {number} * 17?"
        begin: dict[str, Any] = {
            "task": {"prompt": prompt, "answer": number * 17, "data": {}, "id": task},
            "sample": int(sample),
            "run": RUN,
            "fingerprint": {"template": "t", "parser": "p"},
        }
        chain.append(EventKind.BEGIN, begin)
        tree, parent, version = TokenTree(id), None, str(10 + number * 20 // 10_000)
        sizes = max(8, tokens // turns)
        for turn in range(turns):
            join = Join.ROOT if parent is None else Join.PROVED
            prepared = tree.prepare(parent, context=self._cut(sizes // 2), join=join)
            count = sizes - sizes // 2
            detail = {
                "rid": f"{id}-{turn}",
                "cached_tokens": 0 if parent is None else parent.end,
                "latency_ms": 40 + turn,
            }
            parent = tree.commit(
                prepared,
                self._cut(count),
                self.logprobs[:count],
                [VersionSpan(version, 0, count)],
                finish_reason="stop",
                detail=detail,
            )
            data: dict[str, Any] = {
                "turn": parent.id, "parent": parent.parent, "start": parent.start, "finish_reason": "stop",
                "finish_detail": None, "purpose": "episode", "join": join.value, "forked_from": None, "caller": None,
                "versions": [[version, 0, count]], "detail": detail, "prompt_digest": ids_digest(prepared.ids),
                "prompt_tokens": len(prepared.ids), "within": [], "requests": 1,
            }  # fmt: skip
            arrays = {"closing": parent.closing, "context": parent.context, "sampled": parent.sampled}
            chain.append(EventKind.CALL, data, {**arrays, "logprobs": parent.logprobs})
            yield turn
        if finish:
            self._finish(id, chain, tree, begin, number)

    def _finish(self, id: str, chain: HashChain, tree: TokenTree, begin: dict[str, Any], number: int) -> None:
        rng, turns = self.rng, tree.turns
        value = round(rng.betavariate(1 + number / 4000, 2), 3)
        parts = {name: round(rng.random(), 3) for name in self.parts}
        reward = {"value": value, "parts": parts, "steps": [], "error": None}
        chain.append(EventKind.REWARD, reward)
        self.clock += 3.0
        ended = rng.choice(ENDS)
        metrics = {
            "turns": len(turns),
            "branches": 1,
            "tokens": sum(map(len, turns)),
            "sampled_tokens": sum(len(turn.sampled) for turn in turns),
            "prompt_tokens": sum(turn.sampled_start for turn in turns),
            "cached_tokens": sum(turn.detail["cached_tokens"] for turn in turns),
            "versions": list(dict.fromkeys(span.version for turn in turns for span in turn.versions)),
            "seconds": 0.1 + rng.expovariate(0.2),
        }
        failure = {"kind": "EngineUnavailableError", "message": "the engine is away", "where": ""}
        end: dict[str, Any] = {
            "end_reason": ended,
            "time": self.clock,
            "failure": failure if ended == "engine_error" else None,
            "metrics": metrics,
            "text": f"The answer of {id} is {number * 17}.",
            "rejected": [],
            "trajectories": [trajectory_summary(trajectory) for trajectory in tree.trajectories()],
        }
        chain.append(EventKind.END, end)

    def close(self) -> None:
        self.writer.close()


def write_generated_run(
    directory: Path,
    episodes: int = 10_000,
    *,
    tokens: int = 5000,
    pool: Sequence[int] | None = None,
) -> Path:
    """Write a run: by default 10,000 episodes and 50 million tokens."""
    generator = EpisodeGenerator(directory, pool=pool)
    for number in range(episodes):
        generator.write(number, tokens=tokens)
    generator.close()
    return directory
