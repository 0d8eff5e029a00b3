"""The journal of an episode: what is written when, and what is answered from the record."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from strands_sglang.engine import FinishReason, Generation
from strands_sglang.errors import CallCancelledError, DivergedError, EngineUnavailableError, LedgerError
from strands_sglang.ledger.chain import Chain
from strands_sglang.ledger.event import Event, EventKind, decoded
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.rollout import recorded as room
from strands_sglang.rollout.journal import Journal, within
from strands_sglang.rollout.recorded import Recorded, RecordEndedError
from strands_sglang.rollout.replay import NoEngine
from strands_sglang.rollout.scribe import Mode
from strands_sglang.tokens import Join, TokenTree, Turn, VersionSpan


class ScriptlessEngine:
    """Answers every prompt with its last token and one more."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def generate(self, input_ids: Sequence[int], *args: Any, **kwargs: Any) -> Generation:
        self.asked.append(list(input_ids))
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        ids = array("i", [input_ids[-1], 7])
        return Generation(
            ids, array("d", [-0.5, -1.0]), FinishReason.STOP, 7, (VersionSpan("v1", 0, 2),), len(input_ids), 0, "rid"
        )


Engine: Any = ScriptlessEngine


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for who never asks."""
    monkeypatch.setattr(room, "_PATIENCE", 50)


class Written:
    """A chain, and what came out of it."""

    def __init__(self) -> None:
        self.bytes: list[bytes] = []
        self.chain = Chain(self.bytes.append, "t/0")
        self.chain.append(EventKind.BEGIN, {})

    @property
    def events(self) -> list[Event]:
        return [decoded(one)[0] for one in self.bytes]

    def told(self) -> list[Any]:
        """Return kind and number of turn of every event but the first."""
        return [
            (event.kind.value, event.data["turns" if event.kind is EventKind.CUT else "turn"])
            for event in self.events[1:]
            if event.kind in (EventKind.CALL, EventKind.CUT)
        ]

    def recorded(self) -> Recorded:
        return Recorded(EpisodeRecord("t/0", tuple(self.events)))


def commit(tree: TokenTree, prompt: list[int], generation: Generation) -> Turn:
    return tree.commit(
        tree.prepare(None, context=prompt, join=Join.ROOT),
        generation.token_ids,
        generation.logprobs,
        generation.versions,
        finish="stop",
        detail={"rid": generation.rid},
    )


async def made(journal: Journal, tree: TokenTree, prompt: list[int]) -> Turn:
    """Ask for a turn and commit it, as a model does."""
    generation = await journal.generate(prompt)
    turn = commit(tree, prompt, generation)
    journal.committed(turn, generation)
    return turn


async def test_turns_are_written_before_anybody_hears_of_them_and_answered_later() -> None:
    written, engine, tree = Written(), Engine(), TokenTree("t/0")
    journal = Journal(engine, "t/0", chain=written.chain)
    told: list[int] = []
    journal.on_turn = lambda turn: told.append(turn.id)
    for number in range(3):
        await made(journal, tree, [1, number])
        assert written.told() == [("call", turn) for turn in range(number + 1)]
    assert told == [0, 1, 2] and journal.turns == 3 and journal.metrics.requests == 3

    later = Written()
    again = Journal(engine, "t/0", chain=later.chain, recorded=written.recorded())
    again.on_turn = journal.on_turn
    other = TokenTree("t/0")
    for number in range(3):
        await made(again, other, [1, number])
    assert len(engine.asked) == 3 and told == [0, 1, 2] and later.told() == []
    assert other.to_dict() == tree.to_dict()
    assert (again.metrics.replayed_turns, again.metrics.requests, again.diverged) == (3, 0, None)
    await made(again, other, [1, 3])
    assert later.told() == [("call", 3)] and len(engine.asked) == 4


async def test_turns_of_several_threads_are_written_in_their_order_each_with_its_own_calls() -> None:
    """The thread that commits the missing turn writes the others, too; each is inside of what it was made inside of."""
    written, engine, tree = Written(), Engine(), TokenTree("t/0")
    journal = Journal(engine, "t/0", chain=written.chain)
    generations: dict[int, Generation] = {}
    for number in range(3):
        token = within.set((f"call-{number}",))
        generations[number] = await journal.generate([1, number])
        within.reset(token)
    turns = {number: commit(tree, [1, number], generations[number]) for number in range(3)}
    for number in (2, 1):
        thread = threading.Thread(target=journal.committed, args=(turns[number], generations[number]))
        thread.start()
        thread.join()
        assert written.told() == [] and journal.turns == 0
    journal.committed(turns[0], generations[0])
    assert written.told() == [("call", 0), ("call", 1), ("call", 2)]
    assert [event.data["within"] for event in written.events[1:]] == [["call-0"], ["call-1"], ["call-2"]]
    assert journal.calls_within == {"call-0": 1, "call-1": 1, "call-2": 1}


async def recorded_turns(*prompts: list[int]) -> Written:
    written, tree = Written(), TokenTree("t/0")
    journal = Journal(Engine(), "t/0", chain=written.chain)
    for prompt in prompts:
        await made(journal, tree, prompt)
    return written


async def test_another_prompt_cuts_the_record() -> None:
    before = await recorded_turns([1], [2], [3])
    written, engine, tree = Written(), Engine(), TokenTree("t/0")
    journal = Journal(engine, "t/0", chain=written.chain, recorded=before.recorded())
    for prompt in ([1], [20], [3]):
        await made(journal, tree, prompt)
    assert written.told() == [("cut", 1), ("call", 1), ("call", 2)]
    assert engine.asked == [[20], [3]]
    cut = next(event for event in written.events if event.kind is EventKind.CUT)
    assert cut.data["event"] == 2 and "another prompt" in cut.data["reason"]
    assert isinstance(journal.diverged, DivergedError) and journal.diverged.event == 2


async def test_an_answer_that_is_under_way_when_the_record_is_cut_is_written_again() -> None:
    before = await recorded_turns([1], [2], [3])
    written, engine, tree = Written(), Engine(), TokenTree("t/0")
    journal = Journal(engine, "t/0", chain=written.chain, recorded=before.recorded())
    await made(journal, tree, [1])
    known = await journal.generate([2])  # on record, and not committed yet
    live = asyncio.ensure_future(journal.generate([30]))
    turn = commit(tree, [2], known)
    await asyncio.sleep(0)
    journal.recorded.settle(journal._sent[id(known)].event)  # as when its thread is late
    other = await live
    assert journal.diverged is not None
    journal.committed(turn, known)
    journal.committed(commit(tree, [30], other), other)
    assert written.told() == [("cut", 1), ("call", 1), ("call", 2)]
    assert engine.asked == [[30]]


async def test_a_turn_that_overtakes_the_one_on_record_cuts_it() -> None:
    """Two turns never get the same number, whoever was late."""
    before = await recorded_turns([1], [2])
    written, engine, tree = Written(), Engine(), TokenTree("t/0")
    journal = Journal(engine, "t/0", chain=written.chain, recorded=before.recorded())
    await made(journal, tree, [1])
    known = await journal.generate([2])
    journal.recorded.settle(journal._sent[id(known)].event)
    await made(journal, tree, [30])
    journal.committed(commit(tree, [2], known), known)
    assert written.told() == [("cut", 1), ("call", 1), ("call", 2)]
    assert [list(event.arrays["context"]) for event in written.events[2:]] == [[30], [2]]


async def test_a_turn_at_another_place_cuts_the_record_there() -> None:
    before = await recorded_turns([1], [2], [3])
    written, engine, tree = Written(), Engine(), TokenTree("t/0")
    journal = Journal(engine, "t/0", chain=written.chain, recorded=before.recorded())
    first = await made(journal, tree, [1])
    generation = await journal.generate([2])
    prepared = tree.prepare(None, context=[2], join=Join.FORKED, forked_from=first.id)
    turn = tree.commit(
        prepared, generation.token_ids, generation.logprobs, generation.versions, finish="stop", detail={}
    )
    journal.committed(turn, generation)
    assert written.told() == [("cut", 1), ("call", 1)]
    await made(journal, tree, [3])
    assert engine.asked == [[3]] and written.told()[-1] == ("call", 2)


async def test_errors_are_written_and_repeated() -> None:
    written, engine, tree = Written(), Engine(), TokenTree("t/0")
    journal = Journal(engine, "t/0", chain=written.chain)
    engine.error = EngineUnavailableError("away", attempts=3, status=503)
    with pytest.raises(EngineUnavailableError):
        await made(journal, tree, [1])
    engine.error = RuntimeError("not ours")
    with pytest.raises(RuntimeError):
        await made(journal, tree, [1])
    engine.error = CallCancelledError("cancelled")
    with pytest.raises(CallCancelledError):
        await made(journal, tree, [1])
    engine.error = None
    await made(journal, tree, [1])
    assert [event.kind.value for event in written.events] == ["begin", "fault", "call"]

    again = Journal(engine, "t/0", chain=Written().chain, recorded=written.recorded())
    with pytest.raises(EngineUnavailableError) as caught:
        await made(again, TokenTree("t/0"), [1])
    assert (caught.value.attempts, caught.value.status, str(caught.value)) == (3, 503, "away")
    await made(again, TokenTree("t/0"), [1])
    assert len(engine.asked) == 4


async def test_a_replay_asks_nobody() -> None:
    before = await recorded_turns([1], [2])
    journal = Journal(NoEngine(), "t/0", recorded=before.recorded(), mode=Mode.REPLAY)
    tree = TokenTree("t/0")
    for prompt in ([1], [2]):
        await made(journal, tree, prompt)
    with pytest.raises(RecordEndedError):
        await made(journal, tree, [3])
    assert journal.diverged is None and journal.replays

    journal = Journal(NoEngine(), "t/0", recorded=before.recorded(), mode=Mode.REPLAY)
    await made(journal, TokenTree("t/0"), [1])
    with pytest.raises(DivergedError, match="at event 2"):
        await made(journal, TokenTree("t/0"), [3])
    with pytest.raises(RecordEndedError):
        await journal.generate([2])


async def test_an_episode_that_is_over_is_answered_and_written_nothing() -> None:
    written, engine, tree = Written(), Engine(), TokenTree("t/0")
    journal = Journal(engine, "t/0", chain=written.chain)
    engine.gate = asyncio.Event()
    late = asyncio.ensure_future(journal.generate([1]))
    await asyncio.sleep(0)
    engine.gate.set()
    generation = await journal.generate([2])
    engine.gate.clear()
    failing = asyncio.ensure_future(journal.generate([3]))
    await asyncio.sleep(0)
    assert (await late).token_ids[0] == 1
    journal.close()
    engine.error = EngineUnavailableError("away")
    engine.gate.set()
    for attempt in (failing, journal.generate([4])):
        with pytest.raises(CallCancelledError, match="is over"):
            await attempt
    with pytest.raises(CallCancelledError):
        journal.committed(commit(tree, [2], generation), generation)
    assert len(written.events) == 1 and journal.turns == 0
    journal.write(EventKind.END, {})
    assert len(written.events) == 2


async def test_a_tool_call_that_is_over_makes_no_more_turns() -> None:
    journal = Journal(Engine(), "t/0")
    tree = TokenTree("t/0")
    within.set(("outer", "inner"))
    journal.opened("inner", settled=False)
    await made(journal, tree, [1])
    journal.ended("inner")
    with pytest.raises(CallCancelledError, match="inside of"):
        await made(journal, tree, [2])
    within.set(("outer",))
    await made(journal, tree, [2])
    within.set(("outer", "inner"))
    journal.opened("inner", settled=False)  # a hook had it run once more
    await made(journal, tree, [3])
    assert journal.calls_within == {"outer": 3, "inner": 2}


async def test_inside_of_a_settled_call_only_what_is_on_record_is_said() -> None:
    written, tree = Written(), TokenTree("t/0")
    journal = Journal(Engine(), "t/0", chain=written.chain)
    within.set(("x",))
    await made(journal, tree, [1])
    engine = Engine()
    again = Journal(engine, "t/0", chain=Written().chain, recorded=written.recorded())
    again.opened("x", settled=True)
    await made(again, TokenTree("t/0"), [1])
    with pytest.raises(CallCancelledError, match="inside of"):
        await again.generate([2])
    assert not engine.asked


async def test_a_turn_that_cannot_be_written_ends_the_episode() -> None:
    """Those behind it would have to be written without it."""
    full: list[bytes] = []

    def refuse(data: bytes) -> None:
        if len(full) == 1:
            raise LedgerError("no space left")
        full.append(data)

    journal, tree = Journal(Engine(), "t/0", chain=Chain(refuse, "t/0")), TokenTree("t/0")
    await made(journal, tree, [1])
    with pytest.raises(LedgerError):
        await made(journal, tree, [2])
    with pytest.raises(CallCancelledError):
        await made(journal, tree, [3])
    assert journal.turns == 1 and len(tree) == 2


async def test_an_agent_that_begins_anew_begins_its_record_anew() -> None:
    written, engine = Written(), Engine()
    journal = Journal(engine, "t/0", chain=written.chain)
    tree = TokenTree("t/0")
    for number in range(3):
        await made(journal, tree, [1, number])
    fresh = TokenTree("t/0")  # the model was reset
    for number in range(2):
        await made(journal, fresh, [2, number])
    assert written.told() == [("call", 0), ("call", 1), ("call", 2), ("cut", 0), ("call", 0), ("call", 1)]
    assert journal.turns == 2
