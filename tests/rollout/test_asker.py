"""Turns that are asked for in several requests: what was given up is counted, and what was kept is not lost."""

from __future__ import annotations

import asyncio
import threading
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from strands.hooks import AfterModelCallEvent

from rollout.kinds import plain
from rollout.scripts import PromptEngine, assert_proved, record_of, steps
from strands_sglang.engine import AbortPolicy, FinishReason, Generation
from strands_sglang.errors import EngineUnavailableError
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.run_file import write_run
from strands_sglang.ledger.seal import seal
from strands_sglang.rollout import Ended, Limits, Task
from strands_sglang.rollout.asker import Asker
from strands_sglang.rollout.job import Job, Setup, fingerprint
from strands_sglang.rollout.local import LocalWorker
from strands_sglang.tokens import VersionSpan

TASK = Task("go", id="t")
STOPS = {"stop": ["never said"], "max_new_tokens": 50}


def part(count: int, finish: FinishReason = FinishReason.ABORT, first: int = 100) -> Generation:
    """Return so many tokens."""
    return Generation(
        token_ids=array("i", range(first, first + count)),
        logprobs=array("d", [-0.5] * count),
        finish_reason=finish,
        finish_detail="cut",
        versions=(VersionSpan("v1", 0, count),) if count else (),
        prompt_tokens=3,
    )


@dataclass
class Answers:
    """An engine that gives what it is told to, one after the other."""

    given: list[Any]
    asked: list[list[int]] = field(default_factory=list)

    async def generate(self, input_ids: Any, sampling_params: Any = None, **asked: Any) -> Generation:
        self.asked.append([int(token) for token in input_ids])
        answer = self.given.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Generation)
        return answer


@pytest.mark.parametrize("whole", [False, True])
async def test_a_part_that_is_given_up_is_counted_however_the_turn_ends(whole: bool) -> None:
    engine = Answers([part(2, FinishReason.STOP if whole else FinishReason.ABORT)])
    asker = Asker(engine, threading.Event())
    answer = await asker.ask([1, 2, 3], STOPS, part(5), on_abort=AbortPolicy.RETURN)
    assert engine.asked == [[1, 2, 3]]
    assert len(answer) == 2 and answer.discarded_tokens == 5


async def test_what_is_handed_back_is_not_counted_as_given_up() -> None:
    asker = Asker(Answers([part(2)]), threading.Event())
    answer = await asker.ask([1, 2, 3], STOPS, on_abort=AbortPolicy.RETURN)
    assert len(answer) == 2 and answer.discarded_tokens == 0


class Once:
    """Cuts the first request and has the episode set aside; the second it answers as it is told to."""

    def __init__(self, second: Any) -> None:
        self.inner, self.second = PromptEngine(steps(1)), second
        self.halt = threading.Event()
        self.requests = 0

    async def generate(self, input_ids: Any, sampling_params: Any = None, **asked: Any) -> Generation:
        self.requests += 1
        if self.requests == 1:
            self.halt.set()
            return _first(await self.inner.generate(input_ids, sampling_params, **asked), 4, len(input_ids))
        if self.requests == 2 and isinstance(self.second, Exception):
            raise self.second
        whole = await self.inner.generate(input_ids, sampling_params, **asked)
        return whole if self.requests > 2 else _first(whole, self.second, len(input_ids))


def _first(whole: Generation, count: int, sent: int) -> Generation:
    cut = part(count)
    return Generation(
        token_ids=whole.token_ids[:count],
        logprobs=whole.logprobs[:count],
        finish_reason=FinishReason.ABORT,
        finish_detail="cut",
        versions=cut.versions,
        prompt_tokens=sent,
    )


async def set_aside_and_taken_up(engine: Once, build: Any, folder: Path, later: Any, **options: Any) -> Any:
    """Return an episode that was set aside in its first turn and went on, sampled otherwise."""
    setup = Setup(build, None, engine.inner.tokenizer, engine, Limits(), options, folder, "run", suspendable=True)
    worker = LocalWorker(setup)
    write_run(folder, {"run": "run", "fingerprint": fingerprint(worker.model), "samples_per_task": 1})
    try:
        first = await asyncio.wait_for(worker.run(Job(TASK, 0), halt=engine.halt), 30)
        assert first.ended is Ended.SUSPENDED and first.record is not None
        engine.halt.clear()
        return await asyncio.wait_for(worker.run(Job(TASK, 0, record=first.record, sampling_params=later)), 30)
    finally:
        await worker.close()
        seal(folder)


async def test_an_honest_ledger_is_proved_where_a_part_was_given_up_and_the_turn_was_cut(tmp_path: Path) -> None:
    def build(task: Task, model: Any) -> Any:
        return plain(model)

    engine = Once(2)
    episode = await set_aside_and_taken_up(engine, build, tmp_path, STOPS, on_abort="return")
    assert episode.ended is Ended.ENGINE
    events = record_of(tmp_path).events
    assert EventKind.PART in [event.kind for event in events]
    [call] = [event for event in events if event.kind is EventKind.CALL]
    assert call.data["detail"]["discarded_tokens"] == 4
    assert_proved(tmp_path)


async def test_a_part_is_gone_on_from_also_when_the_engine_failed_in_between(tmp_path: Path) -> None:
    def build(task: Task, model: Any) -> Any:
        agent = plain(model)

        def again(event: AfterModelCallEvent) -> None:
            event.retry = isinstance(event.exception, EngineUnavailableError)

        agent.add_hook(again, AfterModelCallEvent)
        return agent

    engine = Once(EngineUnavailableError("down"))
    episode = await set_aside_and_taken_up(engine, build, tmp_path, None)
    events = record_of(tmp_path).events
    [kept] = [event for event in events if event.kind is EventKind.PART]
    first = next(event for event in events if event.kind is EventKind.CALL)
    assert first.arrays["sampled"][:4] == kept.arrays["sampled"]
    assert episode.tree[0].detail.get("continuations") == 1
    assert_proved(tmp_path)
