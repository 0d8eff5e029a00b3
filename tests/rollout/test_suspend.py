"""Episodes that are set aside, in the middle of a turn too, and go on later as if nothing had been."""

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

from rollout.kinds import KINDS, Kind, plain
from rollout.scripts import RAN, PromptEngine, assert_proved, record_of, run, steps, summary
from strands_sglang import SGLangModel
from strands_sglang.engine import AbortPolicy, FinishReason, Generation
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.carried import carried, carry
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.run_file import write_run
from strands_sglang.ledger.seal import seal
from strands_sglang.rollout import Ended, Limits, Task
from strands_sglang.rollout.episode import Episode
from strands_sglang.rollout.job import Job, Setup, fingerprint
from strands_sglang.rollout.local import LocalWorker
from strands_sglang.rollout.threads import tool_threads
from strands_sglang.tokens import VersionSpan

TASK = Task("go", id="t")


class CuttingEngine:
    """Gives the answers of another engine, but may be told to stop in the middle of one; then it goes on from there."""

    def __init__(self, inner: PromptEngine, when: Callable[[int], int | None]) -> None:
        self.inner, self.when = inner, when
        self.halt = threading.Event()
        self.version = 0
        self.requests = 0
        self.late = 0
        self.tokens: Counter[str] = Counter()
        self.whole: list[tuple[list[int], Generation, int]] = []

    async def generate(self, input_ids: Any, sampling_params: Any = None, **asked: Any) -> Generation:
        self.late += self.halt.is_set()
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
            self.halt.set()
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


async def to_its_end(engine: CuttingEngine, kind: Kind, folder: Path | None, **settings: Any) -> tuple[Episode, int]:
    """Run an episode, and go on with it whenever it was set aside; return it, and how often it was."""
    options = dict(kind.options)
    limits = options.pop("limits", Limits())
    setup = Setup(kind.build, None, engine.inner.tokenizer, engine, limits, options, folder, "run", suspendable=True)
    worker, job, times = LocalWorker(replace(setup, **settings)), Job(TASK, 0), 0
    if folder is not None:
        about = {"run": "run", "fingerprint": fingerprint(worker.model), "samples_per_task": 1}
        write_run(folder, about)
    try:
        with tool_threads(64):
            while True:
                work = asyncio.ensure_future(worker.run(job, halt=engine.halt))
                while not work.done():
                    await asyncio.wait({work}, timeout=0.005)
                    if engine.halt.is_set():
                        worker.suspend(job.id, 5)
                episode = work.result()
                if episode.ended is not Ended.SUSPENDED:
                    return episode, times
                assert episode.record is not None and episode.record.epoch == times
                engine.halt.clear()
                engine.version += 1
                job, times = Job(TASK, 0, record=carried(pickle.loads(pickle.dumps(carry(episode.record))))), times + 1
                assert times < 100
    finally:
        await worker.close()
        if folder is not None:
            seal(folder)


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_an_episode_that_is_set_aside_at_any_call(kind: Kind, tmp_path: Path) -> None:
    ordered = kind.name not in ("helpers", "graph")
    whole = (await run(kind.build, [TASK], kind.engine(), tmp_path / "whole", **kind.options))[0]
    requests = len(record_of(tmp_path / "whole").calls)
    for number in range(requests):
        folder = tmp_path / f"{number}"
        cut = 1 if number % 3 else 0
        engine = CuttingEngine(kind.engine(), {number: cut}.get)
        episode, times = await to_its_end(engine, kind, folder)
        assert times <= 1 and engine.late == 0  # a call that fails is not cut
        # A turn under a grammar starts over: the same words, but sampled a second time.
        again = kind.name == "structured"
        assert said(episode, ordered, again) == said(whole, ordered, again), number
        assert (episode.ended, episode.text) == (whole.ended, whole.text)
        assert_proved(folder)
        kinds = [event.kind for event in record_of(folder).events]
        assert kinds.count(EventKind.RESUME) == times and EventKind.CUT not in kinds


def said(episode: Episode, ordered: bool = True, again: bool = False) -> Any:
    """Return every turn of an episode, whatever versions sampled it; `again`: without logprobs."""
    turns = [
        (list(turn.context), list(turn.sampled), [] if again else list(turn.logprobs)) for turn in episode.tree.turns
    ]
    return turns if ordered else sorted(turns)


@pytest.mark.parametrize("seed", range(8))
async def test_set_aside_again_and_again_in_the_middle_of_turns(seed: int, tmp_path: Path) -> None:
    """After every token or two it is set aside: each turn is put together from many parts, each of its own version."""
    dice = random.Random(seed)
    kind = Kind("steps", lambda task, model: plain(model), steps(3, end="this is the end of it, at last"))
    whole = (await run(kind.build, [TASK], kind.engine(), tmp_path / "whole"))[0]
    engine = CuttingEngine(kind.engine(), lambda at: dice.choice([1, 2, 3, 5]) if dice.random() < 0.8 else None)
    episode, times = await to_its_end(engine, kind, tmp_path / "cut")
    assert times > 5 and engine.late == 0
    assert said(episode) == said(whole)
    spans = [span.version for turn in episode.tree.turns for span in turn.versions]
    assert len(set(spans)) > 3 and spans == sorted(spans, key=lambda name: int(str(name)[1:]))
    assert_proved(tmp_path / "cut")
    # What was sampled before it was last taken up is known, to the token.
    last = f"v{engine.version}"
    for turn in episode.tree.turns:
        now = sum(span.end - span.start for span in turn.versions if span.version == last)
        assert episode.earlier[turn.id] == len(turn.sampled) - now
    # Without a ledger it is all the same.
    dice.seed(seed)
    again = CuttingEngine(kind.engine(), lambda at: dice.choice([1, 2, 3, 5]) if dice.random() < 0.8 else None)
    elsewhere, _ = await to_its_end(again, kind, None)
    assert summary(elsewhere.tree) == summary(episode.tree)


async def test_a_tool_that_runs_is_run_again(tmp_path: Path) -> None:
    """A tool under way is cancelled; its result was on no record, so it is run once more; the others are not."""
    kind = next(one for one in KINDS if one.name == "tools")
    engine = CuttingEngine(kind.engine(), lambda at: None)
    RAN.taken()
    work = asyncio.ensure_future(to_its_end(engine, kind, tmp_path))
    while not engine.requests:
        await asyncio.sleep(0)
    engine.halt.set()
    episode, times = await work
    assert times == 1 and episode.ended is Ended.ANSWERED
    assert max(RAN.taken().values()) == 1


async def test_a_turn_that_cannot_go_on_starts_over(tmp_path: Path) -> None:
    """With a stop string the engine's state is gone: what was sampled is given up, and counted."""
    kind = Kind("steps", lambda task, model: plain(model), steps(2))
    kind.options["sampling_params"] = {"stop": ["never said"], "max_new_tokens": 100}
    engine = CuttingEngine(kind.engine(), lambda at: 3 if at == 1 else None)
    engine.inner.given = _Forgetful()
    episode, times = await to_its_end(engine, kind, tmp_path)
    assert times == 1 and episode.ended is Ended.ANSWERED
    assert EventKind.PART not in [event.kind for event in record_of(tmp_path).events]
    assert_proved(tmp_path)


class _Forgetful(dict[str, set[int]]):
    def setdefault(self, key: str, default: Any = None) -> set[int]:
        return set()


async def test_an_engine_that_cuts_a_turn_for_reasons_of_its_own(tmp_path: Path) -> None:
    """A weight update aborts what is under way, but nobody halts the episode: the turn goes on at once."""
    kind = Kind("steps", lambda task, model: plain(model), steps(2))
    engine = CuttingEngine(kind.engine(), lambda at: 2 if at in (0, 1, 3) else None)
    engine.halt = _Never()
    episode, times = await to_its_end(engine, kind, tmp_path)
    whole = (await run(kind.build, [TASK], kind.engine(), tmp_path / "whole"))[0]
    assert times == 0 and said(episode) == said(whole)
    assert [turn.detail.get("continuations", 0) for turn in episode.tree.turns] == [2, 1, 0]


class _Never(threading.Event):
    def is_set(self) -> bool:
        return False


async def test_the_budget_is_kept_over_all_parts() -> None:
    kind = Kind("steps", lambda task, model: plain(model), steps(1, end="one two three four five six seven eight"))
    kind.options["limits"] = Limits(tokens_per_turn=6)
    engine = CuttingEngine(kind.engine(), lambda at: 2)
    episode, times = await to_its_end(engine, kind, None)
    assert times >= 2 and episode.ended is Ended.TURN_CUT
    assert max(len(turn.sampled) for turn in episode.tree.turns) == 6


async def test_bytes_that_were_changed_are_refused() -> None:
    kind = Kind("steps", lambda task, model: plain(model), steps(1))
    engine = CuttingEngine(kind.engine(), lambda at: 1)
    setup = Setup(kind.build, None, engine.inner.tokenizer, engine, Limits(), suspendable=True)
    worker = LocalWorker(setup)
    work = asyncio.ensure_future(worker.run(Job(TASK, 0), halt=engine.halt))
    while not engine.halt.is_set():
        await asyncio.sleep(0.001)
    assert worker.suspend("t/0") and not worker.suspend("t/1")
    episode = await work
    await worker.close()
    assert episode.record is not None
    data = carry(episode.record)
    assert carried(data).events == episode.record.events
    for wrong in (b"", b"x" + data, data[:-3], data + b"!", b"sgep1"):
        with pytest.raises(LedgerError):
            carried(wrong)
    event = episode.record.events[-1]
    assert event.kind is EventKind.PART
    event.arrays["sampled"][0] += 1
    from strands_sglang.ledger.event import encoded

    forged = carry(episode.record)  # whoever works the digests out anew is not caught here, but by the seal
    assert carried(forged).events[-1].digest == event.digest and encoded(event, b"")


def build(task: Task, model: SGLangModel) -> Any:
    return plain(model)
