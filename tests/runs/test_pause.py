"""Episodes that are paused, also in the middle of a turn, and resumed later with the same result."""

from __future__ import annotations

import asyncio
import pickle
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.engine import AbortPolicy, FinishReason, Generation
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.record import PortableRecord
from strands_sglang.ledger.run_dir import write_run
from strands_sglang.ledger.seal import seal
from strands_sglang.runs import EndReason, Limits, Task
from strands_sglang.runs.episode import Episode
from strands_sglang.runs.workers.local import LocalWorker
from strands_sglang.runs.workers.process_tuning import tool_threads
from strands_sglang.runs.workers.spec import EpisodeSpec, RunSpec
from strands_sglang.tokens import VersionSpan
from support.rollout.agent_kinds import KINDS, Kind, plain
from support.rollout.scripts import RAN, PromptEngine, assert_proved, record_of, run, steps, summary

TASK = Task("go", id="t")


class InterruptingEngine:
    """Returns the answers of another engine, but can interrupt one in the middle; a later request continues it."""

    def __init__(self, inner: PromptEngine, when: Callable[[int], int | None]) -> None:
        self.inner, self.when = inner, when
        self.pause = threading.Event()
        self.version = 0
        self.requests = 0
        self.late = 0
        self.tokens: Counter[str] = Counter()
        self.whole: list[tuple[list[int], Generation, int]] = []

    async def generate(self, input_ids: Any, sampling_params: Any = None, **asked: Any) -> Generation:
        self.late += self.pause.is_set()
        number, self.requests = self.requests, self.requests + 1
        ids, sampling = [int(token) for token in input_ids], dict(sampling_params)
        asked["on_abort"] = AbortPolicy.CONTINUE
        for place, (prompt, whole, done) in enumerate(self.whole):
            if ids == prompt + list(whole.token_ids[:done]):
                del self.whole[place]
                break
        else:
            whole, done = await self.inner.generate(ids, sampling, **asked), 0
            prompt = ids
        cut = self.when(number)
        end = len(whole) if cut is None else min(len(whole), done + cut)
        if cut is not None:
            self.pause.set()
        if end < len(whole):
            self.whole.append((prompt, whole, end))
        self.tokens[f"v{self.version}"] += end - done
        await asyncio.sleep(0)
        return replace(
            whole,
            token_ids=whole.token_ids[done:end],
            logprobs=whole.logprobs[done:end],
            finish_reason=whole.finish_reason if end == len(whole) else FinishReason.ABORT,
            versions=(VersionSpan(f"v{self.version}", 0, end - done),) if end > done else (),
            prompt_tokens=len(ids),
        )


async def run_to_end(
    engine: InterruptingEngine, kind: Kind, folder: Path | None, **settings: Any
) -> tuple[Episode, int]:
    """Run an episode and resume it whenever it was paused; return it and the number of pauses."""
    options = dict(kind.options)
    limits = options.pop("limits", Limits())
    run_spec = RunSpec(kind.build, None, engine.inner.tokenizer, engine, limits, options, folder, "run", pausable=True)
    worker, spec, times = LocalWorker(replace(run_spec, **settings)), EpisodeSpec(TASK, 0), 0
    if folder is not None:
        run_data = {"run": "run", "fingerprint": worker.fingerprint, "samples_per_task": 1}
        write_run(folder, run_data)
    try:
        with tool_threads(64):
            while True:
                work = asyncio.ensure_future(worker.run(spec, pause=engine.pause))
                while not work.done():
                    await asyncio.wait({work}, timeout=0.005)
                    if engine.pause.is_set():
                        worker.pause(spec.id, 5)
                episode = work.result()
                if episode.end_reason is not EndReason.PAUSED:
                    return episode, times
                assert episode.record is not None and episode.record.epoch == times
                engine.pause.clear()
                engine.version += 1
                spec, times = (
                    EpisodeSpec(TASK, 0, record=pickle.loads(pickle.dumps(PortableRecord(episode.record))).record),
                    times + 1,
                )
                assert times < 100
    finally:
        await worker.close()
        if folder is not None:
            seal(folder)


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_episode_paused_at_any_call(kind: Kind, tmp_path: Path) -> None:
    ordered = kind.name not in ("helpers", "graph")
    whole = (await run(kind.build, [TASK], kind.engine(), tmp_path / "whole", **kind.options))[0]
    requests = len(record_of(tmp_path / "whole").calls)
    for number in range(requests):
        folder = tmp_path / f"{number}"
        cut = 1 if number % 3 else 0
        engine = InterruptingEngine(kind.engine(), {number: cut}.get)
        episode, times = await run_to_end(engine, kind, folder)
        assert times <= 1 and engine.late == 0  # a call that fails is not interrupted
        # A turn with a grammar starts over: the same tokens, sampled a second time.
        again = kind.name == "structured"
        assert turns_of(episode, ordered, again) == turns_of(whole, ordered, again), number
        assert (episode.end_reason, episode.text) == (whole.end_reason, whole.text)
        assert_proved(folder)
        kinds = [event.kind for event in record_of(folder).events]
        assert kinds.count(EventKind.RESUME) == times and EventKind.ROLLBACK not in kinds


def turns_of(episode: Episode, ordered: bool = True, again: bool = False) -> Any:
    """Return every turn of an episode, whatever versions sampled it; `again`: without logprobs."""
    turns = [
        (list(turn.context), list(turn.sampled), [] if again else list(turn.logprobs)) for turn in episode.tree.turns
    ]
    return turns if ordered else sorted(turns)


@pytest.mark.parametrize("seed", range(8))
async def test_episode_paused_many_times_in_the_middle_of_turns(seed: int, tmp_path: Path) -> None:
    """It is paused after every few tokens: each turn consists of many parts, each with its own version."""
    rng = random.Random(seed)
    kind = Kind("steps", lambda task, model: plain(model), steps(3, end="this is the end of it, at last"))
    whole = (await run(kind.build, [TASK], kind.engine(), tmp_path / "whole"))[0]
    engine = InterruptingEngine(kind.engine(), lambda at: rng.choice([1, 2, 3, 5]) if rng.random() < 0.8 else None)
    episode, times = await run_to_end(engine, kind, tmp_path / "cut")
    assert times > 5 and engine.late == 0
    assert turns_of(episode) == turns_of(whole)
    spans = [span.version for turn in episode.tree.turns for span in turn.versions]
    assert len(set(spans)) > 3 and spans == sorted(spans, key=lambda name: int(str(name)[1:]))
    assert_proved(tmp_path / "cut")
    # The number of tokens sampled before the last resume is exact.
    last = f"v{engine.version}"
    for turn in episode.tree.turns:
        now = sum(span.end - span.start for span in turn.versions if span.version == last)
        assert episode.earlier[turn.id] == len(turn.sampled) - now
    # The result is the same without a ledger.
    rng.seed(seed)
    again = InterruptingEngine(kind.engine(), lambda at: rng.choice([1, 2, 3, 5]) if rng.random() < 0.8 else None)
    elsewhere, _ = await run_to_end(again, kind, None)
    assert summary(elsewhere.tree) == summary(episode.tree)


async def test_running_tool_is_run_again(tmp_path: Path) -> None:
    """A running tool is cancelled; its result is not recorded, so it is run again; other tools are not."""
    kind = next(one for one in KINDS if one.name == "tools")
    engine = InterruptingEngine(kind.engine(), lambda at: None)
    RAN.taken()
    work = asyncio.ensure_future(run_to_end(engine, kind, tmp_path))
    while not engine.requests:
        await asyncio.sleep(0)
    engine.pause.set()
    episode, times = await work
    assert times == 1 and episode.end_reason is EndReason.ANSWERED
    assert max(RAN.taken().values()) == 1


async def test_turn_that_cannot_be_continued_starts_over(tmp_path: Path) -> None:
    """With a stop string the engine's state is lost: the sampled tokens are discarded, and counted."""
    kind = Kind("steps", lambda task, model: plain(model), steps(2))
    kind.options["sampling_params"] = {"stop": ["never sampled"], "max_new_tokens": 100}
    engine = InterruptingEngine(kind.engine(), lambda at: 3 if at == 1 else None)
    engine.inner.given = _Forgetful()
    episode, times = await run_to_end(engine, kind, tmp_path)
    assert times == 1 and episode.end_reason is EndReason.ANSWERED
    assert EventKind.PARTIAL_CALL not in [event.kind for event in record_of(tmp_path).events]
    assert_proved(tmp_path)


class _Forgetful(dict[str, set[int]]):
    def setdefault(self, key: str, default: Any = None) -> set[int]:
        return set()


async def test_turn_aborted_by_the_engine_continues_at_once(tmp_path: Path) -> None:
    """A weight update aborts the running request, but the episode is not paused: the turn continues at once."""
    kind = Kind("steps", lambda task, model: plain(model), steps(2))
    engine = InterruptingEngine(kind.engine(), lambda at: 2 if at in (0, 1, 3) else None)
    engine.pause = _Never()
    episode, times = await run_to_end(engine, kind, tmp_path)
    whole = (await run(kind.build, [TASK], kind.engine(), tmp_path / "whole"))[0]
    assert times == 0 and turns_of(episode) == turns_of(whole)
    assert [turn.detail.get("continuations", 0) for turn in episode.tree.turns] == [2, 1, 0]


class _Never(threading.Event):
    def is_set(self) -> bool:
        return False


async def test_token_limit_applies_to_all_parts_together() -> None:
    kind = Kind("steps", lambda task, model: plain(model), steps(1, end="one two three four five six seven eight"))
    kind.options["limits"] = Limits(max_new_tokens=6)
    engine = InterruptingEngine(kind.engine(), lambda at: 2)
    episode, times = await run_to_end(engine, kind, None)
    assert times >= 2 and episode.end_reason is EndReason.TURN_TRUNCATED
    assert max(len(turn.sampled) for turn in episode.tree.turns) == 6


async def test_changed_bytes_are_rejected() -> None:
    kind = Kind("steps", lambda task, model: plain(model), steps(1))
    engine = InterruptingEngine(kind.engine(), lambda at: 1)
    run_spec = RunSpec(kind.build, None, engine.inner.tokenizer, engine, Limits(), pausable=True)
    worker = LocalWorker(run_spec)
    work = asyncio.ensure_future(worker.run(EpisodeSpec(TASK, 0), pause=engine.pause))
    while not engine.pause.is_set():
        await asyncio.sleep(0.001)
    assert worker.pause("t/0") and not worker.pause("t/1")
    episode = await work
    await worker.close()
    assert episode.record is not None
    data = PortableRecord(episode.record).to_bytes()
    assert PortableRecord.from_bytes(data).record.events == episode.record.events
    for wrong in (b"", b"x" + data, data[:-3], data + b"!", b"sgep2"):
        with pytest.raises(LedgerError):
            PortableRecord.from_bytes(wrong)
    event = episode.record.events[-1]
    assert event.kind is EventKind.PARTIAL_CALL
    event.arrays["sampled"][0] += 1
    from strands_sglang.ledger.encoding import encoded

    forged = PortableRecord(episode.record).to_bytes()  # recomputed digests are not detected here, but by the seal
    assert PortableRecord.from_bytes(forged).record.events[-1].digest == event.digest and encoded(event, b"")
