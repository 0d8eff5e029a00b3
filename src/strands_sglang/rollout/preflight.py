"""Whether a server fits what a run will ask of it, found out before the run begins: `preflight`.

A tokenizer that is not the server's sends ids outside the vocabulary, which takes servers down; a wrong address or a
misspelt parameter would be tried again for minutes. All of it shows in a handful of requests.

Invariant: it takes 5 seconds at most, and is done once for each server, tokenizer and sampling in a process. What a
server does not say is not held against it. Nothing it asks is part of any episode.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from strands_sglang.engine import SGLangClient
from strands_sglang.engine.contact import contact
from strands_sglang.engine.probe import Probe, ServerFacts
from strands_sglang.errors import ConfigurationError, EngineBusyError, EngineUnavailableError
from strands_sglang.rollout.bounds import Limits
from strands_sglang.rollout.job import Setup, loaded_tokenizer

logger = logging.getLogger(__name__)

SECONDS = 5.0
"""The longest it takes."""
_FOR_A_TOKEN, _FOR_REASONS = 2.0, 1.5
"""Seconds of them for one token, and for finding out why none came."""
_LOOKS = 3
_MOST_TOKENS = 96
"""Added tokens that are compared."""
_PLAIN = "Compute 615 * 17 - 88, step by step.\n\tNaïve café, 東京 🙂 def f(x): return x[0]"
_MESSAGES = [
    {"role": "user", "content": "What is 2 + 3?"},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "And 4?"},
]

_passed: set[str] = set()


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run will ask of its server."""

    tokenizer: Any
    """The model's tokenizer."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """Sampling parameters of a turn."""
    limits: Limits = field(default_factory=Limits)
    """How far an episode may go."""
    chat_template: str | None = None
    """A template instead of the tokenizer's own."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of the template."""
    extra: Mapping[str, Any] | None = None
    """Further fields of a request."""

    @classmethod
    def of(cls, setup: Setup, sampling: Mapping[str, Any] | None = None, limits: Limits | None = None) -> Asked:
        """Return what the episodes of a run will ask.

        Args:
            setup: What they have in common.
            sampling: Sampling parameters, where they are not those of the run.
            limits: How far they may go, where that is not as in the run.
        """
        options = setup.model_options
        arguments = dict(options.get("chat_template_kwargs") or {})
        if options.get("enable_thinking") is not None:
            arguments["enable_thinking"] = options["enable_thinking"]
        given = options.get("sampling_params") or options.get("params") or {}
        return cls(
            loaded_tokenizer(setup.tokenizer),
            dict(given if sampling is None else sampling),
            limits or setup.limits,
            options.get("chat_template"),
            arguments,
            options.get("extra"),
        )

    def key(self, server: str) -> str:
        """Return what must be the same for an answer to hold again."""
        tokenizer = self.tokenizer
        own = getattr(tokenizer, "chat_template", None) if self.chat_template is None else self.chat_template
        about = [server, type(tokenizer).__name__, str(getattr(tokenizer, "name_or_path", "")), len(tokenizer), own]
        about += [_added(tokenizer), self.sampling, asdict(self.limits), self.arguments, self.extra]
        return hashlib.sha256(orjson.dumps(about, default=repr, option=orjson.OPT_NON_STR_KEYS)).hexdigest()


async def preflight(client: Any, asked: Asked, *, seconds: float = SECONDS) -> None:
    """See that a server fits; of an engine that is no `SGLangClient` nothing is known, and nothing asked.

    Args:
        client: Where tokens will come from.
        asked: What will be asked of it.
        seconds: The longest it may take.

    Raises:
        ConfigurationError: Something does not fit; the message says what would.
        EngineError: The server cannot be reached, or does not do what it should.
    """
    if not isinstance(client, SGLangClient):
        return
    client.check_sampling(asked.sampling)
    key = asked.key(client.base_url)
    if key in _passed:
        return
    began = time.monotonic()
    try:
        reached = await client.probe(seconds).reach(client.first_contact or 0.0)
    except EngineUnavailableError as error:
        if client.first_contact is not None:
            raise
        logger.warning("server=<%s>, error=<%s> | is waited for, and was not looked over", client.base_url, error)
        return
    if not reached:
        logger.warning("server=<%s> | does not answer now; it is waited for, and was not looked over", client.base_url)
        return
    took = time.monotonic() - began
    probe = client.probe(seconds - took if took < seconds else seconds)  # whoever waits longer has said so
    facts = await probe.facts()
    if facts.dead:
        logger.warning(
            "workers=<%s>, of=<%d> | these workers do not answer: start them again; the run goes on with the others",
            ", ".join(facts.dead),
            facts.workers,
        )
    _check_context(facts, asked)
    same = await _check_tokenizer(probe, facts, asked)
    if same:
        await _check_template(probe, facts, asked)
    # Ids that the server made itself, or the one that every vocabulary has.
    if await _sampled(client, probe, facts, asked, same or [0]):
        _passed.add(key)


async def _sampled(client: SGLangClient, probe: Probe, facts: ServerFacts, asked: Asked, ids: list[int]) -> bool:
    """Sample one token; return whether it came, which it need not from a server that has other things to do."""
    known = contact(client.base_url).served
    token = asyncio.ensure_future(probe.sample(ids, asked.sampling, asked.extra))
    reasons = 0
    try:
        await asyncio.wait({token}, timeout=max(min(_FOR_A_TOKEN, probe.left - _FOR_REASONS), _FOR_A_TOKEN / 4))
        for _ in range(_LOOKS):
            # While it waits: a server that has a request of ours and says that it has nothing to do holds it back.
            if not token.done() and probe.left > _FOR_REASONS / _LOOKS and await probe.idle(facts.url):
                reasons += 1
                await asyncio.wait({token}, timeout=min(_FOR_REASONS / _LOOKS, probe.left))
        if token.done():
            await token
            return True
    except EngineBusyError as error:
        logger.warning("error=<%s> | is busy; it was not looked over to the end", error)
        return False
    except EngineUnavailableError as error:
        if not facts.dead and not known:
            raise
        logger.warning("error=<%s> | was not looked over to the end", error)
        return False
    finally:
        token.cancel()
        await asyncio.wait({token})
    paused = (
        "it holds requests without answering them, as a server does that was paused for a weight update: POST "
        "/continue_generation to it, or await client.control.resume()"
    )
    if reasons == _LOOKS:
        raise EngineUnavailableError(f"{client.base_url} has nothing to do, and gives no token: {paused}")
    logger.warning("server=<%s> | gave no token in time: it is busy; or %s", client.base_url, paused)
    return False


def _check_context(facts: ServerFacts, asked: Asked) -> None:
    if facts.context is None:
        return
    if asked.limits.context is not None and asked.limits.context > facts.context:
        raise ConfigurationError(
            f"limits allow a context of {asked.limits.context} tokens, but the server takes {facts.context}: "
            f"Limits(context={facts.context}), or start the server with --context-length {asked.limits.context}"
        )
    bounds = {
        "max_new_tokens": asked.sampling.get("max_new_tokens"),
        "Limits.tokens_per_turn": asked.limits.tokens_per_turn,
        "Limits.response": asked.limits.response,
    }
    for name, bound in bounds.items():
        if isinstance(bound, int) and bound > facts.context:
            logger.warning(
                "%s=<%d>, context=<%d> | is more than the server's whole context: episodes end there; lower it, or "
                "start the server with --context-length",
                name,
                bound,
                facts.context,
            )


async def _check_tokenizer(probe: Probe, facts: ServerFacts, asked: Asked) -> list[int] | None:
    """Hold the tokenizer against the server's; return the ids of a text that both agree on, None: not known."""
    tokenizer, added = asked.tokenizer, _added(asked.tokenizer)
    where = f"the server's is that of {facts.tokenizer_path or facts.model_path}"
    written = _written(tokenizer, added, asked.chat_template)
    size = _vocabulary(facts.model_path)
    # A token or two beyond it that nobody writes (for images, say) are found in models that are served every day.
    highest = max([added[text] for text in written] + [int(len(tokenizer) / 1.01)])
    if size is not None and highest >= size:
        raise ConfigurationError(
            f"the tokenizer has {len(tokenizer)} ids, but the server's model knows {size} only: an id outside its "
            f"vocabulary would take it down. Take the tokenizer of the model that is served; {where}"
        )
    texts = [_PLAIN, *_telling(tokenizer, added, written)]
    told = await probe.tokenize(facts.url, {"prompt": texts, "add_special_tokens": False})
    if told is None or len(told) != len(texts):
        return None
    for text, theirs in zip(texts, told, strict=True):
        ours = list(tokenizer.encode(text, add_special_tokens=False))
        if ours != theirs:
            raise ConfigurationError(
                f"the tokenizer is not the server's: {text!r:.80} is {ours[:8]} here and {theirs[:8]} there. Tokens "
                f"would mean something else to the model, or take it down. Take the tokenizer of the model that is "
                f"served: AutoTokenizer.from_pretrained(...); {where}"
            )
    return [int(id) for id in told[0]]


async def _check_template(probe: Probe, facts: ServerFacts, asked: Asked) -> None:
    """Say where the server's chat template writes something else. Runs use the tokenizer's, so that is no error."""
    told = await probe.tokenize(facts.url, {"messages": _MESSAGES, "chat_template_kwargs": asked.arguments})
    if told is None:
        return
    try:
        ours = asked.tokenizer.apply_chat_template(
            _MESSAGES,
            tokenize=False,
            add_generation_prompt=True,
            **({} if asked.chat_template is None else {"chat_template": asked.chat_template}),
            **asked.arguments,
        )
    except Exception as error:  # a template that does not take these messages: the model says what it needs
        logger.debug("error=<%s> | the chat template does not take the probe", error)
        return
    if list(asked.tokenizer.encode(ours, add_special_tokens=False)) != told:
        logger.warning(
            "server=<%s>, here=<%.120r>, there=<%.120r> | the chat template is not the server's. episodes are rendered "
            "here, by the tokenizer's; if that is not meant, take the tokenizer of the served model, or chat_template=",
            facts.url,
            ours,
            asked.tokenizer.decode(told),
        )


def _added(tokenizer: Any) -> dict[str, int]:
    """Return the tokens that were added to a vocabulary, by text."""
    added: dict[Any, Any] = getattr(tokenizer, "get_added_vocab", dict)()
    return {str(text): int(id) for text, id in added.items()}


def _written(tokenizer: Any, added: Mapping[str, int], chat_template: str | None) -> list[str]:
    """Return the added tokens that a chat template writes."""
    source = chat_template if chat_template is not None else getattr(tokenizer, "chat_template", None)
    return [text for text in added if isinstance(source, str) and text in source]


def _telling(tokenizer: Any, added: Mapping[str, int], written: list[str]) -> list[str]:
    """Return the added tokens by which tokenizers of one family differ: those of the template, and the highest ids."""
    special = [str(text) for text in getattr(tokenizer, "all_special_tokens", ())]
    highest = sorted(added, key=lambda text: -added[text])
    return [text for text in dict.fromkeys([*written, *special, *highest]) if text.strip()][:_MOST_TOKENS]


def _vocabulary(model_path: str | None) -> int | None:
    """Return how many ids a model knows, if its folder can be read from here."""
    try:
        config = json.loads((Path(model_path or "") / "config.json").read_text())
        size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) and not isinstance(size, bool) else None
