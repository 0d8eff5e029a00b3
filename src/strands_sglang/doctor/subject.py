"""What is diagnosed, and the facts that several checks need: `Subject`.

A fact is requested once, by the first check that needs it, and awaited by the others. Methods named `require_...` raise
`UnmetRequirement` if the fact is missing: the checks that need it are skipped, and the check of the fact itself reports
why.

Invariant: only token ids that the server itself returned, or id 0, are sent before the tokenizer is known to be the
server's: an id outside the vocabulary can crash a server.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.soundness import Soundness, sound_bridge
from strands_sglang.chat.tokenization import load_tokenizer
from strands_sglang.engine import SGLangClient
from strands_sglang.engine.probe import Probe, ServerFacts, WorkerReport
from strands_sglang.errors import ConfigurationError, EngineUnavailableError
from strands_sglang.model import SGLangModel
from strands_sglang.provider.config import template_arguments
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.preflight import RunRequirements, check_tokenizer, sample_token
from strands_sglang.runs.task import Task

ValueT = TypeVar("ValueT")

_TEXT = (
    "The doctor asks for a short continuation of this text, which has words, numbers such as 615 and 17, and the "
    "names of a few cities: Lisbon, Osaka, Nairobi, Quito, Tromsø. It is only here to be read by a server once."
)
"""Text whose ids prompts are made of."""
_PROMPT_TOKENS = 96
"""Tokens of a prompt: more than the pages of common caches."""
_TOKEN_SECONDS = 5.0
"""Time limit of one attempt to sample one token."""


class UnmetRequirement(Exception):
    """A check needs something that is missing; the message says what."""


@dataclass(eq=False)
class Subject:
    """One server or router, one tokenizer, and what a run would do with them."""

    client: SGLangClient
    """The server or router. It does not retry."""
    tokenizer: Any
    """The tokenizer, or the name or path to load it from."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of `SGLangModel`, such as `tool_parser`, `chat_template`, `sampling_params`."""
    limits: Limits = field(default_factory=Limits)
    """Limits of an episode."""
    build: Callable[..., Any] | None = None
    """Builds the agent from a task and a model; None: no agent is checked."""
    task: Task = field(default_factory=lambda: Task("Say hello.", id="doctor"))
    """Task that the agent is built for."""
    concurrency: int = 1000
    """Episodes that run at the same time."""
    workers: int = 0
    """Ray workers that a run would use; 0: none."""
    dtype: str | None = None
    """Number format in which the trainer computes logprobs; None: that of the checkpoint."""
    seconds: float = 20.0
    """Upper bound on the duration of one check."""

    def __post_init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._random = random.Random()

    # --- facts ------------------------------------------------------------------------------------------------------

    async def _once(self, name: str, make: Callable[[], Awaitable[ValueT]]) -> ValueT:
        if name not in self._tasks:
            self._tasks[name] = asyncio.ensure_future(make())
        return cast(ValueT, await asyncio.shield(self._tasks[name]))

    async def close(self) -> None:
        """Cancel what is still being requested, and close the connections."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self.client.close()

    def probe(self) -> Probe:
        """Return a probe with a time limit of half a check."""
        return self.client.probe(self.seconds / 2)

    async def reached(self) -> bool:
        """Return whether the server answers; see `Probe.reach`."""
        return await self._once("reached", lambda: self.probe().reach(min(self.client.first_contact or 0.0, 4.0)))

    async def facts(self) -> ServerFacts:
        """Return what the server reports.

        Raises:
            EngineError: There is no server, or it is not SGLang.
        """

        async def ask() -> ServerFacts:
            if not await self.reached():
                raise EngineUnavailableError(f"{self.client.base_url} accepts connections but does not answer")
            return await self.probe().facts()

        return await self._once("facts", ask)

    async def reports(self) -> list[WorkerReport]:
        """Return what each worker reports; the first ones answer."""

        async def ask() -> list[WorkerReport]:
            await self.require_server()
            return sorted(await self.probe().reports(), key=lambda report: not report.alive)

        return await self._once("reports", ask)

    async def report(self) -> WorkerReport:
        """Return what one worker that answers reports."""
        return (await self.reports())[0]

    async def require_server(self) -> ServerFacts:
        """Return what the server reports; raises UnmetRequirement if there is none."""
        try:
            return await self.facts()
        except Exception as error:
            raise UnmetRequirement("needs a server that answers") from error

    async def loaded_tokenizer(self) -> Any:
        """Return the tokenizer.

        Raises:
            ConfigurationError: It cannot be loaded.
        """
        return await self._once("tokenizer", lambda: asyncio.to_thread(load_tokenizer, self.tokenizer))

    async def require_tokenizer(self) -> Any:
        """Return the tokenizer; raises UnmetRequirement if it cannot be loaded."""
        try:
            return await self.loaded_tokenizer()
        except Exception as error:
            raise UnmetRequirement("needs a tokenizer that can be loaded") from error

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the chat template among the options."""
        given = {name: value for name, value in self.options.items() if name in _TEMPLATE_OPTIONS}
        return template_arguments("", given)

    @property
    def sampling(self) -> dict[str, Any]:
        """Sampling parameters among the options."""
        return dict(self.options.get("sampling_params") or self.options.get("params") or {})

    async def requirements(self) -> RunRequirements:
        """Return what a run requires of the server."""
        return RunRequirements(
            await self.require_tokenizer(),
            self.sampling,
            self.limits,
            self.options.get("chat_template"),
            self.arguments,
            self.options.get("extra"),
        )

    async def bridge(self) -> tuple[Bridge, Soundness]:
        """Return the bridge of the chat template and its soundness report.

        Raises:
            ConfigurationError: There is no chat template, or it renders nothing.
        """
        tokenizer = await self.require_tokenizer()

        def prove() -> tuple[Bridge, Soundness]:
            return sound_bridge(
                tokenizer, chat_template=self.options.get("chat_template"), arguments=self.arguments or None
            )

        return await self._once("bridge", lambda: asyncio.to_thread(prove))

    async def require_bridge(self) -> tuple[Bridge, Soundness]:
        """Return the bridge and its report; raises UnmetRequirement if the template cannot be used."""
        try:
            return await self.bridge()
        except UnmetRequirement:
            raise
        except Exception as error:
            raise UnmetRequirement("needs a chat template that renders messages") from error

    async def same_ids(self) -> list[int] | None:
        """Return the ids of a text for which both tokenizers agree; None if the server does not report its ids.

        Raises:
            ConfigurationError: They differ.
        """

        async def compare() -> list[int] | None:
            facts, requirements = await self.require_server(), await self.requirements()
            found = await check_tokenizer(self.probe(), facts, requirements)
            # A busy server may answer too late: ask once more.
            return found if found is not None else await check_tokenizer(self.probe(), facts, requirements)

        return await self._once("same_ids", compare)

    async def agent(self) -> tuple[Any, SGLangModel]:
        """Return the agent that `build` makes, and its model. Nothing is sampled.

        Raises:
            Exception: Whatever `build` raises.
        """
        tokenizer = await self.require_tokenizer()
        build = self.build
        if build is None:
            raise UnmetRequirement("no agent was given")

        async def make() -> tuple[Any, SGLangModel]:
            await self.require_bridge()
            options = {name: value for name, value in self.options.items() if name != "extra" or value is not None}
            model = await asyncio.to_thread(lambda: SGLangModel(tokenizer=tokenizer, client=self.client, **options))
            made = await asyncio.to_thread(build, self.task, model)  # a slow `build` must not stop the other checks
            return (await made if inspect.isawaitable(made) else made), model

        return await self._once("agent", make)

    async def tools(self) -> list[Mapping[str, Any]] | None:
        """Return the specs of the agent's tools; None if there is no agent, or it is a graph, a swarm or a function.

        Also None if it cannot be built, or not within half the time of a check: other checks do not depend on that.
        """
        try:
            agent, _ = await asyncio.wait_for(self.agent(), self.seconds / 2)
        except Exception:
            return None
        registry = getattr(agent, "tool_registry", None)
        return None if registry is None else list(registry.get_all_tool_specs())

    # --- sampling ---------------------------------------------------------------------------------------------------

    async def sampled_token(self) -> bool:
        """Sample one token; return whether it arrived in time. See `preflight.sample_token`."""

        async def ask() -> bool:
            facts, known = await self.require_server(), await self.known_ids()
            try:
                requirements = await self.requirements()
            except UnmetRequirement:
                requirements = RunRequirements(None, self.sampling)
            until = time.monotonic() + self.seconds / 2
            while True:  # a busy server may need longer than one attempt allows
                probe = self.client.probe(min(_TOKEN_SECONDS, self.seconds / 2))
                if await sample_token(self.client, probe, facts, requirements, known[:16]):
                    return True
                if time.monotonic() >= until:
                    return False

        return await self._once("sampled_token", ask)

    async def require_sampling(self) -> ServerFacts:
        """Return what the server reports; raises UnmetRequirement unless it samples tokens."""
        facts = await self.require_server()
        try:
            arrived = await self.sampled_token()
        except UnmetRequirement:
            raise
        except Exception as error:
            raise UnmetRequirement("needs a server that samples tokens") from error
        if not arrived:
            raise UnmetRequirement("needs a server that samples tokens")
        return facts

    async def known_ids(self) -> list[int]:
        """Return ids that the server certainly has in its vocabulary."""

        async def ask() -> list[int]:
            facts = await self.require_server()
            body = {"prompt": _TEXT, "add_special_tokens": False}
            ids = await self.probe().tokenize(facts.url, body)
            if ids:
                return [int(id) for id in ids]
            return [0]

        return await self._once("known_ids", ask)

    async def fresh_prompt(self, tokens: int = _PROMPT_TOKENS) -> list[int]:
        """Return a prompt of this many tokens that no server has seen, unless only one id is known."""
        known, facts = await self.known_ids(), await self.require_server()
        most = max(1, min(tokens, (facts.context or tokens * 4) // 4))
        return [self._random.choice(known) for _ in range(most)]

    async def page_size(self) -> int:
        """Return the tokens of one page of the server's prefix cache: a prefix is cached up to a full page."""
        size = (await self.report()).server.get("page_size")
        return size if isinstance(size, int) and size > 0 else 1

    def fresh_key(self) -> str:
        """Return a random routing key."""
        return f"doctor-{self._random.getrandbits(64):016x}"


_TEMPLATE_OPTIONS = ("enable_thinking", "chat_template_kwargs")


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a tokenizer or client among the options."""
    for name in ("tokenizer", "client", "base_url"):
        if name in options:
            raise ConfigurationError(f"options must be arguments of SGLangModel other than {name}, got {name}")
