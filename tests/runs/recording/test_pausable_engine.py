"""Turns that take several requests: discarded tokens are counted, kept tokens are not lost."""

from __future__ import annotations

import asyncio
import threading
from array import array
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from strands.hooks import AfterModelCallEvent

from strands_sglang.engine import AbortPolicy, FinishReason, Generation
from strands_sglang.engine.retry import Backoff, RetryPolicy
from strands_sglang.errors import EngineUnavailableError
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.run_dir import write_run
from strands_sglang.ledger.seal import seal
from strands_sglang.runs import EndReason, Limits, Task
from strands_sglang.runs.recording import pausable_engine
from strands_sglang.runs.recording.pausable_engine import PausableEngine, PausedError
from strands_sglang.runs.workers.local import LocalWorker
from strands_sglang.runs.workers.spec import EpisodeSpec, RunSpec
from strands_sglang.tokens import VersionSpan
from support.rollout.agent_kinds import build, plain
from support.rollout.scripts import PromptEngine, assert_proved, record_of, steps

TASK = Task("go", id="t")
STOPS = {"stop": ["never sampled"], "max_new_tokens": 50}


def part(count: int, finish: FinishReason = FinishReason.ABORT, first: int = 100) -> Generation:
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
    """An engine that returns the given answers in order."""

    given: list[Any]
    asked: list[list[int]] = field(default_factory=list)

    async def generate(self, input_ids: Any, sampling_params: Any = None, **asked: Any) -> Generation:
        self.asked.append([int(token) for token in input_ids])
        answer = self.given.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Generation)
        return answer


@pytest.mark.parametrize("ends", [FinishReason.STOP, FinishReason.ABORT])
@pytest.mark.parametrize("earlier", [None, part(5)])
async def test_discarded_part_is_counted_however_the_turn_ends(ends: FinishReason, earlier: Generation | None) -> None:
    """What an interrupted turn returns itself is not discarded."""
    engine = Answers([part(2, ends)])
    answer = await PausableEngine(engine, threading.Event()).generate(
        [1, 2, 3], STOPS, earlier, on_abort=AbortPolicy.RETURN
    )
    assert engine.asked == [[1, 2, 3]]
    assert len(answer) == 2 and answer.discarded_tokens == (0 if earlier is None else 5)


@pytest.mark.parametrize("sampling", [{"max_new_tokens": 50}, STOPS])
async def test_engine_that_only_aborts_raises(monkeypatch: pytest.MonkeyPatch, sampling: Any) -> None:
    monkeypatch.setattr(pausable_engine, "_POLICY", RetryPolicy(2, Backoff(0.0, 0.0)))
    engine = Answers([part(2 if "stop" in sampling else 0)] * 9)
    with pytest.raises(EngineUnavailableError, match="3 times in a row, last: the engine aborted the request: cut"):
        await PausableEngine(engine, threading.Event()).generate([1, 2, 3], sampling)
    assert engine.asked == [[1, 2, 3]] * 3


async def test_later_call_continues_a_paused_turn() -> None:
    signal = threading.Event()

    class Pausing(Answers):
        async def generate(self, input_ids: Any, sampling_params: Any = None, **asked: Any) -> Generation:
            if len(self.given) == 1:
                signal.set()
            return await super().generate(input_ids, sampling_params, **asked)

    engine, seen = Pausing([part(2), part(0), part(3, first=102)]), []
    pausable = PausableEngine(engine, signal, on_pause=lambda: seen.append(1))
    with pytest.raises(PausedError) as caught:
        await pausable.generate([1, 2, 3], {"max_new_tokens": 5}, on_abort=AbortPolicy.CONTINUE)
    kept = caught.value.part
    assert kept is not None and list(kept.token_ids) == list(range(100, 105)) and kept.continuations == 1
    assert engine.asked == [[1, 2, 3], [1, 2, 3, 100, 101], [1, 2, 3, 100, 101]]
    assert pausable.paused and pausable.in_flight == 0 and seen == [1]
    whole = await PausableEngine(Answers([])).generate([1, 2, 3], {"max_new_tokens": 5}, kept)
    assert (whole.finish_reason, whole.finish_detail, len(whole)) == (FinishReason.LENGTH, 5, 5)


class Once:
    """Interrupts the first request and pauses the episode; `second` is the answer to the second request."""

    def __init__(self, second: Any) -> None:
        self.inner, self.second = PromptEngine(steps(1)), second
        self.pause = threading.Event()
        self.requests = 0

    async def generate(self, input_ids: Any, sampling_params: Any = None, **asked: Any) -> Generation:
        self.requests += 1
        if self.requests == 1:
            self.pause.set()
            return _first(await self.inner.generate(input_ids, sampling_params, **asked), 4, len(input_ids))
        if self.requests == 2 and isinstance(self.second, Exception):
            raise self.second
        whole = await self.inner.generate(input_ids, sampling_params, **asked)
        return whole if self.requests > 2 else _first(whole, self.second, len(input_ids))


def _first(whole: Generation, count: int, sent: int) -> Generation:
    return replace(part(count), token_ids=whole.token_ids[:count], logprobs=whole.logprobs[:count], prompt_tokens=sent)


async def pause_and_resume(engine: Once, build: Any, folder: Path, later: Any, **options: Any) -> Any:
    """Return an episode that was paused in its first turn and resumed with other sampling parameters."""
    run_spec = RunSpec(build, None, engine.inner.tokenizer, engine, Limits(), options, folder, "run", pausable=True)
    worker = LocalWorker(run_spec)
    write_run(folder, {"run": "run", "fingerprint": worker.fingerprint, "samples_per_task": 1})
    try:
        first = await asyncio.wait_for(worker.run(EpisodeSpec(TASK, 0), pause=engine.pause), 30)
        assert first.end_reason is EndReason.PAUSED and first.record is not None
        engine.pause.clear()
        return await asyncio.wait_for(worker.run(EpisodeSpec(TASK, 0, record=first.record, sampling_params=later)), 30)
    finally:
        await worker.close()
        seal(folder)


async def test_ledger_with_a_discarded_part_and_an_aborted_turn_is_proved(tmp_path: Path) -> None:
    engine = Once(2)
    episode = await pause_and_resume(engine, build, tmp_path, STOPS, on_abort="return")
    assert episode.end_reason is EndReason.ENGINE_ERROR
    events = record_of(tmp_path).events
    assert EventKind.PARTIAL_CALL in [event.kind for event in events]
    [call] = [event for event in events if event.kind is EventKind.CALL]
    assert call.data["detail"]["discarded_tokens"] == 4
    assert_proved(tmp_path)


async def test_part_is_continued_after_an_engine_failure(tmp_path: Path) -> None:
    def retrying(task: Task, model: Any) -> Any:
        agent = plain(model)

        def again(event: AfterModelCallEvent) -> None:
            event.retry = isinstance(event.exception, EngineUnavailableError)

        agent.add_hook(again, AfterModelCallEvent)
        return agent

    engine = Once(EngineUnavailableError("down"))
    episode = await pause_and_resume(engine, retrying, tmp_path, None)
    events = record_of(tmp_path).events
    [kept] = [event for event in events if event.kind is EventKind.PARTIAL_CALL]
    first = next(event for event in events if event.kind is EventKind.CALL)
    assert first.arrays["sampled"][:4] == kept.arrays["sampled"]
    assert episode.tree[0].detail.get("continuations") == 1
    assert_proved(tmp_path)
