"""Makes the quick checks before a run starts: `preflight`.

A tokenizer that is not the server's sends ids outside the vocabulary, which crash servers; a wrong address or a
misspelt parameter would be retried for minutes. About ten requests find all of this.

Invariant: it takes at most 5 seconds, and passes once per process for each server, tokenizer and sampling. A fact that
the server does not report is not checked. A server that is away for a while is not an error: the run waits for it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from strands_sglang._json import dump_bytes
from strands_sglang.engine import is_server
from strands_sglang.errors import EngineUnavailableError
from strands_sglang.runs.checks import CHECKS, QUICK
from strands_sglang.runs.checks.setup import Setup, Status, UnmetRequirement
from strands_sglang.runs.checks.template import added_tokens
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.workers.spec import RunSpec

logger = logging.getLogger(__name__)

SECONDS = 5.0  # upper bound on the duration of a preflight, in seconds

_passed: set[str] = set()


async def preflight_run(
    run_spec: RunSpec,
    sampling: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    *,
    needs_kept_sets: bool = False,
    samples: int | None = None,
) -> None:
    """Check that the server fits the episodes of a run; see `preflight`. Does nothing for an engine that is no server.

    `sampling` and `limits` None: those of the run. `needs_kept_sets`: the trainer needs them for top-p sampling.
    `samples`: episodes of each task; None: unknown.
    """
    if not is_server(client := run_spec.client):
        return
    options = dict(run_spec.model_options)
    if sampling is not None:
        options = {**options, "sampling_params": dict(sampling), "params": None}
    limits = limits or run_spec.limits
    setup = Setup(client, run_spec.tokenizer, options, limits, needs_kept_sets, seconds=SECONDS)
    setup.seed, setup.samples = run_spec.seed, samples
    await preflight(setup)


async def preflight(setup: Setup) -> None:
    """Check that a server fits a run.

    Raises:
        ConfigurationError: A setting does not fit the server; the message says which value does.
        EngineError: The server cannot be reached, or does not work as an SGLang server does.
    """
    setup.client.check_sampling(setup.sampling)  # needs no server
    key = _key(setup, await setup.loaded_tokenizer())
    if key in _passed:
        return
    try:
        if await _is_up(setup) and await _sampled(setup):
            _passed.add(key)
    finally:
        await setup.close()


async def _is_up(setup: Setup) -> bool:
    """Return whether the server answers; log an outage that the run waits for."""
    client = setup.client
    try:
        reached = await setup.reached()
    except EngineUnavailableError as error:
        if client.first_contact is not None:
            raise
        logger.warning(
            "server=<%s>, error=<%s> | server was not checked, the run waits until it answers", client.base_url, error
        )
        return False
    if not reached:
        logger.warning(
            "server=<%s> | server does not answer and was not checked, the run waits until it answers", client.base_url
        )
    elif dead := (facts := await setup.facts()).dead:
        logger.warning(
            "workers=<%s>, of=<%d> | these workers do not answer: restart them; the run continues with the others",
            ", ".join(dead),
            facts.workers,
        )
    return reached


async def _sampled(setup: Setup) -> bool:
    """Make the quick checks; return whether the server sampled a token, without which they are not complete."""
    statuses = {}
    for name in QUICK:
        try:
            finding = await CHECKS[name](setup)
        except UnmetRequirement:
            continue
        if finding.error is not None:
            raise finding.error
        if finding.log:
            logger.warning("%s", finding.log)
        statuses[name] = finding.status
    return statuses["sampling"] is Status.PASS


def _key(setup: Setup, tokenizer: Any) -> str:
    """Return a digest of everything the result of a preflight depends on."""
    options, own = setup.options, getattr(tokenizer, "chat_template", None)
    parts = [
        *(setup.client.base_url, type(tokenizer).__name__, str(getattr(tokenizer, "name_or_path", "")), len(tokenizer)),
        *(added_tokens(tokenizer), options.get("chat_template") or own, setup.template_arguments, setup.sampling),
        *(asdict(setup.limits), options.get("extra"), options.get("kept_sets"), setup.needs_kept_sets),
        *(setup.seed, setup.samples),
    ]
    return hashlib.sha256(dump_bytes(parts, non_str_keys=True)).hexdigest()
