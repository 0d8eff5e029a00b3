"""Kept sets: requested, read, joined over continuations, and never missing in silence."""

from __future__ import annotations

import asyncio
import threading
from array import array
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang import SGLangClient
from strands_sglang.engine import AbortPolicy, FinishReason, Generation, kept_sets
from strands_sglang.engine.continuation import Continuation, NextStep
from strands_sglang.engine.request import GenerateRequest
from strands_sglang.engine.response import parse
from strands_sglang.errors import CountMismatchError, KeptSetsMissingError, MalformedResponseError
from strands_sglang.tokens import KeptSets, VersionSpan
from support.examples import examples
from support.scripted import Reply, ScriptedServer, Wire, in_turn, says
from support.scripted import answer as scripted_answer


def answer(**meta: Any) -> dict[str, Any]:
    return scripted_answer(3, [1, 2], **{"output_token_logprobs": [-0.5, 1, None, -0.25, 2, None], **meta})


SETS = {"output_token_sampling_mask": [[1, 5], [2]], "output_token_sampling_logprobs": [-0.1, 0.0]}


def test_sets_are_requested() -> None:
    body = orjson.loads(GenerateRequest([1, 2, 3], kept_sets=True).body(0))
    assert body["return_sampling_mask"] is True and body["sampling_logprobs_mode"] == "selected"
    assert "return_sampling_mask" not in orjson.loads(GenerateRequest([1, 2, 3]).body(0))


async def read(answer: dict[str, Any], option: int = 0) -> Generation:
    with answering(orjson.dumps(answer, option=option)) as server:
        async with SGLangClient(server.url, max_retries=0) as client:
            return await client.generate([7, 8, 9], {"max_new_tokens": 4}, kept_sets=True)


def answering(*bodies: bytes) -> ScriptedServer:
    """Return a server that answers with these bodies, one after the other."""
    return in_turn(*(says(200, body) for body in bodies))


@pytest.mark.parametrize("option", [0, orjson.OPT_INDENT_2], ids=["as the engine writes", "written again by a proxy"])
async def test_sets_are_read(option: int) -> None:
    turn = await read(answer(**SETS, output_token_sampling_mask_length=2), option)
    assert turn.kept == KeptSets.of([[1, 5], [2]], [-0.1, 0.0])
    assert turn.logprobs.tolist() == [-0.5, -0.25], "the logprobs over the whole vocabulary stay as they are"
    assert not turn.meta.keys() & SETS.keys() and "output_token_sampling_mask_length" not in turn.meta
    assert parse(answer(**SETS), 3).kept is None


@pytest.mark.parametrize(
    ("meta", "error", "problem"),
    [
        ({}, CountMismatchError, "no kept sets"),
        ({**SETS, "output_token_sampling_mask": [[1, 5]]}, MalformedResponseError, "kept sets"),
        ({**SETS, "output_token_sampling_mask": []}, MalformedResponseError, "kept sets"),
        ({**SETS, "output_token_sampling_mask": [[1, 5], [3]]}, CountMismatchError, "not in its kept set"),
        ({**SETS, "output_token_sampling_mask": [[1, 5], []]}, CountMismatchError, "not in its kept set"),
        ({**SETS, "output_token_sampling_mask": [[1, 5], [2.5]]}, MalformedResponseError, "kept"),
        ({**SETS, "output_token_sampling_mask": [[1, 5], ["2"]]}, MalformedResponseError, "kept"),
        ({**SETS, "output_token_sampling_mask": [1, 2]}, MalformedResponseError, "kept"),
        ({**SETS, "output_token_sampling_logprobs": [-0.1, 7.0]}, MalformedResponseError, "logprobs must be"),
        ({**SETS, "output_token_sampling_logprobs": None}, CountMismatchError, "no kept sets"),
    ],
)
async def test_what_does_not_fit_is_refused(meta: dict[str, Any], error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        await read(answer(**meta))


def aborted_in_queue(ids: list[int]) -> bytes:
    """Return what SGLang answers to a request that it retracted and then aborted in its queue."""
    meta = {
        "id": "r",
        "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
        "weight_version": "1",
        "output_token_logprobs": [[-0.5, token, None] for token in ids],
        "completion_tokens": len(ids),
    }
    return orjson.dumps({"text": "", "output_ids": ids, "meta_info": meta})


async def test_tokens_that_come_without_sets_are_sampled_again(caplog: pytest.LogCaptureFixture) -> None:
    with answering(aborted_in_queue([4, 4, 4]), orjson.dumps(answer(**SETS))) as server:
        async with SGLangClient(server.url, retry_delay=0.001) as client:
            turn = await client.generate([7, 8, 9], {"max_new_tokens": 4}, kept_sets=True)
    assert turn.token_ids.tolist() == [1, 2] and turn.kept is not None
    assert turn.discarded_tokens == 3 and turn.requests == 2
    assert [request.json()["input_ids"] for request in server.generates()] == [[7, 8, 9]] * 2
    assert "without their kept sets" in caplog.text


async def test_a_partial_turn_without_sets_is_returned_as_it_is() -> None:
    with answering(aborted_in_queue([4, 5])) as server:
        async with SGLangClient(server.url, max_retries=0) as client:
            turn = await client.generate([7, 8, 9], {"max_new_tokens": 4}, kept_sets=True, on_abort=AbortPolicy.RETURN)
    assert turn.finish_reason is FinishReason.ABORT and turn.token_ids.tolist() == [4, 5] and turn.kept is None


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return a list of the threads in which sets are decoded, with how many."""
    found: list[tuple[str, int]] = []
    decode = kept_sets._decoded

    def noted(received: list[kept_sets.SetsText]) -> KeptSets:
        found.append((threading.current_thread().name, sum(len(orjson.loads(text.sets)) for text in received)))
        return decode(received)

    monkeypatch.setattr(kept_sets, "_decoded", noted)
    return found


async def test_large_sets_are_decoded_beside_the_event_loop(decoded: list[tuple[str, int]]) -> None:
    large = [[1, *range(5, 70_000)], [2]]
    turn = await read(answer(**{**SETS, "output_token_sampling_mask": large}))
    assert turn.kept == KeptSets.of(large, [-0.1, 0.0])
    await read(answer(**SETS))
    assert decoded[0][0].startswith("strands-sglang") and decoded[1][0] == threading.current_thread().name


@settings(max_examples=examples(100))
@given(st.lists(st.lists(st.integers(0, 9999), min_size=1, max_size=4), max_size=40), st.integers(1, 60))
def test_sets_are_the_same_however_they_are_cut(sets: list[list[int]], size: int) -> None:
    text = kept_sets.SetsText(orjson.dumps(sets), orjson.dumps([-0.5] * len(sets)))
    before, kept_sets._PIECE_BYTES = kept_sets._PIECE_BYTES, size
    try:
        assert kept_sets._decoded([text]) == KeptSets.of(sets, [-0.5] * len(sets))
    finally:
        kept_sets._PIECE_BYTES = before


def streamed(incremental: bool, count: int) -> list[dict[str, Any]]:
    """Return the events of a turn of `count` tokens with sets, without its end."""
    events = []
    for end in range(1, count + 1):
        start = end - 1 if incremental else 0
        meta = {
            "finish_reason": None,
            "prompt_tokens": 3,
            "completion_tokens": end,
            "weight_version": "1",
            "output_token_logprobs": [[-0.5, token, None] for token in range(start, end)],
            "output_token_sampling_mask": [[token, 99] for token in range(start, end)],
            "output_token_sampling_logprobs": [-0.1] * (end - start),
        }
        events.append({"output_ids": list(range(start, end)), "meta_info": meta})
    return events


def streaming(*attempts: list[bytes], apart: bool = True) -> ScriptedServer:
    def sends(events: list[bytes]) -> Reply:
        pieces = [b"data: " + one + b"\n\n" for one in events]

        async def send(wire: Wire) -> None:
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
            for piece in pieces if apart else [b"".join(pieces)]:
                await wire.send(piece)
                await asyncio.sleep(0.01)
            await wire.close()

        return send

    return in_turn(*map(sends, attempts))


async def stream(server: ScriptedServer, **options: Any) -> Generation:
    async with SGLangClient(server.url, retry_delay=0.001) as client:
        chunks = [c async for c in client.stream([7, 8, 9], {"max_new_tokens": 9}, kept_sets=True, **options)]
    last = chunks[-1].generation
    assert last is not None
    assert [token for chunk in chunks for token in chunk.token_ids] == last.token_ids.tolist()
    return last


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("apart", [False, True])
async def test_sets_of_a_stream_are_decoded_once(
    incremental: bool, apart: bool, decoded: list[tuple[str, int]]
) -> None:
    events = streamed(incremental, 5)
    events[-1]["meta_info"]["finish_reason"] = {"type": "stop"}
    with streaming([*map(orjson.dumps, events), b"[DONE]"], apart=apart) as server:
        turn = await stream(server)
    assert turn.kept == KeptSets.of([[token, 99] for token in range(5)], [-0.1] * 5)
    assert [count for _, count in decoded] == [5]
    assert not turn.meta.keys() & SETS.keys()


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("apart", [False, True])
async def test_a_stream_keeps_the_sets_of_a_part_that_was_aborted_in_the_queue(incremental: bool, apart: bool) -> None:
    """The last event has no sets, those before it do."""
    abort = orjson.loads(aborted_in_queue([0, 1]))
    if incremental:
        abort["output_ids"] = [1]
    rest = answer(**{**SETS, "prompt_tokens": 5})
    first = [*map(orjson.dumps, streamed(incremental, 2)), orjson.dumps(abort), b"[DONE]"]
    with streaming(first, [orjson.dumps(rest), b"[DONE]"], apart=apart) as server:
        turn = await stream(server)
    assert turn.token_ids.tolist() == [0, 1, 1, 2] and turn.continuations == 1 and turn.discarded_tokens == 0
    assert turn.kept == KeptSets.of([[0, 99], [1, 99], [1, 5], [2]], [-0.1, -0.1, -0.1, 0.0])


async def test_a_broken_stream_keeps_its_sets() -> None:
    rest = answer(**{**SETS, "prompt_tokens": 5})
    with streaming([*map(orjson.dumps, streamed(False, 2))], [orjson.dumps(rest), b"[DONE]"]) as server:
        turn = await stream(server)
    assert turn.kept == KeptSets.of([[0, 99], [1, 99], [1, 5], [2]], [-0.1, -0.1, -0.1, 0.0])


async def test_a_stream_without_sets_is_refused_before_a_token_is_delivered() -> None:
    (event,) = streamed(False, 1)
    for name in SETS:
        del event["meta_info"][name]
    with streaming([orjson.dumps(event)]) as server:
        async with SGLangClient(server.url, max_retries=0) as client:
            chunks = client.stream([7, 8, 9], {"max_new_tokens": 9}, kept_sets=True)
            with pytest.raises(KeptSetsMissingError):
                await chunks.__anext__()


def part(ids: list[int], kept: KeptSets | None, finish: FinishReason) -> Generation:
    return Generation(
        array("i", ids), array("d", [-0.5] * len(ids)), finish, versions=(VersionSpan("1", 0, len(ids)),), kept=kept
    )


def test_parts_of_a_turn_are_joined() -> None:
    first, second = KeptSets.of([[1, 5]], [-0.1]), KeptSets.of([[2], [3, 4]], [0.0, -0.7])
    continuation = Continuation({"max_new_tokens": 9})
    assert continuation.add(part([1], first, FinishReason.ABORT)) is NextStep.CONTINUE
    assert continuation.add(part([2, 4], second, FinishReason.STOP)) is NextStep.WHOLE
    assert continuation.turn().kept == first.joined(second)
    mixed = Continuation({"max_new_tokens": 9})
    mixed.add(part([1], None, FinishReason.ABORT))
    mixed.add(part([2, 4], second, FinishReason.STOP))
    assert mixed.turn().kept is None, "sets of a part of a turn are no sets of the turn"


def test_a_part_without_sets_is_sampled_again_if_the_turn_needs_them() -> None:
    first, last = KeptSets.of([[1, 5]], [-0.1]), KeptSets.of([[2]], [0.0])
    continuation = Continuation({"max_new_tokens": 9}, kept=part([4], None, FinishReason.ABORT), kept_sets=True)
    assert continuation.partial is None, "also a part from an earlier call"
    assert continuation.add(part([1], first, FinishReason.ABORT)) is NextStep.CONTINUE
    assert continuation.add(part([6, 7], None, FinishReason.ABORT)) is NextStep.RESTART
    assert list(continuation.rest([9], None)[0]) == [9, 1]
    assert continuation.add(part([2], last, FinishReason.STOP)) is NextStep.WHOLE
    turn = continuation.turn()
    assert turn.token_ids.tolist() == [1, 2] and turn.kept == first.joined(last) and turn.discarded_tokens == 3
