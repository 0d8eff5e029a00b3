"""Scripted SGLang servers and a router for diagnoses: right in every respect, or wrong in one.

A server computes tokens and logprobs from the prompt alone, has a prefix cache, can be aborted, and reports on itself
as SGLang 0.5.21 does. The router forwards requests by a policy and answers 404 to everything else.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

import aiohttp
import orjson

from support.scripted import Received, ScriptedServer, Wire, head


def _number(ids: list[int], salt: str) -> int:
    data = orjson.dumps(ids) + salt.encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=6).digest(), "big")


@dataclass
class Engine:
    """A server. Every field that is set makes it wrong, or different."""

    tokenizer: Any
    template: str | None = None
    """Its chat template; None: its tokenizer's own."""
    context: int = 4096
    model_path: str = "some/model"
    version: str | None = "0.5.21"
    """What it says of its version; None: nothing, and it has the routes and answers of an old one."""
    weight_version: str | None = "default"
    dtype: str = "float32"
    more: dict[str, Any] = field(default_factory=dict)
    paused: bool = False
    ahead: float = 0.0
    noise: float = 0.0
    cache: bool = True
    trims: bool = False
    aborts: bool = True
    prompt_logprobs: bool = False
    has_tokenize: bool = True
    broken: str = ""
    vocabulary: int = 256
    busy: bool = False
    key: str | None = None
    """The API key that it requires; None: none."""
    workers: list[dict[str, Any]] | None = None
    """The workers that it lists; None: it is no router."""

    def __post_init__(self) -> None:
        self._cached: set[bytes] = set()
        self._aborted: set[str] = set()
        self.sent: list[list[int]] = []
        """Prompts that reached it."""
        self.asked: list[str] = []
        """Paths of all requests."""

    def server(self) -> ScriptedServer:
        return ScriptedServer(self._handle)

    async def _handle(self, wire: Wire) -> None:
        received = await wire.read_body()
        self.asked.append(received.path)
        if self.key is not None and received.headers.get("authorization") != f"Bearer {self.key}":
            return await self._reply(wire, b'{"error":"Unauthorized"}', 401)
        if received.path == self.broken:
            return await self._reply(wire, b"<html>", 200)
        if received.path == "/generate":
            return await self._generate(wire, received)
        if received.path == "/abort_request" and self.aborts:
            self._aborted.add(received.json()["rid"])
        told = self._about(received)
        await self._reply(
            wire, b'{"detail":"Not Found"}' if told is None else orjson.dumps(told), 404 if told is None else 200
        )

    async def _reply(self, wire: Wire, body: bytes, status: int = 200) -> None:
        await wire.send(head(len(body), status, {"Date": formatdate(time.time() + self.ahead, usegmt=True)}) + body)

    def _about(self, received: Received) -> Any:
        path = received.path
        old = self.version is None or self.version.startswith("0.4")
        if path == "/workers":
            return None if self.workers is None else {"workers": self.workers}
        if path == ("/get_model_info" if old else "/model_info"):
            told = {"model_path": self.model_path, "tokenizer_path": self.model_path}
            return {**told, **({"weight_version": self.weight_version} if self.weight_version else {})}
        if path == ("/get_server_info" if old else "/server_info"):
            version = {"version": self.version} if self.version else {}
            return {"dtype": self.dtype, "page_size": 1, "disable_radix_cache": not self.cache, **version, **self.more}
        if path == "/v1/models":
            return {"data": [{"id": self.model_path, "max_model_len": self.context}]}
        if path == "/v1/loads":
            return {"loads": [{"num_running_reqs": int(self.busy), "num_waiting_reqs": 0}]}
        if path == "/tokenize" and self.has_tokenize and not old:
            return {"tokens": self._tokens(received.json())}
        if path == "/abort_request" and self.aborts:
            return {"success": True}
        return {"status": "ok"} if path == "/health" else None

    def _tokens(self, asked: dict[str, Any]) -> Any:
        texts = asked.get("prompt")
        if texts is None:
            texts = self.tokenizer.apply_chat_template(
                asked["messages"],
                tokenize=False,
                add_generation_prompt=True,
                chat_template=self.template or self.tokenizer.chat_template,
            )
        if isinstance(texts, str):
            return self.tokenizer.encode(texts, add_special_tokens=False)
        return [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]

    # --- sampling -----------------------------------------------------------------------------------------------------

    def logprob(self, ids: list[int]) -> float:
        return -(_number(ids, "logprob") % 4096) / 1024

    def next_token(self, ids: list[int]) -> int:
        return _number(ids, "token") % self.vocabulary

    async def _generate(self, wire: Wire, received: Received) -> None:
        body = received.json()
        prompt, asked = list(body["input_ids"]), body.get("sampling_params") or {}
        self.sent.append(prompt)
        if self.paused or self.busy:
            await asyncio.sleep(60)
        ids, finish = await self._sample(prompt, asked, body.get("rid", ""))
        cached = self._lookup(prompt)
        if self.cache:
            self._remember([*prompt, *ids][:-1])
        start = body.get("logprob_start_len", 0 if self.prompt_logprobs else None)
        entries: list[Any] = []
        if start is not None and start >= 0:
            whole = [self.logprob(prompt[: at + 1]) - self.noise * (at % 3) for at in range(len(prompt))]
            entries = [[None if at == start else whole[at], prompt[at], None] for at in range(start, len(prompt))]
        returned = ids[:-1] if self.trims and finish["type"] == "stop" else ids
        scored = [[self.logprob([*prompt, *ids[: at + 1]]), id, None] for at, id in enumerate(returned)]
        old = self.version is None or self.version.startswith("0.4")
        meta: dict[str, Any] = {
            "id": body.get("rid", ""), "finish_reason": finish, "prompt_tokens": len(prompt),
            "completion_tokens": len(returned), "cached_tokens": cached, "weight_version": self.weight_version,
            "input_token_logprobs": entries,
        }  # fmt: skip
        if not old:
            meta["output_token_logprobs"] = scored
            meta["output_token_logprobs_length"] = len(scored)
        await self._reply(wire, orjson.dumps({"text": "", "output_ids": returned, "meta_info": meta}))

    async def _sample(self, prompt: list[int], asked: dict[str, Any], rid: str) -> tuple[list[int], dict[str, Any]]:
        most, stops, ids = asked.get("max_new_tokens", 128), asked.get("stop_token_ids") or [], list[int]()
        if most > 256:
            until = time.monotonic() + 30
            while time.monotonic() < until:
                await asyncio.sleep(0.02)
                ids.append(self.next_token([*prompt, *ids]))
                if any(rid.startswith(aborted) for aborted in self._aborted):
                    return ids, {"type": "abort", "message": "Aborted"}
            return ids, {"type": "length", "length": most}
        while len(ids) < most:
            ids.append(self.next_token([*prompt, *ids]))
            if ids[-1] in stops and not asked.get("ignore_eos"):
                return ids, {"type": "stop", "matched": ids[-1]}
        return ids, {"type": "length", "length": most}

    def _remember(self, ids: list[int]) -> None:
        self._cached.update(orjson.dumps(ids[:length]) for length in range(1, len(ids) + 1))

    def _lookup(self, prompt: list[int]) -> int:
        return next((at for at in range(len(prompt) - 1, 0, -1) if orjson.dumps(prompt[:at]) in self._cached), 0)


@dataclass
class Router:
    """A router in front of servers."""

    urls: list[str]
    policy: str = "manual"
    """"manual" (by routing key), "cache_aware" (by the first tokens), "round_robin"."""
    lists: list[dict[str, Any]] | None = None
    """What /workers says; None: all of them, healthy."""

    def __post_init__(self) -> None:
        self._count = 0

    def server(self) -> ScriptedServer:
        return ScriptedServer(self._handle)

    def _choose(self, received: Received) -> str:
        self._count += 1
        if self.policy == "round_robin":
            return self.urls[self._count % len(self.urls)]
        by = received.headers.get("x-smg-routing-key", "")
        if self.policy == "cache_aware":
            by = orjson.dumps(received.json()["input_ids"][:24]).decode()
        return self.urls[int(hashlib.blake2b(by.encode(), digest_size=4).hexdigest(), 16) % len(self.urls)]

    async def _handle(self, wire: Wire) -> None:
        received = await wire.read_body()
        if received.path == "/workers":
            listed = self.lists or [{"url": url, "is_healthy": True} for url in self.urls]
            await wire.reply(orjson.dumps({"workers": listed}))
        elif received.path == "/generate":
            async with (
                aiohttp.ClientSession() as session,
                session.post(self._choose(received) + "/generate", data=received.body) as answer,
            ):
                await wire.reply(await answer.read(), answer.status)
        else:
            await wire.reply(b'{"detail":"Not Found"}', 404)
