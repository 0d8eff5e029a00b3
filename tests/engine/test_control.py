"""Control calls: to the server itself, or to every worker behind a router."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from strands_sglang import SGLangClient
from strands_sglang.engine import PauseMode, Worker
from strands_sglang.errors import EngineError, EngineUnavailableError, MalformedResponseError
from support.scripted import ScriptedServer, Wire


def serving(routes: dict[str, Any]) -> ScriptedServer:
    """Return a server with a JSON body, or a (status, body), for each path; 404 for the rest."""

    async def handle(wire: Wire) -> None:
        await wire.read_body()
        route = routes.get(wire.received.path)
        if route is None:
            await wire.reply(b"", 404)
        elif isinstance(route, tuple):
            await wire.reply(orjson.dumps(route[1]), route[0])
        else:
            await wire.reply(route if isinstance(route, bytes) else orjson.dumps(route))

    return ScriptedServer(handle)


def worker(**more: Any) -> ScriptedServer:
    done = {"message": "done", "status": "ok"}
    routes = {
        "/health": "",
        "/model_info": {"model_path": "m", "weight_version": 3, "model_type": "qwen3"},
        "/server_info": {"version": "0.5.21"},
        "/pause_generation": done,
        "/continue_generation": done,
        "/flush_cache": done,
        "/update_weights_from_disk": {"success": True},
        "/abort_request": "",
        "/v1/loads": {"loads": [{"num_running_reqs": 2, "num_waiting_reqs": 1}]},
    }
    return serving({**routes, **more})


def router(*urls: str) -> ScriptedServer:
    return serving({"/workers": {"workers": [{"url": url, "is_healthy": True} for url in urls]}, "/health": ""})


async def test_single_server_is_its_only_worker() -> None:
    with worker() as server:
        async with SGLangClient(server.url) as client:
            assert await client.control.workers() == (Worker(server.url),)
            assert await client.control.health()
            info = await client.control.model_info()
            assert (info.model_path, info.weight_version, info.rest["model_type"]) == ("m", "3", "qwen3")
            assert (await client.control.server_info())["version"] == "0.5.21"
            assert await client.control.open_requests() == {server.url: 3}
            assert all(result.ok for result in await client.control.pause(PauseMode.IN_PLACE))
            assert server.received[-1].json() == {"mode": "in_place"}


async def test_ranks_of_one_server_receive_one_call() -> None:
    with worker() as one, router(one.url + "@0", one.url + "@1") as front:
        async with SGLangClient(front.url) as client:
            assert await client.control.workers() == (Worker(one.url),)


@pytest.mark.parametrize("mode", list(PauseMode))
async def test_weight_update_order_on_every_worker(mode: PauseMode) -> None:
    with worker() as one, worker() as two, router(one.url, two.url + "@1") as front:
        async with SGLangClient(front.url) as client:
            results = await client.control.swap_weights("/ckpt", version="7", mode=mode)
            assert [(result.worker, result.ok) for result in results] == [(one.url, True), (two.url, True)]
        flush = [] if mode is PauseMode.IN_PLACE else ["/flush_cache"]
        for server in (one, two):
            told = ["/pause_generation", *flush, "/update_weights_from_disk", "/continue_generation"]
            assert server.paths() == told
            update = server.received[-2].json()
            assert update == {"model_path": "/ckpt", "weight_version": "7", "flush_cache": bool(flush)}


async def test_dead_worker_is_returned_as_failure() -> None:
    with worker() as one, router(one.url, "http://127.0.0.1:9") as front:
        async with SGLangClient(front.url) as client:
            good, bad = await client.control.abort_all()
            assert good.ok and one.received[-1].json() == {"abort_all": True}
            assert not bad.ok and "could not connect" in bad.message
            assert await client.control.open_requests() == {one.url: 3}


async def test_weight_version_of_every_worker_that_answers() -> None:
    with worker() as one, worker(**{"/model_info": {"model_path": "m"}}) as two:
        with router(one.url, two.url, "http://127.0.0.1:9") as front:
            async with SGLangClient(front.url) as client:
                assert await client.control.weight_versions() == {one.url: "3", two.url: None}


async def test_generation_continues_if_update_fails() -> None:
    failing = {"/update_weights_from_disk": (400, {"success": False, "message": "no such folder"})}
    with worker(**failing) as server:
        async with SGLangClient(server.url) as client:
            (result,) = await client.control.swap_weights("/nowhere")
            assert not result.ok and "no such folder" in result.message
        assert server.paths()[-1] == "/continue_generation"


async def test_worker_that_does_not_pause_is_not_updated() -> None:
    unwilling = worker(**{"/pause_generation": (500, {"error": "no"})})
    with worker() as one, unwilling as two, router(one.url, two.url) as front:
        async with SGLangClient(front.url) as client:
            first, second = await client.control.swap_weights("/ckpt", version="7")
            assert first.ok and not second.ok and "500" in second.message
        assert "/update_weights_from_disk" in one.paths() and "/update_weights_from_disk" not in two.paths()


async def test_unreachable_workers_are_returned_as_failures() -> None:
    with router("grpc://10.0.0.1:1") as front:
        async with SGLangClient(front.url) as client:
            (result,) = await client.control.pause()
            assert not result.ok and "no request can be sent" in result.message
            assert await client.control.open_requests() == {}


async def test_invalid_worker_list_is_ignored_and_invalid_info_raises() -> None:
    page = {"/server_info": b"<html>", "/get_server_info": b"<html>"}
    with serving({"/workers": {"workers": [{"url": None}]}, "/model_info": [], **page}) as front:
        async with SGLangClient(front.url) as client:
            assert await client.control.workers() == (Worker(front.url),)
            with pytest.raises(EngineError):
                await client.control.model_info()
            with pytest.raises(MalformedResponseError):
                await client.control.server_info()


async def test_flushing_waits_until_the_engine_is_idle() -> None:
    number = 0

    async def handle(wire: Wire) -> None:
        nonlocal number
        await wire.read_body()
        if wire.received.path == "/workers":
            await wire.reply(b"", 404)
            return
        number += 1
        await wire.reply(b"busy" if number < 4 else b"flushed", 400 if number < 4 else 200)

    with ScriptedServer(handle) as server:
        async with SGLangClient(server.url) as client:
            assert (await client.control.flush_cache())[0].ok
            assert number == 4
            number = -1000
            assert not (await client.control.flush_cache(timeout=0.2))[0].ok


async def test_old_names_of_the_information_calls() -> None:
    with serving({"/get_model_info": {"model_path": "old"}}) as server:
        async with SGLangClient(server.url) as client:
            info = await client.control.model_info()
            assert (info.model_path, info.weight_version) == ("old", None)


async def test_no_server_answers() -> None:
    async with SGLangClient("http://127.0.0.1:9") as client:
        assert not await client.control.health()
        assert await client.control.workers() == (Worker("http://127.0.0.1:9"),)
        with pytest.raises(EngineError):
            await client.control.model_info()


async def test_last_worker_list_is_kept_if_router_stops_answering() -> None:
    with worker() as one:
        with router(one.url) as front:
            client = SGLangClient(front.url)
            assert await client.control.workers() == (Worker(one.url),)
        assert await client.control.workers() == (Worker(one.url),)
        await client.close()


async def test_path_in_base_url_is_kept() -> None:
    with serving({"/a/b/health": ""}) as server:
        async with SGLangClient(server.url + "/a/b") as client:
            assert await client.control.health()


async def test_router_without_workers() -> None:
    with router() as front:
        async with SGLangClient(front.url) as client:
            assert await client.control.workers() == ()
            with pytest.raises(EngineUnavailableError, match="at least one worker"):
                await client.control.swap_weights("/ckpt")
