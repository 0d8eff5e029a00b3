"""LoRA adapters: their name in versions and requests, and names that must not be sampled with."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import orjson
import pytest

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.engine import AbortPolicy, Generation
from strands_sglang.engine.adapters import FRESH_SECONDS_ELSEWHERE, AdapterLists, AdapterNames, _names
from strands_sglang.errors import ConfigurationError, RequestRejectedError
from strands_sglang.runs import Task
from support.rollout_agent import TOKENIZER
from support.scripted import ScriptedServer, Wire

PROMPT = [1, 2, 3]


class Adapters:
    """A server with adapters, which loads one again that was unloaded when a request names it, as SGLang does."""

    def __init__(self) -> None:
        self.loaded: dict[str, str] = {}
        self.requests: list[dict[str, Any]] = []
        self.finish: list[dict[str, Any]] = []
        self.server = ScriptedServer(self._handle)

    async def _handle(self, wire: Wire) -> None:
        path = wire.received.path
        body = (await wire.read_body()).json() if wire.received.method == "POST" else {}
        status = 200
        answer: dict[str, Any] = {}
        if path == "/v1/models":
            cards = [{"id": name, "root": root, "parent": "base"} for name, root in self.loaded.items()]
            answer = {"data": [{"id": "base", "root": "base", "parent": None, "max_model_len": 100}, *cards]}
        elif path == "/load_lora_adapter":
            status = 400 if body["lora_name"] in self.loaded or body["lora_path"] == "/missing" else 200
            if status == 200:
                self.loaded[body["lora_name"]] = body["lora_path"]
        elif path == "/unload_lora_adapter":
            self.loaded.pop(body["lora_name"], None)
        elif path == "/generate":
            self.requests.append(body)
            finish = self.finish.pop(0) if self.finish else {"type": "stop", "matched": 9}
            meta = {"id": body["rid"], "finish_reason": finish, "prompt_tokens": len(body["input_ids"])}
            meta |= {"output_token_logprobs": [[-0.5, 9, None]], "weight_version": "default", "completion_tokens": 1}
            answer = {"output_ids": [9], "text": "x", "meta_info": meta}
            if body["stream"]:
                await wire.reply(b"data: " + orjson.dumps(answer) + b"\n\ndata: [DONE]\n\n")
                return
        else:
            status = 404
        await wire.reply(orjson.dumps(answer), status)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports are used again, and names are known for a process."""
    monkeypatch.setattr("strands_sglang.engine.adapters._names", {})


def versions(turn: Generation) -> list[tuple[str | None, int, int]]:
    return [(span.version, span.start, span.end) for span in turn.versions]


async def test_adapter_is_part_of_the_version() -> None:
    adapters = Adapters()
    with adapters.server as server:
        async with SGLangClient(server.url) as client:
            assert all(result.ok for result in await client.control.load_adapter("v1", "/a"))
            turn = await client.generate(PROMPT, {"max_new_tokens": 4}, adapter="v1")
            assert versions(turn) == [("default+lora:v1", 0, 1)] and turn.adapter == "v1"
            field = await client.generate(PROMPT, {"max_new_tokens": 4}, extra={"lora_path": "v1"})
            assert versions(field) == versions(turn)
            chunks = [one async for one in client.stream(PROMPT, {"max_new_tokens": 4}, adapter="v1")]
            assert [one["lora_path"] for one in adapters.requests] == ["v1"] * 3
            assert chunks[-1].generation is not None and versions(chunks[-1].generation) == versions(turn)
            base = await client.generate(PROMPT, {"max_new_tokens": 4})
            assert versions(base) == [("default", 0, 1)] and "lora_path" not in adapters.requests[-1]
            with pytest.raises(ConfigurationError, match="must not differ"):
                await client.generate(PROMPT, adapter="v1", extra={"lora_path": "v2"})


async def test_interrupted_turn_is_continued_by_its_adapter() -> None:
    adapters = Adapters()
    adapters.finish.append({"type": "abort", "message": "weights"})
    with adapters.server as server:
        async with SGLangClient(server.url, retry_delay=0.0) as client:
            await client.control.load_adapter("v1", "/a")
            turn = await client.generate(PROMPT, {"max_new_tokens": 4}, adapter="v1", on_abort=AbortPolicy.CONTINUE)
            assert versions(turn) == [("default+lora:v1", 0, 2)] and turn.adapter == "v1" and turn.continuations == 1


async def test_unloaded_name_is_refused_although_the_server_would_answer() -> None:
    adapters = Adapters()
    with adapters.server as server:
        async with SGLangClient(server.url) as client, SGLangClient(server.url) as other:
            await client.control.load_adapter("v1", "/a")
            await other.generate(PROMPT, {"max_new_tokens": 1}, adapter="v1")
            await client.control.unload_adapter("v1")
            for one in (client, other):
                with pytest.raises(RequestRejectedError, match="was unloaded by this process"):
                    await one.generate(PROMPT, {"max_new_tokens": 1}, adapter="v1")
            with pytest.raises(ConfigurationError, match="a name of its own, and 'v1' was unloaded"):
                await client.control.load_adapter("v1", "/b")
            assert len(adapters.requests) == 1


async def test_name_with_another_path_is_refused() -> None:
    adapters = Adapters()
    with adapters.server as server:
        async with SGLangClient(server.url) as client:
            await client.control.load_adapter("v1", "/a")
            await client.generate(PROMPT, {"max_new_tokens": 1}, adapter="v1")
            with pytest.raises(ConfigurationError, match="'v1' was loaded from /a"):
                await client.control.load_adapter("v1", "/b")
            adapters.loaded["v1"] = "/elsewhere"  # another process
            client._adapters._listed_at.clear()  # half a minute later
            with pytest.raises(RequestRejectedError, match="has it from /elsewhere, and it was /a before"):
                await client.generate(PROMPT, {"max_new_tokens": 1}, adapter="v1")


async def test_name_is_known_from_its_first_load() -> None:
    adapters = Adapters()
    with adapters.server as server:
        async with SGLangClient(server.url) as client:
            assert not (await client.control.load_adapter("v1", "/missing"))[0].ok  # it may still be another path
            assert (await client.control.load_adapter("v1", "/a"))[0].ok
            adapters.loaded.clear()  # the server restarted, or another process unloaded it
            with pytest.raises(ConfigurationError, match="'v1' was loaded from /a"):
                await client.control.load_adapter("v1", "/b")


async def test_name_whose_files_were_changed_is_refused(tmp_path: Path) -> None:
    """The server would say that it has the adapter, and go on with the old files."""
    (file := tmp_path / "adapter_model.safetensors").write_bytes(b"first")
    adapters = Adapters()
    with adapters.server as server:
        async with SGLangClient(server.url) as client:
            for _ in range(2):  # written again with the same content, as by a repeated save
                assert (await client.control.load_adapter("policy", str(tmp_path)))[0].ok
                file.write_bytes(b"first")
            file.write_bytes(b"other")
            with pytest.raises(ConfigurationError, match=r"'policy' was loaded from .* before its files were changed"):
                await client.control.load_adapter("policy", str(tmp_path))
            assert (await client.control.load_adapter("policy-v2", str(tmp_path)))[0].ok


async def test_name_that_another_process_unloaded_is_refused_by_a_worker() -> None:
    """A worker's client was pickled; what this process knows is set back, as in a process of its own."""
    adapters = Adapters()
    with adapters.server as server:
        async with SGLangClient(server.url) as client:
            await client.control.load_adapter("v1", "/a")
            _names.clear()
            async with pickle.loads(pickle.dumps(client)) as worker:
                await worker.generate(PROMPT, {"max_new_tokens": 1}, adapter="v1")
                await client.control.unload_adapter("v1")
                worker._adapters._retired.clear()
                await asyncio.sleep(FRESH_SECONDS_ELSEWHERE)
                with pytest.raises(RequestRejectedError, match="'v1' must be loaded on every worker"):
                    await worker.generate(PROMPT, {"max_new_tokens": 1}, adapter="v1")
    assert len(adapters.requests) == 1


async def test_adapter_that_was_loaded_while_another_one_was_looked_for_is_found() -> None:
    names, answer = AdapterNames(), asyncio.Event()
    loaded, asked = {"v1": "/a"}, list[AdapterLists]()

    async def lists() -> AdapterLists:
        found = {"http://one": dict(loaded)}
        asked.append(found)
        await answer.wait()
        return found

    first = asyncio.ensure_future(names.check("v1", lists))
    while not asked:
        await asyncio.sleep(0)
    loaded["v2"] = "/b"
    second = asyncio.ensure_future(names.check("v2", lists))
    await asyncio.sleep(0)
    answer.set()
    await asyncio.gather(first, second)
    with pytest.raises(RequestRejectedError, match="'v3' must be loaded on every worker"):
        await names.check("v3", lists)


@pytest.mark.parametrize("field", [["v1"], {"v1": 1}, 7])
async def test_field_that_is_no_name_is_refused(field: Any) -> None:
    async with SGLangClient("http://127.0.0.1:9") as client:
        with pytest.raises(ConfigurationError, match="an adapter must be the name it was loaded under"):
            await client.generate(PROMPT, {"max_new_tokens": 1}, extra={"lora_path": field})


async def test_every_worker_must_have_the_adapter() -> None:
    one, other = Adapters(), Adapters()
    with one.server as first, other.server as second:

        async def route(wire: Wire) -> None:
            await wire.read_body()
            listed = {"workers": [{"url": server.url, "is_healthy": True} for server in (first, second)]}
            await wire.reply(orjson.dumps(listed), 200 if wire.received.path == "/workers" else 404)

        with ScriptedServer(route) as router:
            async with SGLangClient(router.url) as client:
                one.loaded["v1"] = "/a"
                with pytest.raises(RequestRejectedError, match=f"every worker, and {second.url} has none"):
                    await client.generate(PROMPT, {"max_new_tokens": 1}, adapter="v1")
                # Loading is repeated until all have it: the first has it already, from this path.
                assert [result.ok for result in await client.control.load_adapter("v1", "/a")] == [True, True]
                assert await client.control.adapters() == {server.url: {"v1": "/a"} for server in (first, second)}


@pytest.mark.parametrize("name", ["", "a+lora:b", "two\nlines", 7])
def test_impossible_names(name: Any) -> None:
    for refused in (
        lambda: Task("q", adapter=name),
        lambda: SGLangModel(tokenizer=TOKENIZER, base_url="http://x:1", adapter=name),
    ):
        with pytest.raises(ConfigurationError, match="an adapter must be the name it was loaded under"):
            refused()


def test_task_records_its_adapter() -> None:
    task = Task("q", adapter="v1")
    assert Task.from_dict(task.to_dict()) == task and Task("q") != task and Task("q").id != task.id
    assert "adapter" not in Task("q").to_dict()
