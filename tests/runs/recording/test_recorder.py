"""EpisodeRecorder: what is written when, and what is answered from the record."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from strands_sglang.engine import FinishReason, Generation
from strands_sglang.errors import CallCancelledError, EngineUnavailableError, LedgerError
from strands_sglang.ledger.encoding import HashChain, decoded
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.runs.recording import replay_log as replay_log_module
from strands_sglang.runs.recording.recorder import EpisodeRecorder, within
from strands_sglang.runs.recording.replay_log import ReplayLog
from strands_sglang.tokens import Join, TokenTree, Turn, VersionSpan


class EchoEngine:
    """Answers every prompt with its last token and one more."""

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def generate(self, input_ids: Sequence[int], *args: Any, **kwargs: Any) -> Generation:
        self.prompts.append(list(input_ids))
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        ids = array("i", [input_ids[-1], 7])
        return Generation(
            ids, array("d", [-0.5, -1.0]), FinishReason.STOP, 7, (VersionSpan("v1", 0, 2),), len(input_ids), 0, "rid"
        )


Engine: Any = EchoEngine


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call waits only briefly for recorded answers that no other call takes."""
    monkeypatch.setattr(replay_log_module, "_MAX_POLLS", 50)


class Written:
    """A hash chain and the events written to it."""

    def __init__(self) -> None:
        self.bytes: list[bytes] = []
        self.chain = HashChain(self.bytes.append, "t/0")
        self.chain.append(EventKind.BEGIN, {})

    @property
    def events(self) -> list[Event]:
        return [decoded(one)[0] for one in self.bytes]

    def summary(self) -> list[Any]:
        return [
            (event.kind.value, event.data["turns" if event.kind is EventKind.ROLLBACK else "turn"])
            for event in self.events[1:]
            if event.kind in (EventKind.CALL, EventKind.ROLLBACK)
        ]

    def replay_log(self) -> ReplayLog:
        return ReplayLog(EpisodeRecord("t/0", tuple(self.events)))


def commit(tree: TokenTree, prompt: list[int], generation: Generation) -> Turn:
    return tree.commit(
        tree.prepare(None, context=prompt, join=Join.ROOT),
        generation.token_ids,
        generation.logprobs,
        generation.versions,
        finish_reason="stop",
        detail={"rid": generation.rid},
    )


async def make_turn(recorder: EpisodeRecorder, tree: TokenTree, prompt: list[int]) -> Turn:
    generation = await recorder.generate(prompt)
    turn = commit(tree, prompt, generation)
    recorder.committed(turn, generation)
    return turn


async def test_turns_are_written_on_commit_and_answered_from_the_record_later() -> None:
    written, engine, tree = Written(), Engine(), TokenTree("t/0")
    recorder = EpisodeRecorder(engine, "t/0", chain=written.chain)
    reported: list[int] = []
    recorder.on_turn = lambda turn: reported.append(turn.id)
    for number in range(3):
        await make_turn(recorder, tree, [1, number])
        assert written.summary() == [("call", turn) for turn in range(number + 1)]
    assert reported == [0, 1, 2] and recorder.turns == 3 and recorder.metrics.requests == 3

    later = Written()
    again = EpisodeRecorder(engine, "t/0", chain=later.chain, replay_log=written.replay_log())
    again.on_turn = recorder.on_turn
    other = TokenTree("t/0")
    for number in range(3):
        await make_turn(again, other, [1, number])
    assert len(engine.prompts) == 3 and reported == [0, 1, 2] and later.summary() == []
    assert other.to_dict() == tree.to_dict()
    assert (again.metrics.replayed_turns, again.metrics.requests, again.diverged) == (3, 0, None)
    await make_turn(again, other, [1, 3])
    assert later.summary() == [("call", 3)] and len(engine.prompts) == 4


async def test_turns_of_several_threads_are_written_in_order_with_their_enclosing_calls() -> None:
    """The thread that commits the missing turn writes the others too, each with the tool calls it was made inside."""
    written, engine, tree = Written(), Engine(), TokenTree("t/0")
    recorder = EpisodeRecorder(engine, "t/0", chain=written.chain)
    generations: dict[int, Generation] = {}
    for number in range(3):
        token = within.set((f"call-{number}",))
        generations[number] = await recorder.generate([1, number])
        within.reset(token)
    turns = {number: commit(tree, [1, number], generations[number]) for number in range(3)}
    for number in (2, 1):
        thread = threading.Thread(target=recorder.committed, args=(turns[number], generations[number]))
        thread.start()
        thread.join()
        assert written.summary() == [] and recorder.turns == 0
    recorder.committed(turns[0], generations[0])
    assert written.summary() == [("call", 0), ("call", 1), ("call", 2)]
    assert [event.data["within"] for event in written.events[1:]] == [["call-0"], ["call-1"], ["call-2"]]
    assert recorder.calls_within == {"call-0": 1, "call-1": 1, "call-2": 1}


async def recorded_turns(*prompts: list[int]) -> Written:
    written, tree = Written(), TokenTree("t/0")
    recorder = EpisodeRecorder(Engine(), "t/0", chain=written.chain)
    for prompt in prompts:
        await make_turn(recorder, tree, prompt)
    return written


@pytest.mark.parametrize("known_first", [True, False])
async def test_uncommitted_answer_is_written_again_after_a_rollback(known_first: bool) -> None:
    """Two turns never get the same number, in whatever order they are committed."""
    before = await recorded_turns([1], [2], [3])
    written, engine, tree = Written(), Engine(), TokenTree("t/0")
    recorder = EpisodeRecorder(engine, "t/0", chain=written.chain, replay_log=before.replay_log())
    await make_turn(recorder, tree, [1])
    known = await recorder.generate([2])  # recorded, and not committed yet
    live = asyncio.ensure_future(recorder.generate([30]))
    await asyncio.sleep(0)
    recorder.replay_log.settle(recorder._pending_answers[id(known)].event)  # as if its thread were late
    other = await live
    assert recorder.diverged is not None
    ordered = [([2], known), ([30], other)] if known_first else [([30], other), ([2], known)]
    for prompt, generation in ordered:
        recorder.committed(commit(tree, prompt, generation), generation)
    assert written.summary() == [("rollback", 1), ("call", 1), ("call", 2)]
    assert [list(event.arrays["context"]) for event in written.events[2:]] == [prompt for prompt, _ in ordered]
    assert engine.prompts == [[30]]


async def test_turn_at_another_position_rolls_back_the_record() -> None:
    before = await recorded_turns([1], [2], [3])
    written, engine, tree = Written(), Engine(), TokenTree("t/0")
    recorder = EpisodeRecorder(engine, "t/0", chain=written.chain, replay_log=before.replay_log())
    first = await make_turn(recorder, tree, [1])
    generation = await recorder.generate([2])
    prepared = tree.prepare(None, context=[2], join=Join.FORKED, forked_from=first.id)
    turn = tree.commit(
        prepared, generation.token_ids, generation.logprobs, generation.versions, finish_reason="stop", detail={}
    )
    recorder.committed(turn, generation)
    assert written.summary() == [("rollback", 1), ("call", 1)]
    await make_turn(recorder, tree, [3])
    assert engine.prompts == [[3]] and written.summary()[-1] == ("call", 2)


async def test_errors_are_written_and_repeated() -> None:
    written, engine, tree = Written(), Engine(), TokenTree("t/0")
    recorder = EpisodeRecorder(engine, "t/0", chain=written.chain)
    engine.error = EngineUnavailableError("away", attempts=3, status=503)
    with pytest.raises(EngineUnavailableError):
        await make_turn(recorder, tree, [1])
    engine.error = RuntimeError("not ours")
    with pytest.raises(RuntimeError):
        await make_turn(recorder, tree, [1])
    engine.error = CallCancelledError("cancelled")
    with pytest.raises(CallCancelledError):
        await make_turn(recorder, tree, [1])
    engine.error = None
    await make_turn(recorder, tree, [1])
    assert [event.kind.value for event in written.events] == ["begin", "call_error", "call"]

    again = EpisodeRecorder(engine, "t/0", chain=Written().chain, replay_log=written.replay_log())
    with pytest.raises(EngineUnavailableError) as caught:
        await make_turn(again, TokenTree("t/0"), [1])
    assert (caught.value.attempts, caught.value.status, str(caught.value)) == (3, 503, "away")
    await make_turn(again, TokenTree("t/0"), [1])
    assert len(engine.prompts) == 4


async def test_closed_episode_rejects_calls_and_turns() -> None:
    written, engine, tree = Written(), Engine(), TokenTree("t/0")
    recorder = EpisodeRecorder(engine, "t/0", chain=written.chain)
    engine.gate = asyncio.Event()
    late = asyncio.ensure_future(recorder.generate([1]))
    await asyncio.sleep(0)
    engine.gate.set()
    generation = await recorder.generate([2])
    engine.gate.clear()
    failing = asyncio.ensure_future(recorder.generate([3]))
    await asyncio.sleep(0)
    assert (await late).token_ids[0] == 1
    recorder.close()
    engine.error = EngineUnavailableError("away")
    engine.gate.set()
    for attempt in (failing, recorder.generate([4])):
        with pytest.raises(CallCancelledError, match="has ended"):
            await attempt
    with pytest.raises(CallCancelledError):
        recorder.committed(commit(tree, [2], generation), generation)
    assert len(written.events) == 1 and recorder.turns == 0
    recorder.write(EventKind.END, {})
    assert len(written.events) == 2


async def test_ended_tool_call_makes_no_more_turns() -> None:
    recorder = EpisodeRecorder(Engine(), "t/0")
    tree = TokenTree("t/0")
    within.set(("outer", "inner"))
    recorder.tool_started("inner", settled=False)
    await make_turn(recorder, tree, [1])
    recorder.tool_ended("inner")
    with pytest.raises(CallCancelledError, match="the tool call that makes this engine call has ended"):
        await make_turn(recorder, tree, [2])
    within.set(("outer",))
    await make_turn(recorder, tree, [2])
    within.set(("outer", "inner"))
    recorder.tool_started("inner", settled=False)  # a hook runs it again
    await make_turn(recorder, tree, [3])
    assert recorder.calls_within == {"outer": 3, "inner": 2}


async def test_settled_tool_call_makes_only_recorded_turns() -> None:
    written, tree = Written(), TokenTree("t/0")
    recorder = EpisodeRecorder(Engine(), "t/0", chain=written.chain)
    within.set(("x",))
    await make_turn(recorder, tree, [1])
    engine = Engine()
    again = EpisodeRecorder(engine, "t/0", chain=Written().chain, replay_log=written.replay_log())
    again.tool_started("x", settled=True)
    await make_turn(again, TokenTree("t/0"), [1])
    with pytest.raises(CallCancelledError, match="the tool call that makes this engine call has ended"):
        await again.generate([2])
    assert not engine.prompts


async def test_turn_that_cannot_be_written_closes_the_episode() -> None:
    """Later turns cannot be written without it."""
    full: list[bytes] = []

    def refuse(data: bytes) -> None:
        if len(full) == 1:
            raise LedgerError("no space left")
        full.append(data)

    recorder, tree = EpisodeRecorder(Engine(), "t/0", chain=HashChain(refuse, "t/0")), TokenTree("t/0")
    await make_turn(recorder, tree, [1])
    with pytest.raises(LedgerError):
        await make_turn(recorder, tree, [2])
    with pytest.raises(CallCancelledError):
        await make_turn(recorder, tree, [3])
    assert recorder.turns == 1 and len(tree) == 2


async def test_reset_agent_starts_its_record_from_scratch() -> None:
    written, engine = Written(), Engine()
    recorder = EpisodeRecorder(engine, "t/0", chain=written.chain)
    tree = TokenTree("t/0")
    for number in range(3):
        await make_turn(recorder, tree, [1, number])
    fresh = TokenTree("t/0")  # the model was reset
    for number in range(2):
        await make_turn(recorder, fresh, [2, number])
    assert written.summary() == [("call", 0), ("call", 1), ("call", 2), ("rollback", 0), ("call", 0), ("call", 1)]
    assert recorder.turns == 2
