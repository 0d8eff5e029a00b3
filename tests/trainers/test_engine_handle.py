"""A trainer's engine behind our protocol: turns that are cut go on exactly, errors are ours, everything is counted."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from strands_sglang.engine import AbortPolicy, FinishReason, Generation, TokenEngine, VersionSpan
from strands_sglang.errors import (
    CallCancelledError,
    ConfigurationError,
    CountMismatchError,
    DeadlineExceededError,
    EngineUnavailableError,
)
from strands_sglang.trainers import engine_handle
from strands_sglang.trainers.engine_handle import EngineHandle, experts_from, finished, sampled, spans_of
from strands_sglang.trainers.verl_engine import VerlEngine, global_steps
from trainers.verl_mirror import TokenOutput

PROMPT = [5, 6, 7]


class Counting(EngineHandle):
    """Samples 100, 101, 102, ... by position; cut where it is told to be."""

    def __init__(self, cuts: list[int], until: int = 20) -> None:
        super().__init__()
        self.pause = 0.0
        self.cuts, self.until, self.asked = cuts, until, list[tuple[list[int], dict[str, Any]]]()

    async def ask(self, input_ids: list[int], sampling: dict[str, Any], key: str, experts: int | None) -> Generation:
        self.asked.append((input_ids, sampling))
        at, budget = len(input_ids) - len(PROMPT), sampling["max_new_tokens"]
        count, reason = min(budget, self.until - at), "stop" if self.until - at <= budget else "length"
        if self.cuts:
            count, reason = min(count, self.cuts.pop(0)), "abort"
        ids = list(range(100 + at, 100 + at + count))
        whole = np.arange(len(input_ids) + count - 1).reshape(-1, 1)
        return sampled(
            "nobody",
            ids,
            [-token / 100 for token in ids],
            (VersionSpan(f"v{len(self.asked)}", 0, count),) if count else (),
            finished(reason, ids, budget),
            prompt_tokens=len(input_ids),
            routed_experts=experts_from(whole, experts) if count else None,
        )


async def test_a_turn_that_is_cut_goes_on_where_it_stopped() -> None:
    engine = Counting([4, 0, 3])
    assert isinstance(engine, TokenEngine)
    turn = await engine.generate(PROMPT, {"max_new_tokens": 30}, routed_experts_start=0)
    assert list(turn.token_ids) == list(range(100, 120)) and turn.finish_reason is FinishReason.STOP
    assert [ids[len(PROMPT) :] for ids, _ in engine.asked] == [[], *[list(range(100, 104))] * 2, list(range(100, 107))]
    assert [asked["max_new_tokens"] for _, asked in engine.asked] == [30, 26, 26, 23]
    assert [(span.version, span.start, span.end) for span in turn.versions] == [
        ("v1", 0, 4),
        ("v3", 4, 7),
        ("v4", 7, 20),
    ]
    assert turn.prompt_tokens == 3 and turn.discarded_tokens == 0
    assert turn.routed_experts is not None
    assert turn.routed_experts.decode().ravel().tolist() == list(range(22)), "one row a position but the last"


async def test_a_turn_that_cannot_go_on_starts_over_and_says_so() -> None:
    engine = Counting([4, 3])
    turn = await engine.generate(PROMPT, {"max_new_tokens": 30, "stop": ["x"]})
    assert list(turn.token_ids) == list(range(100, 120)) and turn.discarded_tokens == 7
    assert all(ids == PROMPT for ids, _ in engine.asked)


async def test_a_cut_at_the_end_of_the_budget_is_the_end() -> None:
    turn = await Counting([4, 6]).generate(PROMPT, {"max_new_tokens": 10})
    assert len(turn) == 10 and turn.finish_reason is FinishReason.LENGTH and turn.finish_detail == 10


async def test_a_cut_is_handed_back_where_that_is_wanted() -> None:
    turn = await Counting([4]).generate(PROMPT, {"max_new_tokens": 10}, on_abort=AbortPolicy.RETURN)
    assert len(turn) == 4 and turn.finish_reason is FinishReason.ABORT


async def test_an_engine_that_only_cuts_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_handle, "_TRIES", 3)
    with pytest.raises(EngineUnavailableError, match="4 times"):
        await Counting([0] * 9).generate(PROMPT, {"max_new_tokens": 10})


class Failing(EngineHandle):
    owner = "somebody"

    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self.error = error

    async def ask(self, *_: Any) -> Generation:
        if self.error is None:
            await asyncio.sleep(30)
        assert self.error is not None
        raise self.error


async def test_errors_are_ours() -> None:
    with pytest.raises(EngineUnavailableError, match="somebody's engine failed: OSError: gone") as caught:
        await Failing(OSError("gone")).generate(PROMPT, {"max_new_tokens": 1})
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(CountMismatchError):
        await Failing(CountMismatchError("?")).generate(PROMPT, {"max_new_tokens": 1})
    with pytest.raises(asyncio.CancelledError):
        await Failing(asyncio.CancelledError()).generate(PROMPT, {"max_new_tokens": 1})
    with pytest.raises(ConfigurationError, match="max_new_tokens"):
        await Failing(None).generate(PROMPT, {})
    with pytest.raises(ConfigurationError, match="lora_path"):
        await Failing(None).generate(PROMPT, {"max_new_tokens": 1}, extra={"lora_path": "x"})


async def test_a_call_ends_by_its_deadline_and_its_signal() -> None:
    engine, signal = Failing(None), threading.Event()
    with pytest.raises(DeadlineExceededError):
        await engine.generate(PROMPT, {"max_new_tokens": 1}, deadline=0.05)
    asyncio.get_running_loop().call_later(0.05, signal.set)
    with pytest.raises(CallCancelledError):
        await engine.generate(PROMPT, {"max_new_tokens": 1}, cancel_signal=signal)
    with pytest.raises(CallCancelledError):
        await engine.generate(PROMPT, {"max_new_tokens": 1}, cancel_signal=signal)


@pytest.mark.parametrize(
    ("reason", "count", "expected"),
    [
        ("stop", 3, FinishReason.STOP),
        ("stop", 8, FinishReason.STOP),
        ("length", 8, FinishReason.LENGTH),
        ("completed", 3, FinishReason.STOP),
        ("completed", 8, FinishReason.LENGTH),
        (None, 3, FinishReason.STOP),
        ("abort", 3, FinishReason.ABORT),
        ("aborted", 0, FinishReason.ABORT),
        ("tool_calls", 3, FinishReason.STOP),
        ("meteor", 3, FinishReason.UNKNOWN),
    ],
)
def test_why_a_turn_ended(reason: str | None, count: int, expected: FinishReason) -> None:
    assert finished(reason, list(range(count)), 8)[0] is expected


def test_spans_of_versions() -> None:
    assert spans_of([3, 3, None, 4]) == (VersionSpan("3", 0, 2), VersionSpan(None, 2, 3), VersionSpan("4", 3, 4))
    assert spans_of([]) == ()


def test_tokens_without_logprobs_are_refused() -> None:
    with pytest.raises(CountMismatchError, match="without logprobs"):
        sampled("verl", [1, 2], None, (VersionSpan(None, 0, 2),), (FinishReason.STOP, 2))
    assert len(sampled("verl", [], None, (), (FinishReason.ABORT, "aborted"))) == 0


async def test_verl_tells_steps_or_a_range_of_them() -> None:
    class Servers:
        def __init__(self, **told: Any) -> None:
            self.told = told

        async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: Any) -> TokenOutput:
            return TokenOutput(token_ids=[1], log_probs=[-0.5], stop_reason="stop", extra_fields=self.told)

    names = []
    for told in ({"global_steps": 4}, {"min_global_steps": 4, "max_global_steps": 6}, {}, {"global_steps": None}):
        names.append((await VerlEngine(Servers(**told)).generate(PROMPT, {"max_new_tokens": 4})).weight_version)
    assert names == ["4", "4..6", None, None]
    assert global_steps(["5", None, "4..6", "2"]) == (2, 6) and global_steps([None]) is None
