"""Ten thousand requests into a server that fails in every way a connection can: each ends right, or in the right error.

Every case knows its outcome and how many requests it takes. A case is named by its routing key, so the server knows
which fault to play and how often; nothing is left to chance but the order.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from strands_sglang import Generation, SGLangClient
from strands_sglang.errors import (
    ConnectionLostError,
    ContextOverflowError,
    CountMismatchError,
    DeadlineExceededError,
    EngineBusyError,
    EngineGarbledError,
    EngineUnreachableError,
    MalformedResponseError,
    RequestRejectedError,
)
from support.examples import size
from support.scripted import Reply, ScriptedServer, Wire, answer, encoded, head, says, serve_rest

REQUESTS = size(1_000, 10_000)
AT_ONCE = size(100, 250)
DEADLINE = 30.0
SHORT_DEADLINE = 0.5
# How far past its deadline a call may be seen to end, beside what the loop itself, busy with 250 calls, is late.
GRACE = 2.0
IDS = list(range(100, 140))
RETRIES = 3


@dataclass(frozen=True)
class Case:
    """A fault, how often it is played, and what must come of it."""

    name: str
    play: Reply
    times: int
    outcome: type[Exception] | None = None
    cause: type[Exception] | None = None
    requests: int | None = None
    deadline: float = DEADLINE


def whole(wire: Wire) -> bytes:
    body = encoded(wire.received, IDS)
    return head(len(body)) + body


def reset_at(place: Callable[[bytes], int]) -> Reply:
    async def play(wire: Wire) -> None:
        data = whole(wire)
        await wire.send(data[: place(data)])
        await asyncio.sleep(0.001)  # let it arrive before the reset overtakes it
        await wire.reset()

    return play


async def reset_before_the_body_is_read(wire: Wire) -> None:
    await wire.reset()


def cut_at(place: Callable[[bytes], int]) -> Reply:
    async def play(wire: Wire) -> None:
        data = whole(wire)
        await wire.send(data[: place(data)])
        await wire.close()

    return play


def answers(**meta: Any) -> Reply:
    """Answer with parts of meta_info (or, with `_`, of the body) replaced."""

    async def play(wire: Wire) -> None:
        body = answer(wire.received, IDS, **{k: v for k, v in meta.items() if not k.startswith("_")})
        body.update({k[1:]: v for k, v in meta.items() if k.startswith("_")})
        await wire.reply(orjson.dumps(body))

    return play


async def slow_head(wire: Wire) -> None:
    for byte in whole(wire)[:60]:
        await asyncio.sleep(0.05)
        await wire.send(bytes([byte]))
    await wire.close()


async def silent(wire: Wire) -> None:
    await asyncio.sleep(120)


async def huge(wire: Wire) -> None:
    await wire.reply(encoded(wire.received, IDS, hidden_states="x" * 3_000_000))


def boundary(data: bytes) -> int:
    return data.index(b"\r\n\r\n") + 4


PLACES: dict[str, Callable[[bytes], int]] = {
    "before the first byte": lambda data: 0,
    "in the status line": lambda data: 7,
    "in the headers": lambda data: 40,
    "at the end of the headers": boundary,
    "after one byte of the body": lambda data: boundary(data) + 1,
    "in the middle of the body": lambda data: (boundary(data) + len(data)) // 2,
    "one byte before the end": lambda data: len(data) - 1,
}
LONG = "The input (9 tokens) is longer than the model's context length (8 tokens)."
NULL_LOGPROB = [[None, i, None] for i in IDS]
GAP = [{"version": "1", "start": 0, "end": 3}, {"version": "2", "start": 4, "end": len(IDS)}]
FOREVER = RETRIES + 1
GIVEN_UP: dict[str, Any] = {"times": FOREVER, "requests": FOREVER}
REFUSED: dict[str, Any] = {"times": 1, "outcome": RequestRejectedError, "requests": 1}
MISCOUNTED: dict[str, Any] = {"times": 1, "outcome": CountMismatchError, "requests": 1}
MALFORMED: dict[str, Any] = {"times": 1, "outcome": MalformedResponseError, "requests": 1}

CASES = [
    Case("no fault", says(200, b""), 0, requests=1),
    *(
        Case(f"reset {name}", reset_at(place), times, requests=times + 1)
        for name, place in PLACES.items()
        for times in (1, 2)
    ),
    *(Case(f"cut {name}", cut_at(place), 1, requests=2) for name, place in PLACES.items()),
    Case("reset before the body is read", reset_before_the_body_is_read, 1, requests=2),
    *(
        Case(
            f"{name} for ever",
            lose(PLACES["in the middle of the body"]),
            outcome=EngineUnreachableError,
            cause=ConnectionLostError,
            **GIVEN_UP,
        )
        for name, lose in (("reset", reset_at), ("cut", cut_at))
    ),
    *(
        Case(f"storm of {code}", says(code, b"busy"), RETRIES, requests=FOREVER)
        for code in (408, 409, 425, 429, 500, 502, 503, 504, 529)
    ),
    Case("503 with Retry-After", says(503, b"busy", **{"Retry-After": "0.01"}), 2, requests=3),
    Case("503 for ever", says(503, b"busy"), outcome=EngineBusyError, **GIVEN_UP),
    Case("JSON cut short", says(200, encoded(6, IDS)[:-30]), 1, requests=2),
    Case(
        "JSON cut short for ever",
        says(200, encoded(6, IDS)[:-30]),
        outcome=EngineGarbledError,
        cause=MalformedResponseError,
        **GIVEN_UP,
    ),
    Case("not UTF-8", says(200, b'{"text": "\xc3\x28", "meta_info": {}}'), 2, requests=3),
    Case(
        "not UTF-8 for ever",
        says(200, b"\xff\xfe\xfd"),
        outcome=EngineGarbledError,
        cause=MalformedResponseError,
        **GIVEN_UP,
    ),
    Case("a proxy's page", says(200, b"<html>Bad gateway</html>"), 1, requests=2),
    Case("an empty 200", says(200, b""), 1, requests=2),
    Case("400", says(400, b'{"error":{"message":"top_k exceeds vocab size"}}'), **REFUSED),
    Case("422", says(422, b"Failed to deserialize the JSON body"), **REFUSED),
    Case("404 with a huge body", says(404, b"x" * 2_000_000), **REFUSED),
    Case("overflow", says(400, orjson.dumps({"error": {"message": LONG}})), 1, ContextOverflowError, requests=1),
    Case("fewer logprobs", answers(output_token_logprobs=[[-0.1, IDS[0], None]]), **MISCOUNTED),
    Case("more ids", answers(_output_ids=[*IDS, 1]), **MISCOUNTED),
    Case("another id", answers(_output_ids=[1, *IDS[1:]]), **MISCOUNTED),
    Case("completion tokens", answers(completion_tokens=3), **MISCOUNTED),
    Case("prompt cut by the engine", answers(prompt_tokens=1), **MISCOUNTED),
    Case("version spans with a gap", answers(weight_versions=GAP), **MISCOUNTED),
    Case("no logprobs", answers(output_token_logprobs=None), **MISCOUNTED),
    Case("null logprob", answers(output_token_logprobs=NULL_LOGPROB), **MALFORMED),
    Case("null finish reason", answers(finish_reason=None), **MALFORMED),
    Case("null meta_info", answers(_meta_info=None), **MALFORMED),
    Case("null body", says(200, b"null"), **MALFORMED),
    Case("a list", says(200, b"[]"), **MALFORMED),
    Case(
        "harmless nulls",
        answers(cached_tokens=None, weight_version=None, weight_versions=None, _text=None),
        1,
        requests=1,
    ),
    Case("ids only beside the logprobs", answers(_output_ids=None), 1, requests=1),
    Case("huge body", huge, 1, requests=1),
    Case("slow headers", slow_head, FOREVER, DeadlineExceededError, deadline=SHORT_DEADLINE),
    Case("silence", silent, FOREVER, DeadlineExceededError, deadline=SHORT_DEADLINE),
]
# Some cases hold their place for half a second or carry megabytes; they come up less often.
WEIGHTS = [0.15 if case.deadline < DEADLINE or "huge" in case.name else 1.0 for case in CASES]


def playing() -> tuple[ScriptedServer, Counter[str]]:
    seen: Counter[str] = Counter()
    cases = {str(number): case for number, case in enumerate(CASES)}

    async def handle(wire: Wire) -> None:
        if await serve_rest(wire):
            return
        key = wire.received.headers["x-smg-routing-key"]
        case = cases[key.split(":")[0]]
        seen[key] += 1
        if case.play is not reset_before_the_body_is_read or seen[key] > case.times:
            await wire.read_body()
        await (case.play(wire) if seen[key] <= case.times else wire.reply(encoded(wire.received, IDS)))

    return ScriptedServer(handle), seen


async def test_thousands_of_requests_through_every_fault() -> None:
    server, seen = playing()
    dice = random.Random(7)
    order = [*range(len(CASES)), *dice.choices(range(len(CASES)), WEIGHTS, k=REQUESTS - len(CASES))]
    dice.shuffle(order)
    wrong: list[str] = []
    ended: Counter[str] = Counter()
    late: dict[str, float] = defaultdict(float)
    todo = iter(enumerate(order))
    stalled = 0.0

    async def watch() -> None:
        nonlocal stalled
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.05)
            stalled = max(stalled, time.monotonic() - before - 0.05)

    async def work(client: SGLangClient) -> None:
        for number, index in todo:
            case, key = CASES[index], f"{index}:{number}"
            started = time.monotonic()
            result: Generation | Exception
            try:
                result = await client.generate(
                    [1, 2, 3, 4, 5, 6], {"max_new_tokens": 50}, routing_key=key, deadline=case.deadline
                )
            except Exception as error:
                result = error
            took = time.monotonic() - started
            late[case.name] = max(late[case.name], took - case.deadline)
            ended[type(result).__name__] += 1
            grace = GRACE + 2 * stalled  # a call passes through the loop more than once
            wrong.extend(f"{case.name}: {problem}" for problem in problems(case, result, seen[key], took, grace))

    with server:
        async with SGLangClient(server.url, max_connections=AT_ONCE, max_retries=RETRIES, retry_delay=0.002) as client:
            started = time.monotonic()
            watching = asyncio.create_task(watch())
            await asyncio.wait_for(asyncio.gather(*(work(client) for _ in range(AT_ONCE))), 400)
            watching.cancel()
            took = time.monotonic() - started
            print(f"{REQUESTS} requests in {took:.1f} s, the loop late by {stalled:.2f} s: {dict(ended)}")
    assert sum(ended.values()) == REQUESTS
    assert not wrong, f"{len(wrong)} wrong, first: {wrong[:10]}"


def problems(case: Case, result: Generation | Exception, requests: int, took: float, grace: float) -> list[str]:
    found = []
    if case.outcome is None:
        if not isinstance(result, Generation):
            found.append(f"should have come through, got {result!r}")
        elif list(result.token_ids) != IDS or len(result.logprobs) != len(IDS):
            found.append("wrong tokens")
        elif result.requests != requests:
            found.append(f"says {result.requests} requests, the server saw {requests}")
    elif type(result) is not case.outcome:
        found.append(f"should have been {case.outcome.__name__}, is {result!r}")
    elif not str(result):
        found.append("error without a word")
    elif case.cause is not None and not isinstance(result.__cause__, case.cause):
        found.append(f"cause is {result.__cause__!r}")
    if case.requests is not None and requests != case.requests:
        found.append(f"took {requests} requests instead of {case.requests}")
    if took > case.deadline + grace:
        found.append(f"ended {took - case.deadline:.1f} s past its deadline")
    return found


async def test_connections_reset_as_they_are_accepted() -> None:
    async def handle(wire: Wire) -> None:
        if not await serve_rest(wire):
            await wire.read_body()
            await wire.reply(encoded(wire.received, IDS), headers={"Connection": "close"})
            await wire.close()

    with ScriptedServer(handle, reset_on_accept=lambda number: number % 3 == 0) as server:
        async with SGLangClient(server.url, max_connections=50, retry_delay=0.002) as client:
            generations = await asyncio.gather(
                *(client.generate([1], {"max_new_tokens": 50}) for _ in range(size(150, 500)))
            )
    assert all(list(generation.token_ids) == IDS for generation in generations)
