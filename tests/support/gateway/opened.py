"""An open session on a scripted engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from strands_sglang import SGLangModel
from strands_sglang.gateway.server import Gateway
from strands_sglang.gateway.session import Session
from strands_sglang.provider.episode import EpisodeTokens
from support.families import tokenizer
from support.gateway.agents import WireAgent
from support.scripted_engine import ScriptedEngine


@dataclass
class Opened:
    gateway: Gateway
    session: Session
    engine: ScriptedEngine
    http: aiohttp.ClientSession

    @property
    def episode(self) -> EpisodeTokens:
        return self.session.episode

    def agent(self, protocol: str, **settings: Any) -> WireAgent:
        return WireAgent(self.http, self.gateway.base_url(self.session), protocol, **settings)

    @property
    def joins(self) -> list[str]:
        return [turn.join.value for turn in self.episode.tree]


@asynccontextmanager
async def opened(script: Any, *, options: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Opened]:
    engine = ScriptedEngine(tokenizer("qwen3"), script)
    model = SGLangModel(tokenizer=tokenizer("qwen3"), client=engine, **settings)
    async with Gateway() as gateway, aiohttp.ClientSession() as http:
        episode = EpisodeTokens("task/0")
        async with gateway.session(model, episode, **(options or {})) as session:
            yield Opened(gateway, session, engine, http)
