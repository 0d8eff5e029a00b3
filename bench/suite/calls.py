"""Single calls of an HTTP client to `/generate`: this package's, the published one's, and a bare one.

The bare client is aiohttp with orjson, without checks and records: what any client on this stack costs at least.
"""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

SAMPLING = {"max_new_tokens": 16_384, "temperature": 1.0}
Generate = Callable[[Any], Awaitable[Any]]


@dataclass(frozen=True)
class Calls:
    """Calls to make with one client."""

    client: str
    """`ours`, `published` or `bare`."""
    url: str
    prompt_tokens: int
    count: int
    at_once: int = 1


def prompt(tokens: int) -> list[int]:
    """Return random ids; small ones are frequent, as in the vocabulary of a real tokenizer."""
    rng = random.Random(tokens)
    return [int(rng.random() ** 2 * 150_000) for _ in range(tokens)]


class Clients:
    """The clients of one process, kept between jobs so that connections stay open."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], Generate] = {}
        self._prompts: dict[tuple[str, int], Any] = {}

    def prepare(self, calls: Calls) -> None:
        """Make the client and the prompt."""
        if (calls.client, calls.url) not in self._made:
            self._made[calls.client, calls.url] = getattr(self, f"_{calls.client}")(calls.url)
        ids = prompt(calls.prompt_tokens)
        # As each client's own model passes them: this package keeps ids in arrays.
        self._prompts[calls.client, calls.prompt_tokens] = array("i", ids) if calls.client == "ours" else ids

    async def run(self, calls: Calls) -> None:
        """Make the calls."""
        generate = self._made[calls.client, calls.url]
        ids = self._prompts[calls.client, calls.prompt_tokens]
        left = iter(range(calls.count))

        async def worker() -> None:
            for _ in left:
                await generate(ids)

        await asyncio.gather(*(worker() for _ in range(calls.at_once)))

    @staticmethod
    def _bare(url: str) -> Generate:
        import aiohttp
        import orjson

        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1024))

        async def generate(ids: Any) -> Any:
            body = orjson.dumps({"input_ids": ids, "sampling_params": SAMPLING, "return_logprob": True})
            headers = {"Content-Type": "application/json"}
            async with session.post(url + "/generate", data=body, headers=headers) as response:
                return orjson.loads(await response.read())

        return generate

    @staticmethod
    def _ours(url: str) -> Generate:
        from strands_sglang import SGLangClient

        client = SGLangClient(url, max_connections=1024)
        return lambda ids: client.generate(ids, SAMPLING)

    @staticmethod
    def _published(url: str) -> Generate:
        from strands_sglang import SGLangClient

        client: Any = SGLangClient(url, max_connections=1024)
        return lambda ids: client.generate(ids, sampling_params=SAMPLING, return_logprob=True)
