"""Checks of the server or router as a whole: reachable, versions, workers, routing, context, weights, clock.

Invariant: nothing on the server is changed; requests of these checks are short and have keys of their own.
"""

from __future__ import annotations

import asyncio
import platform
import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from strands_sglang._terminal import counted
from strands_sglang._version import __version__
from strands_sglang.engine import ServerEngine
from strands_sglang.engine.probe import WorkerReport
from strands_sglang.errors import ConfigurationError, EngineError
from strands_sglang.runs.checks.setup import Finding, Setup, UnmetRequirement, failed, passed, skipped, warned

OLDEST_SGLANG = (0, 5)  # oldest version of SGLang whose answers have everything that is needed for each token
_OLDEST = {"strands-agents": (1, 62), "transformers": (4, 50)}
_CLOCK_WARN, _CLOCK_FAIL = 2.0, 60.0  # seconds beyond the uncertainty of the measurement
_CONVERSATIONS, _TURNS = 4, 3  # conversations at the same time, and turns of each
_UNRELATED = 2  # further prompts with the key of each conversation
_MOST_ASKED = 8  # workers that are asked which of them served a prompt

_POLICY = (
    "start the router with --policy manual (or consistent_hashing where it exists), which keeps the requests of a "
    "routing key on one worker, or with --policy cache_aware, which follows the prefix; random, round_robin and "
    "power_of_two make most turns prefill their whole history again"
)


async def server(setup: Setup) -> Finding:
    """Check that a server answers at the address."""
    url = setup.client.base_url
    try:
        facts = await setup.facts()
    except ConfigurationError as error:
        return failed(error, "correct base_url or api_key as the message says")
    except EngineError as error:
        return failed(
            error,
            f"start the server (python -m sglang.launch_server ... --port ...) or its router, and check host, port and "
            f"http:// of {url}",
        )
    if not facts.known:
        return warned(
            f"{url} answers, but not /model_info",
            "check that this is an SGLang server or router, and not another proxy; most of the other checks need it",
        )
    what = "server" if facts.url == url else f"router with {counted(facts.workers, 'worker')}"
    return passed(f"{what} at {url}, serving {facts.model_path}")


async def versions(setup: Setup) -> Finding:
    """Check the versions of the packages here and of SGLang there."""
    here = {"strands-sglang": __version__, "Python": platform.python_version()}
    old = []
    for name, oldest in _OLDEST.items():
        try:
            here[name] = version(name)
        except PackageNotFoundError:
            continue
        if release(here[name]) < oldest:
            old.append(f"{name} {here[name]} (needs {'.'.join(map(str, oldest))} or newer)")
    listed = ", ".join(f"{name} {text}" for name, text in here.items())
    if old:
        return failed(
            f"{listed}; too old: {', '.join(old)}", f"pip install -U {' '.join(one.split()[0] for one in old)}"
        )
    try:
        reports = await setup.reports()
    except UnmetRequirement:
        return passed(f"{listed}; the server's is unknown")
    served = sorted({str(report.server["version"]) for report in reports if report.server.get("version")})
    if not served:
        return warned(
            f"{listed}; the server does not report its version",
            f"SGLang {_dotted(OLDEST_SGLANG)} or newer is needed; if it is older: pip install -U sglang",
        )
    found = f"{listed}; SGLang {', '.join(served)}"
    if any(release(text) < OLDEST_SGLANG for text in served):
        return failed(
            found,
            f"SGLang must be {_dotted(OLDEST_SGLANG)} or newer: pip install -U sglang on the server. Older versions do "
            "not return everything that is needed for each token",
        )
    if len(served) > 1:
        return warned(found, "install the same version of SGLang on all workers: their logprobs may differ")
    return passed(found)


def release(text: str) -> tuple[int, ...]:
    """Return the numbers at the start of a version: (0, 5, 21) for "0.5.21.post1"."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(number) for number in found[0].split(".")) if found else ()


def _dotted(numbers: Sequence[int]) -> str:
    return ".".join(map(str, numbers))


async def workers(setup: Setup) -> Finding:
    """Check that every worker answers, and that all serve the same model."""
    reports = await setup.reports()
    dead = [report.url for report in reports if not report.alive]
    if dead:
        return failed(
            f"{len(dead)} of {counted(len(reports), 'worker')} not reachable from here: {', '.join(dead)}",
            "check their logs and restart them, or remove them from the router. If they run, open their ports to this "
            "machine: aborts, pauses and weight updates are sent to each worker directly",
        )
    unhealthy = [report.url for report in reports if not report.healthy]
    if unhealthy:
        return warned(
            f"{len(unhealthy)} of {counted(len(reports), 'worker')} unhealthy for the router: {', '.join(unhealthy)}",
            "check their logs; the router sends them nothing until its health checks succeed",
        )
    for name in ("model_path", "tokenizer_path"):
        values = sorted({str(report.model.get(name)) for report in reports})
        if len(values) > 1:
            return failed(
                f"the workers have different {name}: {', '.join(values)}",
                "start all workers behind one router with the same model; an episode may be served by any of them",
            )
    return passed("1 server" if len(reports) == 1 else f"all {len(reports)} workers answer and serve the same model")


async def context(setup: Setup) -> Finding:
    """Check that the server's context is long enough."""
    facts, limits = await setup.require_server(), setup.limits
    length, wanted, turn = facts.context, limits.max_context_tokens, setup.sampling.get("max_new_tokens")
    if length is None:
        return warned(
            "the server does not report its context length",
            "set Limits(max_context_tokens=...) to the --context-length of the server, so that episodes end cleanly",
        )
    if wanted is not None and wanted > length:
        return failed(
            ConfigurationError(
                f"Limits.max_context_tokens must be at most the server's context length of {length} tokens, got "
                f"{wanted}: set Limits(max_context_tokens={length}), or start the server with --context-length {wanted}"
            ),
            "lower the limit, or start the server with a larger --context-length, as the message says",
        )
    bounds = {
        "Limits.max_response_tokens": limits.max_response_tokens,
        "Limits.max_new_tokens": limits.max_new_tokens,
        "max_new_tokens": turn,
    }
    if beyond := {name: bound for name, bound in bounds.items() if isinstance(bound, int) and bound > length}:
        return warned(
            f"{length} tokens, less than {', '.join(f'{name}={bound}' for name, bound in beyond.items())}",
            "episodes end at the context length: lower the limit, or start the server with a larger --context-length",
            log=f"{', '.join(f'{name}=<{bound}>' for name, bound in beyond.items())}, context=<{length}> | limit is "
            "larger than the server's context length, where episodes end; lower it, or start the server with a larger "
            "--context-length",
        )
    turn = turn or limits.max_new_tokens
    return passed(f"{length} tokens" + (f"; a turn may sample {turn}" if turn else ""))


async def weight_version(setup: Setup) -> Finding:
    """Check that the server names its weights, and that all workers have the same."""
    reports = [report for report in await setup.reports() if report.alive]
    names = sorted({str(report.model.get("weight_version")) for report in reports})
    if names == ["None"]:
        return warned(
            "the server does not report a weight version",
            "update SGLang, and pass weight_version= with every weight update: otherwise no token can be attributed to "
            "the weights that sampled it",
        )
    if len(names) > 1:
        return failed(
            f"the workers have different weights: {', '.join(names)}",
            "a weight update did not reach all workers: repeat it (client.control.swap_weights), then check again",
        )
    return passed(f"{names[0]!r}" + (" on all workers" if len(reports) > 1 else ""))


async def clock(setup: Setup) -> Finding:
    """Compare the clocks of the workers with the one of this machine."""
    reports = [report for report in await setup.reports() if report.alive]
    offsets = await asyncio.gather(*(setup.probe.clock_offset(report.url) for report in reports))
    known = [(report.url, *offset) for report, offset in zip(reports, offsets, strict=True) if offset is not None]
    if not known:
        return skipped("the server sends no Date header")
    url, offset, uncertainty = max(known, key=lambda one: abs(one[1]) - one[2])
    beyond = abs(offset) - uncertainty
    if beyond <= _CLOCK_WARN:
        return passed(f"within {max(abs(offset) + uncertainty, 1.0):.0f} s of this machine's")
    found = f"{url} is {abs(offset):.0f} s {'ahead of' if offset > 0 else 'behind'} this machine"
    advice = (
        "synchronise both machines (chronyd or systemd-timesyncd; `timedatectl` shows the state): times in ledgers, "
        "traces and logs do not match, and certificates and signed requests may be refused"
    )
    return failed(found, advice) if beyond > _CLOCK_FAIL else warned(found, advice)


async def router(setup: Setup) -> Finding:
    """Check that the turns of one conversation stay on one worker."""
    facts = await setup.require_sampling()
    reports = [report for report in await setup.reports() if report.alive]
    if facts.workers == 1:
        return passed("one server: every turn goes to it")
    if len(await setup.known_ids()) < 2:
        return skipped("the workers do not answer /tokenize, so there is nothing to make prompts of")
    keys = [setup.fresh_key() for _ in range(_CONVERSATIONS)]
    found = await asyncio.gather(*(_conversation(setup, key) for key in keys))
    turns = [covered for one, _ in found for covered in one]
    if any(covered is None for covered in turns):
        return warned(
            "the workers do not report cached tokens, so it is unknown whether turns stay on one worker",
            f"update SGLang, and {_POLICY}",
        )
    kept = sum(bool(covered) for covered in turns)
    places = await _places(setup, reports, [prompts for _, prompts in found])
    if kept < len(turns):
        off = " or the cache is off (--disable-radix-cache)" if kept == 0 else ""
        return warned(
            f"no stickiness: {len(turns) - kept} of {len(turns)} turns with the same routing key did not find the turn "
            f"before in the cache of their worker{f'; {places[0]}' if places else ''}",
            f"{_POLICY}{';' if off else ''}{off}",
        )
    policy = f"; {places[0]}{places[1]}" if places else ""
    return passed(f"all {len(turns)} further turns stayed on the worker of their conversation{policy}")


async def _conversation(setup: Setup, key: str) -> tuple[list[bool | None], list[list[int]]]:
    """Play a conversation, and send unrelated prompts with its key.

    Returns whether the prefix of each turn after the first was cached (None: not reported), and these prompts.
    """
    page, sampling = await setup.page_size(), {"max_new_tokens": 2, "temperature": 0.0}
    prompt = await setup.fresh_prompt()
    covered: list[bool | None] = []
    before = 0
    for _ in range(_TURNS):
        turn = await setup.client.generate(prompt, sampling, routing_key=key)
        if before:
            reported = turn.cached_tokens
            covered.append(None if reported is None else reported >= before - page)
        prompt = [*prompt, *turn.token_ids]
        before = len(prompt)
        prompt += await setup.fresh_prompt(16)
    unrelated = [await setup.fresh_prompt() for _ in range(_UNRELATED)]
    for other in unrelated:
        await setup.client.generate(other, sampling, routing_key=key)
    return covered, unrelated


async def _places(
    setup: Setup, reports: Sequence[WorkerReport], prompts: Sequence[Sequence[list[int]]]
) -> tuple[str, str] | None:
    """Return how many routing keys stayed on one worker, and which policy that suggests; None if it is unclear."""
    if not 2 <= len(reports) <= _MOST_ASKED:
        return None
    clients: list[ServerEngine] = []
    try:
        clients += [setup.client.at(report.url, max_connections=16) for report in reports]
        asked = [[_worker_of(clients, prompt) for prompt in group] for group in prompts]
        found = [await asyncio.gather(*group) for group in asked]
    except EngineError:
        return None
    finally:
        await asyncio.gather(*(client.close() for client in clients))
    if any(place is None for group in found for place in group):
        return None
    steady = sum(len(set(group)) == 1 for group in found)
    used = len({place for group in found for place in group})
    count = f"{steady} of {len(found)} routing keys stayed on one worker, {counted(used, 'worker')} used"
    if used == 1:
        return count, " (too little load to tell the policy)"
    if steady == len(found):
        return count, " (routed by key: manual or consistent_hashing)"
    return count, " (routed by prefix: cache_aware)"


async def _worker_of(clients: Sequence[ServerEngine], prompt: list[int]) -> int | None:
    """Return the index of the only worker that has a prompt in its cache; None if it is not exactly one."""
    sampling = {"max_new_tokens": 1, "temperature": 0.0}
    turns = await asyncio.gather(*(client.generate(prompt, sampling) for client in clients))
    having = [at for at, turn in enumerate(turns) if (turn.cached_tokens or 0) >= len(prompt) // 2]
    return having[0] if len(having) == 1 else None
