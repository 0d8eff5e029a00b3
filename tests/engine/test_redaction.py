"""What a server repeats of a client's own secrets reaches no error, no log and no ledger."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang import SGLangClient
from strands_sglang.engine import AbortPolicy
from strands_sglang.engine.redaction import Redactor
from strands_sglang.errors import ContextOverflowError, StrandsSGLangError
from strands_sglang.ledger.reader import Ledger
from strands_sglang.runs import RunOptions, Task, rollout
from support.families import tokenizer
from support.rollout.agent_kinds import plain
from support.scripted import Received, ScriptedServer, Wire, encoded

KEY, PASSWORD, TENANT = "sk-SECRET/0123+456", 'pass"word', "tenant-4711"
BASIC = base64.b64encode(f"user:{PASSWORD}".encode()).decode()
SETTINGS: list[dict[str, Any]] = [
    {"api_key": KEY},
    {"headers": {"X-Tenant": TENANT}},
    {"headers": {"authorization": f"Basic {BASIC}"}},
]
FORBIDDEN = [KEY, PASSWORD, TENANT, BASIC, json.dumps(PASSWORD)[1:-1]]

Ask = Callable[[SGLangClient], Awaitable[object]]


def clean(text: str) -> bool:
    return not any(secret[:8] in text for secret in FORBIDDEN)


def told(received: Received) -> str:
    """Return the headers as a proxy repeats them, with the password of Basic credentials decoded."""
    text = json.dumps(received.headers)
    return text + PASSWORD if BASIC in text else text


def echoing(reply: Callable[[str, Received], tuple[int, bytes]]) -> ScriptedServer:
    async def handle(wire: Wire) -> None:
        received = await wire.read_body()
        if received.path == "/generate":
            status, body = reply(told(received), received)
            await wire.reply(body, status)
        else:
            await wire.reply(orjson.dumps({"error": told(received)}), 404)

    return ScriptedServer(handle)


def error_of(status: int, before: str = "") -> Callable[[str, Received], tuple[int, bytes]]:
    return lambda words, _: (status, orjson.dumps({"error": {"message": before + words}}))


def aborted(**finish: Any) -> Callable[[str, Received], tuple[int, bytes]]:
    def reply(words: str, received: Received) -> tuple[int, bytes]:
        ids: list[int] = [] if finish.get("status_code") else [1]
        return 200, encoded(received, ids, finish_reason={"type": "abort", "message": words, **finish})

    return reply


def malformed(words: str, received: Received) -> tuple[int, bytes]:
    return 200, encoded(received, finish_reason={"type": "stop", "matched": {"a": words}})


def cut_off(words: str, received: Received) -> tuple[int, bytes]:
    """A message is shown up to 2,000 characters: the 15 last of them are the beginning of the header."""
    header = received.headers.get("authorization") or received.headers.get("x-tenant", "")
    return 400, b"x" * 1985 + header.encode()


REPLIES = {
    "400": error_of(400),
    "401": error_of(401),
    "retried 500": error_of(500),
    "plain text": lambda words, _: (400, words.encode()),
    "cut off": cut_off,
    "context overflow": error_of(400, "Input length (9 tokens) exceeds the maximum allowed length (8 tokens): "),
    "abort with a status": aborted(status_code=400),
    "abort with a transient status": aborted(status_code=503),
    "answered with a list": lambda words, _: (200, orjson.dumps([words])),
    "malformed": malformed,
    "aborted again and again": aborted(),
}

REFUSED = ("400", "401", "plain text", "cut off", "context overflow")  # at once: scoring has retries of its own


async def generate(client: SGLangClient) -> object:
    return await client.generate([1, 2, 3], {"max_new_tokens": 9, "stop": ["."]})


async def stream(client: SGLangClient) -> object:
    return [chunk async for chunk in client.stream([1, 2, 3], {"max_new_tokens": 9, "stop": ["."]})]


async def score(client: SGLangClient) -> object:
    return await client.score([1, 2, 3], 1)


@pytest.mark.parametrize("settings", SETTINGS, ids=["key", "header", "password"])
@pytest.mark.parametrize("name", REPLIES)
async def test_no_error_and_no_log_line_has_a_secret(
    name: str, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with echoing(REPLIES[name]) as server:
        async with SGLangClient(
            server.url, max_retries=1, retry_delay=0.001, max_retry_delay=0.002, **settings
        ) as client:
            for ask in (generate, stream, score) if name in REFUSED else (generate, stream):
                with pytest.raises(StrandsSGLangError) as caught:
                    await ask(client)
                error = caught.value
                shown = [*traceback.format_exception(error), repr(pickle.loads(pickle.dumps(error)).__dict__)]
                assert clean("".join(shown)), shown
                if name == "context overflow":
                    assert isinstance(error, ContextOverflowError) and error.requested_tokens == 9
    assert clean(caplog.text)


async def test_an_aborted_turn_has_no_secret() -> None:
    with echoing(aborted()) as server:
        async with SGLangClient(server.url, api_key=KEY) as client:
            turn = await client.generate([1], {"max_new_tokens": 9}, on_abort=AbortPolicy.RETURN)
    assert isinstance(turn.finish_detail, str) and "***" in turn.finish_detail and clean(turn.finish_detail)


async def test_answers_to_control_calls_have_no_secret() -> None:
    async def repeat(wire: Wire) -> None:
        received = await wire.read_body()
        ok = received.path == "/pause_generation"
        await wire.reply(f"got {told(received)}".encode(), 200 if ok else 404)

    with ScriptedServer(repeat) as server:
        async with SGLangClient(server.url, api_key=KEY) as client:
            results = [*await client.control.pause(), *await client.control.abort_all()]
    assert [result.ok for result in results] == [True, False]
    assert all("***" in result.message and clean(result.message) for result in results)


async def test_an_unreadable_answer_is_quoted_without_secret(caplog: pytest.LogCaptureFixture) -> None:
    """The HTTP library quotes a line that it cannot read, in an error that is the cause of ours."""
    caplog.set_level(logging.DEBUG)

    async def garble(wire: Wire) -> None:
        await wire.read_body()
        await wire.send(f"HTTP/1.1 2oo {wire.received.headers['authorization']}\r\n\r\n".encode())
        await wire.close()

    with ScriptedServer(garble) as server:
        async with SGLangClient(server.url, max_retries=0, api_key=KEY) as client:
            for ask in (generate, stream):
                with pytest.raises(StrandsSGLangError) as caught:
                    await ask(client)
                assert clean("".join(traceback.format_exception(caught.value)))
            assert await client.probe(5.0).clock_offset(server.url) is None
    assert clean(caplog.text)


async def test_a_ledger_has_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with echoing(error_of(400, "budget exceeded for key ")) as server:
        (episode,) = await rollout(
            lambda task, model: plain(model),
            [Task("x", id="t")],
            client=SGLangClient(server.url, api_key=KEY),
            tokenizer=tokenizer("qwen2.5"),
            directory=tmp_path,
            options=RunOptions(preflight=False),
        )
    assert episode.failure is not None and "budget exceeded for key" in episode.failure.message
    assert clean(str(episode.failure)) and clean(caplog.text)
    assert clean(str([record.events for record in Ledger(tmp_path).episodes()]))
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY[:8].encode() in path.read_bytes()]


SECRETS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="*"), min_size=4, max_size=40)


@given(SECRETS, st.text(max_size=20), st.text(max_size=20), st.integers(8, 40))
def test_a_secret_is_replaced_whole_or_cut_off(secret: str, before: str, after: str, length: int) -> None:
    redactor = Redactor({"Authorization": f"Bearer {secret}"})
    for words in (secret, f"Bearer {secret}", secret[:length], json.dumps(secret)[1:-1]):
        assert secret[:8] not in redactor.text(f"{before}{words}{after}")


@given(st.text())
def test_other_text_is_kept(text: str) -> None:
    assert Redactor({"Authorization": "Bearer \u2603\u2603\u2603\u2603"}).text(text) == text
    assert Redactor({"X-Short": "a"}).text(text) == text
