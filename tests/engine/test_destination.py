"""What is sent goes to the address that was given and to no other, and its password is shown to nobody."""

from __future__ import annotations

import base64
import logging
import pickle
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from strands_sglang import SGLangClient
from strands_sglang.errors import ConfigurationError, RequestRejectedError, StrandsSGLangError
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.run_dir import write_run
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.proof.rescore import rescore
from strands_sglang.runs import RunOptions, Task, rollout
from support.families import tokenizer
from support.ledger.episodes import RUN, Recorder
from support.rollout.agent_kinds import plain
from support.scripted import ScriptedServer, Wire, encoded, scripted

Ask = Callable[[SGLangClient], Awaitable[object]]
KEY, PASSWORD = "sk-a-key", "pass-word-9"


async def ask(client: SGLangClient) -> object:
    return await client.generate([1, 2, 3], {"max_new_tokens": 4})


async def ask_streaming(client: SGLangClient) -> object:
    return [chunk async for chunk in client.stream([1, 2, 3], {"max_new_tokens": 4})]


async def ask_about_the_model(client: SGLangClient) -> object:
    return await client.control.model_info()


def redirecting(status: int, target: str) -> ScriptedServer:
    async def handle(wire: Wire) -> None:
        await wire.read_body()
        await wire.reply(b"", status, {"Location": target})

    return ScriptedServer(handle)


@pytest.mark.parametrize("way", [ask, ask_streaming, ask_about_the_model])
@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(status: int, way: Ask) -> None:
    with scripted(lambda received: encoded(3)) as other, redirecting(status, f"{other.url}/x?token=secret") as server:
        headers = {"X-Team": "t"}
        async with SGLangClient(server.url, max_retries=0, api_key=KEY, headers=headers) as client:
            with pytest.raises(RequestRejectedError, match="redirect") as caught:
                await way(client)
    assert not other.received
    assert caught.value.status == status
    assert other.url in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize("target", ["", "/generate", "//", "http://[", "http://user:pass-word-9@host/"])
async def test_redirect_is_one_request(target: str) -> None:
    with redirecting(307, target) as server:
        async with SGLangClient(server.url, max_retries=3) as client:
            with pytest.raises(RequestRejectedError, match="redirect") as caught:
                await ask(client)
    assert len(server.generates()) == 1
    assert PASSWORD not in str(caught.value)


async def test_rescoring_follows_no_redirect(tmp_path: Path) -> None:
    write_run(tmp_path, {"run": RUN})
    writer = LedgerWriter(tmp_path)
    recorder = Recorder(writer.write)
    recorder.call(None, context=[1], sampled=[2, 3], logprobs=[-1.0, -1.0], versions=[("v2", 0, 2)])
    recorder.end()
    writer.close()
    with scripted(lambda received: encoded(3)) as other:

        async def handle(wire: Wire) -> None:
            await wire.read_body()
            if wire.received.path == "/model_info":
                await wire.reply(b'{"model_path": "m", "weight_version": "v2"}')
            elif wire.received.path == "/generate":
                await wire.reply(b"", 307, {"Location": other.url})
            else:
                await wire.reply(b"{}", 404)

        with ScriptedServer(handle) as server:
            report = await rescore(tmp_path, server.url)
    assert not other.received and "redirect" in report.failures[0]


def refusing() -> ScriptedServer:
    async def handle(wire: Wire) -> None:
        await wire.read_body()
        await wire.reply(b'{"detail": "no"}', 403)

    return ScriptedServer(handle)


def with_password(url: str) -> str:
    return url.replace("http://", f"http://user:{PASSWORD}@")


async def test_password_in_url_is_sent_and_not_shown() -> None:
    with scripted(lambda received: encoded(received)) as server:
        async with SGLangClient(with_password(server.url)) as client:
            await ask(client)
            assert client.base_url == server.url and PASSWORD not in repr(client)
        async with pickle.loads(pickle.dumps(client)) as again:
            await ask(again)
    told = [base64.b64decode(one.headers["authorization"].removeprefix("Basic ")) for one in server.generates()]
    assert told == [f"user:{PASSWORD}".encode()] * 2


@pytest.mark.parametrize("way", [ask, ask_streaming, ask_about_the_model])
async def test_no_error_and_no_log_line_has_the_password(way: Ask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with refusing() as server:
        addresses = [with_password(server.url), f"http://user:{PASSWORD}@127.0.0.1:9"]
        for address in addresses:
            async with SGLangClient(address, max_retries=1, retry_delay=0.001, max_retry_delay=0.002) as client:
                with pytest.raises(StrandsSGLangError) as caught:
                    await way(client)
                assert PASSWORD not in "".join(traceback.format_exception(caught.value))
    assert PASSWORD not in caplog.text


@pytest.mark.parametrize("address", ["ftp://user:{}@host", "user:{}@host", "http://user:{}@host:port", "http://u:{}@"])
def test_invalid_url_is_shown_without_password(address: str) -> None:
    with pytest.raises(ConfigurationError, match="base_url") as caught:
        SGLangClient(address.format(PASSWORD))
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_password_with_api_key_is_refused() -> None:
    for settings in ({"api_key": KEY}, {"headers": {"authorization": KEY}}):
        with pytest.raises(ConfigurationError, match="pass only one of them"):
            SGLangClient(f"http://user:{PASSWORD}@host", **settings)


async def test_a_ledger_has_no_password(tmp_path: Path) -> None:
    with refusing() as server:
        given: dict[str, Any] = {"tokenizer": tokenizer("qwen2.5"), "base_url": with_password(server.url)}
        with pytest.raises(ConfigurationError, match="does not accept the api_key") as caught:
            await rollout(lambda task, model: plain(model), [Task("x", id="t")], directory=tmp_path, **given)
        assert PASSWORD not in "".join(traceback.format_exception(caught.value))
        (episode,) = await rollout(
            lambda task, model: plain(model),
            [Task("x", id="t")],
            directory=tmp_path,
            options=RunOptions(preflight=False),
            **given,
        )
    assert episode.failure is not None and PASSWORD not in str(episode.failure)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
    assert PASSWORD not in str([record.events for record in Ledger(tmp_path).episodes()])
