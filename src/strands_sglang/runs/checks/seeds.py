"""Check of seeds: whether they have an effect on the server, and whether a run needs them.

Without a seed, an SGLang server with deterministic inference uses seed 42 for every request: all samples of a task are
the same, and a group has no advantage to learn from. With `min_p`, the scheduler of such a server fails an assertion
and the server ends.

Invariant: nothing is sent to find this out.
"""

from __future__ import annotations

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs.checks.setup import Finding, Setup, failed, passed, skipped, warned

_FLAG = "--enable-deterministic-inference"


async def seeds(setup: Setup) -> Finding:
    """Check that a run has a seed where it needs one, and that the seed has an effect."""
    facts, sampling = await setup.require_server(), setup.sampling
    if not facts.deterministic:
        if setup.seed is None:
            return skipped("the run has no seed")
        url = setup.client.base_url
        return warned(
            f"the server ignores seeds: it was not started with {_FLAG}",
            f"start the server with {_FLAG}; without it the run cannot be repeated",
            log=f"server=<{url}>, seed=<{setup.seed}> | server does not report {_FLAG} and may ignore seeds, so the "
            "run cannot be repeated",
        )
    if sampling.get("min_p"):
        error = f"min_p must not be used on a server with {_FLAG}, got {sampling['min_p']!r}: its scheduler would end"
        return failed(ConfigurationError(error), f"remove min_p, or start the server without {_FLAG}")
    if setup.seed is not None:
        return passed(f"every turn has a seed of its own, derived from {setup.seed}")
    if sampling.get("temperature") == 0:
        return passed("sampling is greedy and needs no seed")
    if setup.samples is None or setup.samples > 1:
        given = "one seed for all turns" if "sampling_seed" in sampling else "no seed, which means seed 42 for all"
        found = f"the server has {_FLAG}, and sampling has {given}: the samples of a task would be copies of each other"
        advice = f"pass seed= (on the command line --seed), or start the server without {_FLAG}"
        if setup.samples is None:
            return warned(found, advice)
        return failed(ConfigurationError(f"{found}; {advice}"), advice)
    return passed("one sample per task, without a seed: the server uses seed 42 for every turn")
