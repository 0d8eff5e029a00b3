"""Checks before a run starts that the server fits the run's tokenizer, limits and sampling: `preflight`.

A tokenizer that is not the server's sends ids outside the vocabulary, which crash servers; a wrong address or a
misspelt parameter would be retried for minutes. About ten requests find all of this.

Invariant: it takes at most 5 seconds, and passes once per process for each server, tokenizer and sampling. A fact that
the server does not report is not checked. No request of it is part of an episode.
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

from strands_sglang._json import dump_bytes
from strands_sglang.chat.tokenization import load_tokenizer
from strands_sglang.engine import ServerEngine, TokenEngine, is_server
from strands_sglang.engine.probe import Probe, ServerFacts
from strands_sglang.engine.request import truncates
from strands_sglang.engine.retry import server_history
from strands_sglang.errors import (
    ConfigurationError,
    EngineBusyError,
    EngineError,
    EngineUnavailableError,
    KeptSetsMissingError,
    RequestRejectedError,
)
from strands_sglang.provider.config import kept_top_k
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.workers.spec import RunSpec

logger = logging.getLogger(__name__)

SECONDS = 5.0
"""Upper bound on the duration of a preflight, in seconds."""
_TOKEN_SECONDS, _DIAGNOSIS_SECONDS = 2.0, 1.5
"""Part of `SECONDS` to wait for one sampled token, and part to find out why none arrived."""
_IDLE_CHECKS = 3
"""Number of times the server's load is requested while a token is outstanding."""
_MAX_TOKENS = 96
"""Maximum number of added tokens that are compared."""
_PLAIN = "Compute 615 * 17 - 88, step by step.\n\tNaïve café, 東京 🙂 def f(x): return x[0]"
_MESSAGES = [
    {"role": "user", "content": "What is 2 + 3?"},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "And 4?"},
]

_passed: set[str] = set()


@dataclass(frozen=True, slots=True)
class RunRequirements:
    """The requirements of a run that the server is checked against."""

    tokenizer: Any
    """The model's tokenizer."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """Sampling parameters of a turn."""
    limits: Limits = field(default_factory=Limits)
    """Limits of an episode."""
    chat_template: str | None = None
    """Chat template used instead of the tokenizer's own; None: the tokenizer's."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the chat template."""
    extra: Mapping[str, Any] | None = None
    """Additional fields of each request; None: none."""
    kept_sets: bool | str = "auto"
    """Whether turns have kept sets, as for `SGLangModel`: True, False, or "auto", if sampling is truncated."""
    needs_kept_sets: bool = False
    """Whether the trainer cannot train truncated turns without their kept sets."""

    @classmethod
    def of(
        cls,
        run_spec: RunSpec,
        sampling: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        *,
        needs_kept_sets: bool = False,
    ) -> RunRequirements:
        """Return the requirements of the episodes of a run; loads the tokenizer if only its name or path is given.

        Args:
            run_spec: Settings shared by the episodes.
            sampling: Sampling parameters; None: those of the run.
            limits: Limits of an episode; None: those of the run.
            needs_kept_sets: Whether the trainer cannot train truncated turns without their kept sets.
        """
        options = run_spec.model_options
        arguments = dict(options.get("chat_template_kwargs") or {})
        if options.get("enable_thinking") is not None:
            arguments["enable_thinking"] = options["enable_thinking"]
        given = options.get("sampling_params") or options.get("params") or {}
        return cls(
            load_tokenizer(run_spec.tokenizer),
            dict(given if sampling is None else sampling),
            limits or run_spec.limits,
            options.get("chat_template"),
            arguments,
            options.get("extra"),
            options.get("kept_sets", "auto"),
            needs_kept_sets,
        )

    def key(self, server: str) -> str:
        """Return a digest of everything the result of a preflight of `server` depends on."""
        tokenizer = self.tokenizer
        own = getattr(tokenizer, "chat_template", None) if self.chat_template is None else self.chat_template
        parts = [server, type(tokenizer).__name__, str(getattr(tokenizer, "name_or_path", "")), len(tokenizer), own]
        parts += [_added_tokens(tokenizer), self.sampling, asdict(self.limits), self.arguments, self.extra]
        parts += [self.kept_sets, self.needs_kept_sets]
        return hashlib.sha256(dump_bytes(parts, non_str_keys=True)).hexdigest()


async def preflight(client: TokenEngine, requirements: RunRequirements, *, seconds: float = SECONDS) -> None:
    """Check that a server fits a run. Does nothing for an engine that is not a server (`Capability.CONTROL`).

    Args:
        client: The engine of the run.
        requirements: The requirements of the run.
        seconds: Maximum duration.

    Raises:
        ConfigurationError: A setting does not fit the server; the message says which value does.
        EngineError: The server cannot be reached, or does not work as an SGLang server does.
    """
    if not is_server(client):
        return
    client.check_sampling(requirements.sampling)
    key = requirements.key(client.base_url)
    if key in _passed:
        return
    began = time.monotonic()
    try:
        reached = await client.probe(seconds).reach(client.first_contact or 0.0)
    except EngineUnavailableError as error:
        if client.first_contact is not None:
            raise
        logger.warning(
            "server=<%s>, error=<%s> | server was not checked, the run waits until it answers", client.base_url, error
        )
        return
    if not reached:
        logger.warning(
            "server=<%s> | server does not answer and was not checked, the run waits until it answers", client.base_url
        )
        return
    took = time.monotonic() - began
    probe = client.probe(seconds - took if took < seconds else seconds)  # first_contact= may allow a longer wait
    facts = await probe.facts()
    if facts.dead:
        logger.warning(
            "workers=<%s>, of=<%d> | these workers do not answer: restart them; the run continues with the others",
            ", ".join(facts.dead),
            facts.workers,
        )
    _check_context(facts, requirements)
    same = await check_tokenizer(probe, facts, requirements)
    if same:
        await _check_template(probe, facts, requirements)
    # The prompt is the ids that the server itself returned, or the one id that every vocabulary has.
    if await sample_token(client, probe, facts, requirements, same or [0]):
        await check_kept_sets(client, requirements, same or [0], probe.left)
        _passed.add(key)


async def check_kept_sets(
    client: ServerEngine, requirements: RunRequirements, ids: list[int], seconds: float = SECONDS
) -> None:
    """Check, if turns are to have kept sets, that the server returns them.

    If nothing but ratios depends on them, their absence is logged; the run goes on without them.

    Args:
        client: The engine.
        requirements: Sampling parameters, and whether sets are wanted and needed.
        ids: A prompt.
        seconds: Time limit. A server that does not answer in time is not checked.

    Raises:
        ConfigurationError: The server returns none, and the run cannot do without them.
    """
    truncated = truncates(requirements.sampling)
    if requirements.kept_sets is not True and not (requirements.kept_sets == "auto" and truncated):
        if requirements.needs_kept_sets and truncated:
            raise ConfigurationError(
                "kept_sets must not be False: sampling is truncated, and the trainer renormalises over the kept sets"
            )
        return
    sampling = {**requirements.sampling, "max_new_tokens": 1, "top_k": kept_top_k(requirements.sampling)}
    sampling.pop("min_new_tokens", None)
    requested: dict[str, Any] = {"kept_sets": True, "extra": requirements.extra, "deadline": seconds}
    try:
        await client.generate(ids, sampling, **requested)
        return
    except (KeptSetsMissingError, RequestRejectedError) as error:
        why = str(error)
    except EngineError as error:
        logger.warning("error=<%s> | kept sets of truncated sampling could not be checked", error)
        return
    advice = (
        "SGLang 0.5.21 or newer returns them, without speculative decoding; a router that drops the request for them "
        "must list its workers, or use a worker's own address; or sample without top_p, top_k and min_p"
    )
    if requirements.kept_sets is True or requirements.needs_kept_sets:
        raise ConfigurationError(f"{client.base_url} returns no kept sets of truncated sampling: {why}. {advice}")
    logger.warning(
        "server=<%s>, error=<%s> | the server returns no kept sets, so turns of truncated sampling are recorded "
        "without them, and importance ratios are biased: %s",
        client.base_url,
        why,
        advice,
    )


async def sample_token(
    client: ServerEngine, probe: Probe, facts: ServerFacts, requirements: RunRequirements, ids: list[int]
) -> bool:
    """Sample one token; return whether it arrived in time. A busy server may not answer in time.

    Args:
        client: The engine.
        probe: Its remaining time is the limit.
        facts: What the server reports.
        requirements: Sampling parameters and further fields of the request.
        ids: The prompt.

    Raises:
        ConfigurationError: The server refuses the request.
        EngineUnavailableError: The server fails, or holds the request back because it is paused.
        MalformedResponseError: The answer is not that of a supported version of SGLang.
    """
    known = server_history(client.base_url).served
    token = asyncio.ensure_future(probe.sample(ids, requirements.sampling, requirements.extra))
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
            return True
    except EngineBusyError as error:
        logger.warning("error=<%s> | server is busy, the check was not completed", error)
        return False
    except EngineUnavailableError as error:
        if not facts.dead and not known:
            raise
        logger.warning("error=<%s> | server is unavailable, the check was not completed", error)
        return False
    finally:
        token.cancel()
        await asyncio.wait({token})
    resume = "POST /continue_generation to it, or await client.control.resume()"
    if idle == _IDLE_CHECKS:
        raise EngineUnavailableError(
            f"{client.base_url} is idle but does not answer a request for one token; it seems to be paused for a "
            f"weight update: {resume}"
        )
    logger.warning(
        "server=<%s> | server returned no token in time; it is busy, or paused for a weight update: %s",
        client.base_url,
        resume,
    )
    return False


def context_problem(facts: ServerFacts, requirements: RunRequirements) -> str | None:
    """Return why the server's context is too small for the limits of a run, and what to do; None if it is not."""
    wanted = requirements.limits.max_context_tokens
    if facts.context is None or wanted is None or wanted <= facts.context:
        return None
    return (
        f"Limits.max_context_tokens must be at most the server's context length of {facts.context} tokens, got "
        f"{wanted}: set Limits(max_context_tokens={facts.context}), or start the server with --context-length {wanted}"
    )


def limits_beyond_context(facts: ServerFacts, requirements: RunRequirements) -> dict[str, int]:
    """Return the bounds on sampled tokens that are larger than the server's context, by name."""
    bounds = {
        "max_new_tokens": requirements.sampling.get("max_new_tokens"),
        "Limits.max_new_tokens": requirements.limits.max_new_tokens,
        "Limits.max_response_tokens": requirements.limits.max_response_tokens,
    }
    context = facts.context
    return {name: bound for name, bound in bounds.items() if isinstance(bound, int) and context and bound > context}


def _check_context(facts: ServerFacts, requirements: RunRequirements) -> None:
    if (problem := context_problem(facts, requirements)) is not None:
        raise ConfigurationError(problem)
    for name, bound in limits_beyond_context(facts, requirements).items():
        logger.warning(
            "%s=<%d>, context=<%d> | limit is larger than the server's context length, where episodes end; lower "
            "it, or start the server with a larger --context-length",
            name,
            bound,
            facts.context,
        )


async def check_tokenizer(probe: Probe, facts: ServerFacts, requirements: RunRequirements) -> list[int] | None:
    """Compare the tokenizer with the server's.

    Returns:
        The ids of a text for which both agree; None if the server does not report its ids.

    Raises:
        ConfigurationError: They differ; the message says where.
    """
    tokenizer, added = requirements.tokenizer, _added_tokens(requirements.tokenizer)
    where = f"the server uses {facts.tokenizer_path or facts.model_path}"
    in_template = _template_tokens(tokenizer, added, requirements.chat_template)
    size = _vocabulary_size(facts.model_path)
    # Commonly served models have a few added tokens beyond the vocabulary that no text produces, such as image tokens.
    highest = max([added[text] for text in in_template] + [int(len(tokenizer) / 1.01)])
    if size is not None and highest >= size:
        raise ConfigurationError(
            f"the tokenizer must fit the server's vocabulary of {size} ids, got one with {len(tokenizer)} ids: an id "
            f"outside the vocabulary can crash the server. Use the tokenizer of the served model; {where}"
        )
    texts = [_PLAIN, *_distinguishing_tokens(tokenizer, added, in_template)]
    answer = await probe.tokenize(facts.url, {"prompt": texts, "add_special_tokens": False})
    if answer is None or len(answer) != len(texts):
        return None
    for text, theirs in zip(texts, answer, strict=True):
        ours = list(tokenizer.encode(text, add_special_tokens=False))
        if ours != theirs:
            raise ConfigurationError(
                f"the tokenizer must be the server's, but {text!r:.80} is {ours[:8]} here and {theirs[:8]} on the "
                "server: ids would mean other tokens to the model, or crash the server. Use the tokenizer of the "
                f"served model: AutoTokenizer.from_pretrained(...); {where}"
            )
    return [int(id) for id in answer[0]]


@dataclass(frozen=True, slots=True)
class TemplateComparison:
    """A conversation rendered with the chat template here and by the server."""

    same: bool
    """Whether both give the same tokens."""
    here: str
    """The text that is rendered here."""
    there: str
    """The text that the server renders."""


async def compare_template(
    probe: Probe, facts: ServerFacts, requirements: RunRequirements
) -> TemplateComparison | None:
    """Compare the chat template with the server's.

    Returns:
        The comparison; None if the server does not report its rendering, or the template rejects the messages.
    """
    theirs = await probe.tokenize(facts.url, {"messages": _MESSAGES, "chat_template_kwargs": requirements.arguments})
    if theirs is None:
        return None
    try:
        ours = requirements.tokenizer.apply_chat_template(
            _MESSAGES,
            tokenize=False,
            add_generation_prompt=True,
            **({} if requirements.chat_template is None else {"chat_template": requirements.chat_template}),
            **requirements.arguments,
        )
    except Exception as error:  # the template rejects these messages; `SGLangModel` reports what it requires
        logger.debug("error=<%s> | chat template rejects the probe messages", error)
        return None
    same = list(requirements.tokenizer.encode(ours, add_special_tokens=False)) == theirs
    return TemplateComparison(same, str(ours), str(requirements.tokenizer.decode(theirs)))


async def _check_template(probe: Probe, facts: ServerFacts, requirements: RunRequirements) -> None:
    """Log a warning if the server's chat template renders another text; no error, because runs render it here."""
    found = await compare_template(probe, facts, requirements)
    if found is not None and not found.same:
        logger.warning(
            "server=<%s>, here=<%.120r>, there=<%.120r> | chat template differs from the server's; episodes use the "
            "template of the tokenizer. if that is not intended, use the tokenizer of the served model or pass "
            "chat_template=",
            facts.url,
            found.here,
            found.there,
        )


def _added_tokens(tokenizer: Any) -> dict[str, int]:
    """Return the added tokens of a tokenizer: id by text."""
    added: dict[Any, Any] = getattr(tokenizer, "get_added_vocab", dict)()
    return {str(text): int(id) for text, id in added.items()}


def _template_tokens(tokenizer: Any, added: Mapping[str, int], chat_template: str | None) -> list[str]:
    """Return the added tokens that occur in the chat template."""
    source = chat_template if chat_template is not None else getattr(tokenizer, "chat_template", None)
    return [text for text in added if isinstance(source, str) and text in source]


def _distinguishing_tokens(tokenizer: Any, added: Mapping[str, int], in_template: list[str]) -> list[str]:
    """Return the tokens by which tokenizers of one family differ: of the template, special ones, highest added ids."""
    special = [str(text) for text in getattr(tokenizer, "all_special_tokens", ())]
    highest = sorted(added, key=lambda text: -added[text])
    return [text for text in dict.fromkeys([*in_template, *special, *highest]) if text.strip()][:_MAX_TOKENS]


def _vocabulary_size(model_path: str | None) -> int | None:
    """Return the vocabulary size from the model's config.json; None if that cannot be read from this machine."""
    try:
        config = json.loads((Path(model_path or "") / "config.json").read_text())
        size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) and not isinstance(size, bool) else None
