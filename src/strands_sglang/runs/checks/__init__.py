"""The one list of checks of a setup: `CHECKS`, and which of them a run makes before it starts: `QUICK`.

Invariant: a check is an async function of a `Setup` that returns a `Finding`. It raises `UnmetRequirement` if something
it needs is missing, and changes nothing on the server or on this machine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from strands_sglang.runs.checks import machine, sampling, seeds, server, template
from strands_sglang.runs.checks.setup import Finding, Setup

CheckFunction = Callable[[Setup], Awaitable[Finding]]

CHECKS: dict[str, CheckFunction] = {
    "server": server.server,
    "versions": server.versions,
    "workers": server.workers,
    "seeds": seeds.seeds,
    "sampling": sampling.sampling,
    "router": server.router,
    "tokenizer": template.tokenizer,
    "template": template.template,
    "soundness": template.soundness,
    "parser": template.parser,
    "agent": template.agent,
    "dtype": sampling.dtype,
    "logprobs": sampling.logprobs,
    "return_logprob": sampling.return_logprob,
    "kept sets": sampling.kept_sets,
    "stop tokens": sampling.stop_tokens,
    "prefix cache": sampling.prefix_cache,
    "context": server.context,
    "weight version": server.weight_version,
    "abort": sampling.abort,
    "clock": server.clock,
    "open files": machine.open_files,
    "sandbox": machine.sandbox,
    "ray": machine.ray,
}

QUICK = ("server", "context", "tokenizer", "template", "seeds", "sampling", "kept sets")
"""Names of the checks before a run, in the order they are made: nothing is sampled before tokenizer and limits fit."""
