"""What is sent goes to the address that was given and to no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ledger.episodes import RUN, Recorder
from scripted import ScriptedServer, Wire, encoded, scripted
from strands_sglang import SGLangClient
from strands_sglang.errors import RequestRejectedError
from strands_sglang.ledger.seal import write_run
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.proof.rescore import rescore

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
async def test_a_redirect_to_anywhere_is_one_request(target: str) -> None:
    with redirecting(307, target) as server:
        async with SGLangClient(server.url, max_retries=3) as client:
            with pytest.raises(RequestRejectedError, match="redirect") as caught:
                await ask(client)
    assert len(server.generates()) == 1
    assert PASSWORD not in str(caught.value)


async def test_rescoring_follows_none_either(tmp_path: Path) -> None:
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
