"""What is checked, and the facts that several checks need (`Setup`); the result of a check (`Finding`).

A fact is requested once, by the first check that needs it, and awaited by the others. Methods named `require_...` raise
`UnmetRequirement` if the fact is missing: the checks that need it are skipped, and the check of the fact itself reports
why.

Invariant: only token ids that the server itself returned, or id 0, are sent: an id outside the vocabulary can crash a
server. No request is part of an episode. A finding that did not pass says what to do, and what a run does because of it
(raise, log, nothing), so that `preflight` has no judgement of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast

from strands_sglang._json import as_dict
from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.soundness import Soundness, sound_bridge
from strands_sglang.chat.tokenization import load_tokenizer
from strands_sglang.engine import ServerEngine
from strands_sglang.engine.probe import ServerFacts, WorkerReport
from strands_sglang.engine.retry import server_history
from strands_sglang.errors import EngineBusyError, EngineUnavailableError
from strands_sglang.model import SGLangModel
from strands_sglang.provider.config import template_arguments
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.task import Task


class Status(str, Enum):
    """Result of one check, from best to worst."""

    SKIP = "skip"
    """It was not checked: it needs something that is missing, or that you did not ask for."""
    PASS = "pass"
    """Nothing to do."""
    WARN = "warn"
    """A run works, but slower than it could, or with a risk."""
    FAIL = "fail"
    """A run does not work, or records something other than you expect."""


class UnmetRequirement(Exception):
    """A check needs something that is missing; the message says what."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check returns. With neither `error` nor `log`, a run starts without a word about it."""

    status: Status
    found: str
    """What was found, or why it was not checked."""
    advice: str = ""  # "" if there is nothing to do
    error: Exception | None = None
    """What a run raises instead of starting."""
    log: str = ""
    """Warning that a run logs when it starts."""


def passed(found: str) -> Finding:
    """Return the finding of a check that passed."""
    return Finding(Status.PASS, found)


def warned(found: str, advice: str, *, log: str = "") -> Finding:
    """Return the finding of a check with a warning."""
    return Finding(Status.WARN, found, advice, log=log)


def failed(found: str | Exception, advice: str) -> Finding:
    """Return the finding of a check that failed; a run raises `found` if that is an error."""
    return Finding(Status.FAIL, str(found), advice, found if isinstance(found, Exception) else None)


def skipped(found: str, *, log: str = "") -> Finding:
    """Return the finding of a check that could not be made."""
    return Finding(Status.SKIP, found, log=log)


ValueT = TypeVar("ValueT")

_TEXT = (
    "The doctor asks for a short continuation of this text, which has words, numbers such as 615 and 17, and the "
    "names of a few cities: Lisbon, Osaka, Nairobi, Quito, Tromsø. It is only here to be read by a server once."
)
_PROMPT_TOKENS = 96  # more than the pages of common caches
_TOKEN_SECONDS, _DIAGNOSIS_SECONDS = 2.0, 1.5  # to wait for one sampled token, and to find out why none arrived
_IDLE_CHECKS = 3  # requests for the server's load while a token is outstanding
_TOKEN_PAUSE = 0.2  # seconds before a token is requested again
_TEMPLATE_OPTIONS = ("enable_thinking", "chat_template_kwargs")


@dataclass(eq=False)
class Setup:
    """One server or router, one tokenizer, and what a run does with them."""

    client: ServerEngine
    tokenizer: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `SGLangModel`, such as `tool_parser`, `chat_template`, `sampling_params`."""
    limits: Limits = field(default_factory=Limits)
    needs_kept_sets: bool = False
    """Whether the trainer cannot train turns of top-p sampling without their kept sets."""
    seed: int | None = None
    """Seed of the run; None: it has none."""
    samples: int | None = None
    """Episodes of each task; None: unknown."""
    build: Callable[..., Any] | None = None
    """Builds the agent from a task and a model; None: no agent is checked."""
    task: Task = field(default_factory=lambda: Task("Say hello.", id="doctor"))
    concurrency: int = 1000
    workers: int = 0
    """Ray workers that a run would use; 0: none."""
    dtype: str | None = None
    """Number format in which the trainer computes logprobs; None: that of the checkpoint."""
    seconds: float = 20.0
    """Time limit: of each check in a diagnosis, where all run at once; of all together before a run."""
    token_seconds: float = 0.0
    """How long to ask a busy server again for one token; 0.0: it is asked once."""

    def __post_init__(self) -> None:
        self.probe = self.client.probe(self.seconds)
        """Requests facts from the server; its time limit is that of the setup."""
        self._facts: dict[str, asyncio.Task[Any]] = {}
        self._random = random.Random()

    @property
    def template_arguments(self) -> dict[str, Any]:
        """Arguments of the chat template among the options."""
        return template_arguments("", {name: self.options[name] for name in _TEMPLATE_OPTIONS if name in self.options})

    @property
    def sampling(self) -> dict[str, Any]:
        """Sampling parameters among the options."""
        return dict(self.options.get("sampling_params") or self.options.get("params") or {})

    # --- facts ------------------------------------------------------------------------------------------------------

    async def once(self, name: str, make: Callable[[], Awaitable[ValueT]]) -> ValueT:
        """Return the fact of this name; the first caller makes it, the others wait for it."""
        if name not in self._facts:
            self._facts[name] = asyncio.ensure_future(make())
        return cast(ValueT, await asyncio.shield(self._facts[name]))

    async def close(self) -> None:
        """Cancel what is still being requested."""
        for fact in self._facts.values():
            fact.cancel()
        await asyncio.gather(*self._facts.values(), return_exceptions=True)

    async def reached(self) -> bool:
        """Return whether the server answers; see `Probe.reach`."""

        async def reach() -> bool:
            began = time.monotonic()
            self.probe = self.client.probe(self.seconds)  # loading the tokenizer does not count
            answers = await self.probe.reach(self.client.first_contact or 0.0)
            if time.monotonic() - began >= self.seconds:  # first_contact= may allow a longer wait
                self.probe = self.client.probe(self.seconds)
            return answers

        return await self.once("reached", reach)

    async def facts(self) -> ServerFacts:
        """Return what the server reports; EngineError if there is no server, or it is not SGLang."""

        async def ask() -> ServerFacts:
            if not await self.reached():
                raise EngineUnavailableError(f"{self.client.base_url} accepts connections but does not answer")
            return await self.probe.facts()

        return await self.once("facts", ask)

    async def reports(self) -> list[WorkerReport]:
        """Return what each worker reports; the first ones answer."""

        async def ask() -> list[WorkerReport]:
            await self.require_server()
            return sorted(await self.probe.reports(), key=lambda report: not report.alive)

        return await self.once("reports", ask)

    async def report(self) -> WorkerReport:
        """Return what one worker that answers reports."""
        return (await self.reports())[0]

    async def require_server(self) -> ServerFacts:
        """Return what the server reports; raises UnmetRequirement if there is none."""
        return await _required(self.facts(), "needs a server that answers")

    async def loaded_tokenizer(self) -> Any:
        """Return the tokenizer; ConfigurationError if it cannot be loaded."""
        return await self.once("tokenizer", lambda: asyncio.to_thread(load_tokenizer, self.tokenizer))

    async def require_tokenizer(self) -> Any:
        """Return the tokenizer; raises UnmetRequirement if it cannot be loaded."""
        return await _required(self.loaded_tokenizer(), "needs a tokenizer that can be loaded")

    async def bridge(self) -> tuple[Bridge, Soundness]:
        """Return the bridge of the chat template and its soundness report; ConfigurationError if it renders nothing."""
        tokenizer = await self.require_tokenizer()

        def prove() -> tuple[Bridge, Soundness]:
            template, arguments = self.options.get("chat_template"), self.template_arguments
            return sound_bridge(tokenizer, chat_template=template, arguments=arguments or None)

        return await self.once("bridge", lambda: asyncio.to_thread(prove))

    async def require_bridge(self) -> tuple[Bridge, Soundness]:
        """Return the bridge and its report; raises UnmetRequirement if the template cannot be used."""
        return await _required(self.bridge(), "needs a chat template that renders messages")

    async def agent(self) -> tuple[Any, SGLangModel]:
        """Return the agent that `build` makes, and its model; raises what `build` raises. Nothing is sampled."""
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

        return await self.once("agent", make)

    async def tools(self) -> list[Mapping[str, Any]] | None:
        """Return the specs of the agent's tools; None if it is no single agent, or not built in half a check's time."""
        try:
            agent, _ = await asyncio.wait_for(self.agent(), self.seconds / 2)
        except Exception:
            return None
        registry = getattr(agent, "tool_registry", None)
        return None if registry is None else list(registry.get_all_tool_specs())

    # --- sampling ---------------------------------------------------------------------------------------------------

    async def token_problem(self) -> str:
        """Sample one token as a run does; return why none arrived in time, "" if one did.

        Raises:
            ConfigurationError: The server refuses the request.
            EngineUnavailableError: The server fails, or holds the request back because it is paused.
            MalformedResponseError: The answer is not that of a supported version of SGLang.
        """

        async def ask() -> str:
            facts, ids = await self.require_server(), (await self.known_ids())[:16]
            until = time.monotonic() + self.token_seconds
            while True:
                problem = await self._sample_token(facts, ids)
                if not problem or time.monotonic() >= until:
                    return problem
                await asyncio.sleep(_TOKEN_PAUSE)

        return await self.once("token_problem", ask)

    async def _sample_token(self, facts: ServerFacts, ids: list[int]) -> str:
        known, probe = server_history(self.client.base_url).served, self.probe
        token = asyncio.ensure_future(probe.sample(ids, self.sampling, self.options.get("extra")))
        idle = 0
        try:
            await asyncio.wait(
                {token}, timeout=max(min(_TOKEN_SECONDS, probe.left - _DIAGNOSIS_SECONDS), _TOKEN_SECONDS / 4)
            )
            for _ in range(_IDLE_CHECKS):
                # A server that has our request and reports that it is idle holds the request back: it is paused.
                if not token.done() and probe.left > _DIAGNOSIS_SECONDS / _IDLE_CHECKS and await probe.idle(facts.url):
                    idle += 1
                    await asyncio.wait({token}, timeout=min(_DIAGNOSIS_SECONDS / _IDLE_CHECKS, probe.left))
            if token.done():
                await token
                return ""
        except EngineBusyError as error:
            return f"error=<{error}> | server is busy, the check was not completed"
        except EngineUnavailableError as error:
            if not facts.dead and not known:
                raise
            return f"error=<{error}> | server is unavailable, the check was not completed"
        finally:
            token.cancel()
            await asyncio.wait({token})
        resume = "POST /continue_generation to it, or await client.control.resume()"
        if idle == _IDLE_CHECKS:
            raise EngineUnavailableError(
                f"{self.client.base_url} is idle but does not answer a request for one token; it seems to be paused "
                f"for a weight update: {resume}"
            )
        return (
            f"server=<{self.client.base_url}> | server returned no token in time; it is busy, or paused for a weight "
            f"update: {resume}"
        )

    async def require_sampling(self) -> ServerFacts:
        """Return what the server reports; raises UnmetRequirement unless it samples tokens."""
        needs = "needs a server that samples tokens"
        if await _required(self.token_problem(), needs):
            raise UnmetRequirement(needs)
        return await self.require_server()

    async def known_ids(self) -> list[int]:
        """Return ids that the server certainly has in its vocabulary."""

        async def ask() -> list[int]:
            facts = await self.require_server()
            ids = await self.probe.tokenize(facts.url, {"prompt": _TEXT, "add_special_tokens": False})
            return [int(id) for id in ids] if ids else [0]

        return await self.once("known_ids", ask)

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


async def _required(fact: Awaitable[ValueT], needs: str) -> ValueT:
    """Return a fact; raises UnmetRequirement if it is missing: what that names already, or else `needs`."""
    try:
        return await fact
    except UnmetRequirement:
        raise
    except Exception as error:
        raise UnmetRequirement(needs) from error


def model_config(model_path: Any) -> dict[str, Any]:
    """Return the config.json of a checkpoint; empty if that cannot be read from this machine."""
    try:
        return as_dict(json.loads((Path(str(model_path or "")) / "config.json").read_text()))
    except (OSError, ValueError):
        return {}
