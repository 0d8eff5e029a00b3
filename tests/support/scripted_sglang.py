"""A scripted server that tells about itself as SGLang does: the right one for a tokenizer, or wrong in one way."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import orjson

from support.scripted import ScriptedServer, Wire, answer


@dataclass
class Served:
    """What a server says."""

    tokenizer: Any
    template: str | None = None
    """Its chat template; None: its tokenizer's own."""
    context: int = 4096
    model_path: str = "some/model"
    key: str | None = None
    """The key that it wants; None: none."""
    paused: bool = False
    busy: bool = False
    old: bool = False
    """Whether it is of a time when logprobs had another form, and routes other names."""
    workers: list[dict[str, Any]] | None = None
    """The workers that it names; None: it is no router."""
    asked: list[str] = field(default_factory=list)

    def server(self) -> ScriptedServer:
        return ScriptedServer(self._handle)

    async def _handle(self, wire: Wire) -> None:
        received = await wire.read_body()
        path = received.path
        self.asked.append(path)
        if self.key is not None and received.headers.get("authorization") != f"Bearer {self.key}":
            await wire.reply(b'{"error":"Unauthorized"}', 401)
        elif path == "/generate":
            if self.paused or self.busy:
                await asyncio.sleep(60)
            drop = ("output_token_logprobs", "output_token_logprobs_length") if self.old else ()
            await wire.reply(orjson.dumps(answer(received, [11], drop=drop)))
        else:
            told = self._about(path, received.body)
            await wire.reply(
                b'{"detail":"Not Found"}' if told is None else orjson.dumps(told), 404 if told is None else 200
            )

    def _about(self, path: str, body: bytes) -> Any:
        if path == "/workers":
            return None if self.workers is None else {"workers": self.workers}
        if path == ("/get_model_info" if self.old else "/model_info"):
            return {"model_path": self.model_path, "tokenizer_path": self.model_path}
        if path == "/v1/models" and not self.old:
            return {"data": [{"id": self.model_path, "max_model_len": self.context}]}
        if path == "/v1/loads":
            return {"loads": [{"num_running_reqs": int(self.busy), "num_waiting_reqs": 0}]}
        if path == "/tokenize" and not self.old:
            return {"tokens": self._tokens(orjson.loads(body))}
        return {"success": True} if path == "/abort_request" else None

    def _tokens(self, asked: dict[str, Any]) -> Any:
        texts = asked.get("prompt")
        if texts is None:
            template = self.template or self.tokenizer.chat_template
            texts = self.tokenizer.apply_chat_template(
                asked["messages"], tokenize=False, add_generation_prompt=True, chat_template=template
            )
        if isinstance(texts, str):
            return self.tokenizer.encode(texts, add_special_tokens=False)
        return [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
