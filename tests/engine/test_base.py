"""`BaseEngine`, and verl's engine on it: interrupted turns continue exactly, and errors are engine errors."""

from __future__ import annotations

import asyncio
import re
import threading
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strands import Agent

import strands_sglang
from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.engine import (
    AbortPolicy,
    BaseEngine,
    Capability,
    FinishReason,
    Generation,
    Prefill,
    PromptImage,
    TokenEngine,
    TokenIds,
    VersionSpan,
    base,
    can,
    is_server,
    scores,
    streams,
)
from strands_sglang.engine.base import experts_from, finished, sampled, spans_of
from strands_sglang.errors import (
    CallCancelledError,
    ConfigurationError,
    CountMismatchError,
    DeadlineExceededError,
    EngineUnavailableError,
    EngineUnreachableError,
)
from strands_sglang.runs import Task, rollout, teacher_logprobs
from support.families import tokenizer
from support.rollout.scripts import PromptEngine, assert_proved, run
from support.trainers.verl_mirror import TokenOutput, adapter

PROMPT = [5, 6, 7]


class CountingEngine(BaseEngine):
    """Samples 100, 101, 102, ... by position; interrupted after the given numbers of tokens."""

    capabilities = frozenset({Capability.ROUTED_EXPERTS})

    def __init__(self, interruptions: list[int], until: int = 20) -> None:
        super().__init__()
        self.delay = 0.0
        self.interruptions, self.until, self.requests = interruptions, until, list[tuple[list[int], dict[str, Any]]]()

    async def request(
        self, input_ids: list[int], sampling: dict[str, Any], key: str, experts: int | None
    ) -> Generation:
        self.requests.append((input_ids, sampling))
        at, budget = len(input_ids) - len(PROMPT), sampling["max_new_tokens"]
        count, reason = min(budget, self.until - at), "stop" if self.until - at <= budget else "length"
        if self.interruptions:
            count, reason = min(count, self.interruptions.pop(0)), "abort"
        ids = list(range(100 + at, 100 + at + count))
        whole = np.arange(len(input_ids) + count - 1).reshape(-1, 1)
        return sampled(
            "nobody",
            ids,
            [-token / 100 for token in ids],
            (VersionSpan(f"v{len(self.requests)}", 0, count),) if count else (),
            finished(reason, ids, budget),
            prompt_tokens=len(input_ids),
            routed_experts=experts_from(whole, experts) if count else None,
        )


async def test_interrupted_turn_is_continued() -> None:
    engine = CountingEngine([4, 0, 3])
    assert isinstance(engine, TokenEngine)
    turn = await engine.generate(PROMPT, {"max_new_tokens": 30}, routed_experts_start=0)
    assert list(turn.token_ids) == list(range(100, 120)) and turn.finish_reason is FinishReason.STOP
    assert [ids[len(PROMPT) :] for ids, _ in engine.requests] == [
        [],
        *[list(range(100, 104))] * 2,
        list(range(100, 107)),
    ]
    assert [sampling["max_new_tokens"] for _, sampling in engine.requests] == [30, 26, 26, 23]
    assert [(span.version, span.start, span.end) for span in turn.versions] == [
        ("v1", 0, 4),
        ("v3", 4, 7),
        ("v4", 7, 20),
    ]
    assert turn.prompt_tokens == 3 and turn.discarded_tokens == 0
    assert turn.routed_experts is not None
    assert turn.routed_experts.decode().ravel().tolist() == list(range(22)), "one row per position except the last"


async def test_turn_that_cannot_be_continued_starts_over() -> None:
    engine = CountingEngine([4, 3])
    turn = await engine.generate(PROMPT, {"max_new_tokens": 30, "stop": ["x"]})
    assert list(turn.token_ids) == list(range(100, 120)) and turn.discarded_tokens == 7
    assert all(ids == PROMPT for ids, _ in engine.requests)


async def test_interruption_at_the_end_of_the_budget_ends_the_turn() -> None:
    turn = await CountingEngine([4, 6]).generate(PROMPT, {"max_new_tokens": 10})
    assert len(turn) == 10 and turn.finish_reason is FinishReason.LENGTH and turn.finish_detail == 10


async def test_abort_policy_return_returns_the_partial_turn() -> None:
    turn = await CountingEngine([4]).generate(PROMPT, {"max_new_tokens": 10}, on_abort=AbortPolicy.RETURN)
    assert len(turn) == 4 and turn.finish_reason is FinishReason.ABORT


async def test_engine_that_only_interrupts_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_MAX_RETRIES", 3)
    with pytest.raises(EngineUnavailableError, match="4 times"):
        await CountingEngine([0] * 9).generate(PROMPT, {"max_new_tokens": 10})


class FailingEngine(BaseEngine):
    owner = "somebody"

    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self.error = error

    async def request(self, *_: Any) -> Generation:
        if self.error is None:
            await asyncio.sleep(30)
        assert self.error is not None
        raise self.error


async def test_errors_of_the_client_are_engine_errors() -> None:
    with pytest.raises(EngineUnavailableError, match="somebody's engine failed: OSError: gone") as caught:
        await FailingEngine(OSError("gone")).generate(PROMPT, {"max_new_tokens": 1})
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(CountMismatchError):
        await FailingEngine(CountMismatchError("?")).generate(PROMPT, {"max_new_tokens": 1})
    with pytest.raises(asyncio.CancelledError):
        await FailingEngine(asyncio.CancelledError()).generate(PROMPT, {"max_new_tokens": 1})
    with pytest.raises(ConfigurationError, match="max_new_tokens"):
        await FailingEngine(None).generate(PROMPT, {})
    with pytest.raises(ConfigurationError, match="lora_path"):
        await FailingEngine(None).generate(PROMPT, {"max_new_tokens": 1}, extra={"lora_path": "x"})
    with pytest.raises(ConfigurationError, match="somebody's engine returns none"):
        await FailingEngine(None).generate(PROMPT, {"max_new_tokens": 1}, routed_experts_start=0)


async def test_deadline_and_cancel_signal_end_a_call() -> None:
    engine, signal = FailingEngine(None), threading.Event()
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
        ("stop", 3, FinishReason.STOP), ("stop", 8, FinishReason.STOP), ("length", 8, FinishReason.LENGTH),
        ("completed", 3, FinishReason.STOP), ("completed", 8, FinishReason.LENGTH), (None, 3, FinishReason.STOP),
        ("abort", 3, FinishReason.ABORT), ("aborted", 0, FinishReason.ABORT), ("tool_calls", 3, FinishReason.STOP),
        ("meteor", 3, FinishReason.UNKNOWN),
    ],
)  # fmt: skip
def test_finish_reason(reason: str | None, count: int, expected: FinishReason) -> None:
    assert finished(reason, list(range(count)), 8)[0] is expected


def test_spans_of_versions() -> None:
    assert spans_of([3, 3, None, 4]) == (VersionSpan("3", 0, 2), VersionSpan(None, 2, 3), VersionSpan("4", 3, 4))
    assert spans_of([]) == ()


def test_tokens_without_logprobs_are_refused() -> None:
    with pytest.raises(CountMismatchError, match="without logprobs"):
        sampled("verl", [1, 2], None, (VersionSpan(None, 0, 2),), (FinishReason.STOP, 2))
    assert len(sampled("verl", [], None, (), (FinishReason.ABORT, "aborted"))) == 0


async def test_verl_versions_are_steps_or_ranges() -> None:
    class Servers:
        def __init__(self, **fields: Any) -> None:
            self.fields = fields

        async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: Any) -> TokenOutput:
            return TokenOutput(token_ids=[1], log_probs=[-0.5], stop_reason="stop", extra_fields=self.fields)

    names = []
    for fields in ({"global_steps": 4}, {"min_global_steps": 4, "max_global_steps": 6}, {}, {"global_steps": None}):
        names.append(
            (await adapter.VerlEngine(Servers(**fields)).generate(PROMPT, {"max_new_tokens": 4})).weight_version
        )
    assert names == ["4", "4..6", None, None]
    assert adapter.global_steps(["5", None, "4..6", "2"]) == (2, 6) and adapter.global_steps([None]) is None


async def test_kept_sets_are_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_logged", set())
    for sampling in ({}, {"top_p": 1.0, "top_k": -1}, {"top_p": 0.9}, {"top_p": 0.9}, {"top_k": 20}):
        await CountingEngine([]).generate(PROMPT, {"max_new_tokens": 3, **sampling})
    (record,) = caplog.records
    assert "engine=<this program> | sampling with top_p" in record.getMessage()


PACKAGE = Path(strands_sglang.__file__).parent


def build(task: Task, model: SGLangModel) -> Agent:
    return Agent(model=model, callback_handler=None)


def answers(prompt: str, before: int) -> str:
    return "the end"


class Least:
    """Has `generate` alone."""

    async def generate(self, input_ids: TokenIds, sampling_params: Any = None, **_: Any) -> Generation:
        return Generation(array("i", [1]), array("d", [-0.5]), FinishReason.STOP)


class Wrapped:
    """A proxy of a client, which is not an `SGLangClient`."""

    def __init__(self, client: SGLangClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class Scoring(PromptEngine):
    """Gives every token the logprob -0.25."""

    capabilities = frozenset({Capability.SCORING})

    async def score(
        self, input_ids: TokenIds, start: int, *, images: Sequence[PromptImage] = (), top: int = 0
    ) -> Prefill:
        rows = len(input_ids) - start
        return Prefill(np.full(rows, -0.25), np.zeros((rows, 0), np.int32), np.zeros((rows, 0)))


def test_client_has_every_capability_and_a_plain_engine_has_none() -> None:
    client = SGLangClient()
    assert (
        {one for one in Capability if not can(client, one)} == {Capability.SESSIONS}
        and is_server(client)
        and streams(client)
        and scores(client)
    )
    assert not any(can(Least(), one) for one in Capability) and not is_server(Least())


def test_proxy_of_a_client_is_treated_as_the_client() -> None:
    proxy: Any = Wrapped(SGLangClient())
    with pytest.raises(ConfigurationError, match="no sampling parameter 'temprature'"):
        SGLangModel(tokenizer=tokenizer("qwen2.5"), client=proxy, sampling_params={"temprature": 1})


async def test_proxy_of_a_client_is_checked_before_a_run() -> None:
    proxy: Any = Wrapped(SGLangClient("http://127.0.0.1:9", max_retries=0, first_contact=0.1))
    with pytest.raises(EngineUnreachableError, match="nothing ever answered"):
        await rollout(build, ["go"], client=proxy, tokenizer=tokenizer("qwen2.5"))


async def test_teacher_is_any_engine_that_scores(tmp_path: Path) -> None:
    await run(build, [Task("go")], PromptEngine(answers), tmp_path / "run")
    report = await teacher_logprobs(tmp_path / "run", Scoring(answers))
    assert report.model == "Scoring" and report.url == "" and report.mean_logprob == -0.25
    assert_proved(tmp_path / "run")
    with pytest.raises(ConfigurationError, match="must score given tokens"):
        await teacher_logprobs(tmp_path / "run", Least())  # type: ignore[arg-type]


def test_no_module_above_asks_for_the_class() -> None:
    found = [path for path in PACKAGE.rglob("*.py") if re.search(r"isinstance\([^)]*SGLangClient", path.read_text())]
    assert not [path for path in found if path.parent.name != "engine"]
