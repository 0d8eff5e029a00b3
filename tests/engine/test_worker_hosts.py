"""Workers that a router names: what is sent to them, and addresses that cannot be meant."""

from __future__ import annotations

import logging
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from yarl import URL

from strands_sglang import SGLangClient
from strands_sglang.engine import Worker
from strands_sglang.engine import worker_hosts as module
from strands_sglang.engine.worker_hosts import WorkerHosts
from strands_sglang.errors import ConfigurationError, RequestRejectedError
from support.scripted import Reply, ScriptedServer, Wire, answer, in_turn, refuses

KEY = "sk-0123456789"
HEADERS = {"Authorization": f"Bearer {KEY}"}
OTHER = "localhost"


@pytest.mark.parametrize(
    ("base", "listed", "worker", "sent"),
    [
        ("http://10.0.0.1:30000", None, "http://10.0.0.1:30001", True),
        ("http://localhost:30000", None, "http://127.0.0.1:30001", True),
        ("http://10.0.0.1:30000", None, "http://10.0.0.2:30001", False),
        ("http://10.0.0.1:30000", None, "https://models.example", False),
        ("http://10.0.0.1:30000", [], "http://10.0.0.2:30001", None),
        ("http://10.0.0.1:30000", [], "http://10.0.0.1:30001", True),
        ("http://10.0.0.1:30000", ["10.0.0.2"], "http://10.0.0.2:30001", True),
        ("http://10.0.0.1:30000", ["10.0.0.2"], "http://10.0.0.3:30001", None),
        ("http://10.0.0.1:30000", ["10.0.0.*"], "http://10.0.0.3:30001", True),
        ("http://router", ["GPU*.Local", "[fd00::1]"], "http://gpu7.local:30001", True),
        ("http://router", ["GPU*.Local", "[fd00::1]"], "http://[fd00::1]:30001", True),
        ("http://router", ["gpu[12]"], "http://gpu2:30001", True),
        ("https://models.example", None, "https://models.example:8443", True),
        ("https://models.example", None, "http://models.example:30001", None),
        ("https://models.example", None, "http://10.0.0.2:30001", None),
        ("https://models.example", None, "https://gpu7.example", False),
        ("https://models.example", ["10.0.0.2"], "http://10.0.0.2:30001", True),
    ],
)
def test_headers_of_a_worker(base: str, listed: list[str] | None, worker: str, sent: bool | None) -> None:
    """`sent`: whether its requests have the client's headers; None: nothing is sent to it."""
    hosts, url = WorkerHosts(URL(base), listed, HEADERS), URL(worker)
    if sent is not None:
        assert hosts.headers_for(url) == (HEADERS if sent else {})
    else:
        with pytest.raises(RequestRejectedError, match=f"worker_hosts=.*'{url.host}'"):
            hosts.headers_for(url)
    assert hosts.owns(url) is (sent is True)
    advice = hosts.advice([URL(base), url])
    assert (advice == "") is (sent is True) and (sent is True or f"'{url.host}'" in advice)
    assert sent is None or not WorkerHosts(URL(base), listed, {}).advice([url])  # there is nothing to withhold


def test_workers_of_slime_are_listed() -> None:
    """Its engines are started and registered with the router by slime itself."""
    args = SimpleNamespace(sglang_router_ip="10.0.0.1", sglang_router_port=3000)
    assert SGLangClient.from_slime_args(args)._hosts.owns(URL("http://10.0.0.2:15000"))
    assert not SGLangClient.from_slime_args(args, worker_hosts=[])._hosts.owns(URL("http://10.0.0.2:15000"))


@pytest.mark.parametrize("listed", ["10.0.0.2", ["http://10.0.0.2"], ["10.0.0.2:30000"], [""], [7]])
def test_worker_hosts_are_hosts(listed: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"worker_hosts must be (a list of )?hosts"):
        SGLangClient(worker_hosts=listed)


def router(listed: list[Any]) -> ScriptedServer:
    """Return a router that drops fields of the request, so that calls with routed experts go to the workers."""

    async def handle(wire: Wire) -> None:
        await wire.read_body()
        if wire.received.path == "/workers":
            await wire.reply(orjson.dumps({"workers": listed}))
        else:
            is_call = wire.received.path == "/generate"
            await wire.reply(orjson.dumps(answer(1) if is_call else {}), 200 if is_call else 404)

    return ScriptedServer(handle)


async def call(url: str, worker_hosts: Collection[str] | None = None, stream: bool = False, **asked: Any) -> None:
    """Make a call that a router cannot forward completely: with kept sets, unless something else is asked."""
    async with SGLangClient(url, api_key=KEY, worker_hosts=worker_hosts, max_retries=0) as client:
        if asked:
            await client.generate([2], {"max_new_tokens": 4}, **asked)
        elif stream:
            _ = [chunk async for chunk in client.stream([2], {"max_new_tokens": 4}, kept_sets=True)]
        else:
            await client.generate([2], {"max_new_tokens": 4}, kept_sets=True)


def samples(wire: Wire) -> Any:
    sets: dict[str, Any] = {"output_token_sampling_mask": [[7]], "output_token_sampling_logprobs": [0.0]}
    return wire.reply(orjson.dumps(answer(wire.received, [7], [0.0], **sets) | {"prompt_token_ids": [2]}))


@pytest.mark.parametrize(
    ("reply", "worker_hosts", "keys", "error"),
    [
        (samples, None, [], rf"no prompts are sent .* pass SGLangClient\(worker_hosts=\['{OTHER}'\]\)"),
        (samples, [OTHER], [HEADERS["Authorization"]], None),
        (samples, [], [], rf"no prompts are sent .* pass SGLangClient\(worker_hosts=\['{OTHER}'\]\)"),
        (refuses(401), [OTHER], [HEADERS["Authorization"]], r"401: words \| pass api_key="),
    ],
)
async def test_prompts_and_key_are_sent_to_listed_hosts_alone(
    reply: Reply,
    worker_hosts: list[str] | None,
    keys: list[str | None],
    error: str | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_LOOPBACK", frozenset())  # localhost and 127.0.0.1 are two hosts here
    with in_turn(reply) as worker, router([{"url": f"http://{OTHER}:{worker.port}"}]) as front:
        for stream in (False, True) if error else (False,):
            worker.received.clear()
            if error is None:
                await call(front.url, worker_hosts, stream)
            else:
                with pytest.raises(RequestRejectedError, match=error):
                    await call(front.url, worker_hosts, stream)
            assert [request.headers.get("authorization") for request in worker.generates()] == keys
            assert {one.headers.get("authorization") for one in front.received} == {HEADERS["Authorization"]}
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [f"worker_hosts=['{OTHER}']" in text for text in warnings if "are not sent to" in text] == [True] * len(
        [] if worker_hosts == [OTHER] else (False, True) if error else (False,)
    )


@pytest.mark.parametrize("asked", [{"session": "s"}, {"return_routed_experts": True}])
async def test_only_a_session_goes_through_the_router_instead(
    asked: dict[str, Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens are the same without it; an answer without what else was asked is of no use."""
    monkeypatch.setattr(module, "_LOOPBACK", frozenset())
    with in_turn(samples) as worker, router([{"url": f"http://{OTHER}:{worker.port}"}]) as front:
        if "session" in asked:
            await call(front.url, **asked)
        else:
            with pytest.raises(RequestRejectedError, match=rf"worker_hosts=\['{OTHER}'\]"):
                await call(front.url, **asked)
        assert not worker.generates() and len(front.generates()) == 1 + ("session" in asked)
    told = [record.getMessage() for record in caplog.records if "go through the router" in record.getMessage()]
    assert [f"worker_hosts=['{OTHER}']" in text for text in told] == [True] * ("session" in asked)


async def test_only_workers_on_hosts_of_the_user_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOPBACK", frozenset())
    with in_turn(samples) as worker:
        with router([{"url": f"http://{OTHER}:{worker.port + 1}"}, {"url": worker.url}]) as front:
            for number in range(8):
                await call(front.url, kept_sets=True, routing_key=f"e{number}")
        assert len(worker.generates()) == 8


@pytest.mark.parametrize(
    "listed",
    [
        *(
            [{"url": url}]
            for url in ("http://[::1", "http://127.0.0.1:99999", "//evil", "", 5, None, "file:///etc/passwd")
        ),
        *([{"url": url}] for url in ("http://127.0.0.1:1/meta?x=", "http://127.0.0.1:1/#x", "http://u:p@127.0.0.1:1")),
        [{"url": f"http://127.0.0.1:1/{number}"} for number in range(4097)],
    ],
)
async def test_unusable_list_is_not_used(listed: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    with router(listed) as front:
        async with SGLangClient(front.url, api_key=KEY) as client:
            assert await client.control.workers() == (Worker(front.url),)
            (result,) = await client.control.abort_all()
            assert not result.ok and "404" in result.message
            await client.generate([2], {"max_new_tokens": 4}, return_routed_experts=True)
    assert "could not list the workers" in caplog.text and "the router must list" in caplog.text
