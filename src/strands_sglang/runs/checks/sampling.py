"""Checks of sampled tokens: they arrive, logprobs are exact, prefixes are cached, stop tokens are kept, aborts work.

Invariant: prompts consist of ids that the server itself returned (`Setup.known_ids`), and every request that a check
does not wait for is aborted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from strands_sglang.engine import FinishReason, Generation
from strands_sglang.engine.request import has_kept_sets
from strands_sglang.errors import (
    ConfigurationError,
    ContextOverflowError,
    EngineError,
    EngineUnavailableError,
    KeptSetsMissingError,
    LedgerError,
    MalformedResponseError,
    RequestRejectedError,
)
from strands_sglang.proof.rescore import TOLERANCE
from strands_sglang.provider.config import kept_top_k
from strands_sglang.runs.checks.setup import Finding, Setup, failed, model_config, passed, skipped, warned

_SAMPLED = 16  # tokens of a probe
_MEAN_16_BIT, _LARGEST_16_BIT = 0.05, 1.0  # differences of logprobs that 16-bit arithmetic explains
_ABORT_TOKENS, _ABORT_AFTER, _ABORT_AGAIN = 4096, 0.2, 0.5  # tokens requested; seconds before the aborts
_LAST_ABORT = 1.0  # seconds for the abort of a request that a check no longer waits for
_NAMES = {"half": "float16", "float": "float32", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}

_NEUTRAL = {"top_p": 1.0, "top_k": -1, "min_p": 0.0}
"""Sampling parameters that restrict the choice of tokens, with the values that do not."""


async def sampling(setup: Setup) -> Finding:
    """Check that the server samples a token with the sampling parameters of a run."""
    await setup.require_server()
    try:
        setup.client.check_sampling(setup.sampling)
        problem = await setup.token_problem()
    except ConfigurationError as error:
        return failed(error, "correct sampling_params, or the fields in extra, as the message says")
    except MalformedResponseError as error:
        return failed(error, "use SGLang 0.5 or newer: pip install -U sglang on the server")
    except EngineUnavailableError as error:
        resume = "POST /continue_generation to each worker, or await client.control.resume()"
        if "paused" in str(error):
            return failed(error, f"the server is paused, as for a weight update that did not finish: {resume}")
        return failed(error, "check the log of the server: it accepts requests but fails to sample")
    if problem:
        return warned(
            "no token arrived in time",
            "the server is busy, or paused for a weight update (POST /continue_generation resumes it): check again "
            "when it is idle",
            log=problem,
        )
    return passed("one token was sampled with your sampling parameters")


async def kept_sets(setup: Setup) -> Finding:
    """Check that the server returns kept sets, if turns are to have them."""
    given, wanted = setup.sampling, setup.options.get("kept_sets", "auto")
    limited = has_kept_sets(given)
    if wanted is not True and not (wanted == "auto" and limited):
        if not limited:
            return skipped("sampling has no kept sets")
        if not setup.needs_kept_sets:
            return skipped("sampling has kept sets, but kept_sets=False")
        return failed(
            ConfigurationError(
                "kept_sets must not be False: sampling has kept sets, and the trainer renormalises over the kept sets"
            ),
            "leave kept_sets out, or sample without top_p, top_k and min_p",
        )
    await setup.require_sampling()
    one = {**given, "max_new_tokens": 1, "top_k": kept_top_k(given)}
    one.pop("min_new_tokens", None)
    try:
        await setup.client.generate(
            (await setup.known_ids())[:16],
            one,
            kept_sets=True,
            extra=setup.options.get("extra"),
            deadline=setup.probe.left,
        )
        return passed("the server returns them")
    except (KeptSetsMissingError, RequestRejectedError) as error:
        why = str(error)
    except EngineError as error:
        log = f"error=<{error}> | kept sets could not be checked"
        return skipped(f"the request for them failed: {error!s:.200}", log=log)
    advice = (
        "SGLang 0.5.21 or newer returns them, without speculative decoding; a router that drops the request for them "
        "must list its workers, or use a worker's own address; or sample without top_p, top_k and min_p"
    )
    url = setup.client.base_url
    if wanted is True or setup.needs_kept_sets:
        refusal = ConfigurationError(f"{url} returns no kept sets: {why}. {advice}")
        return failed(refusal, "docs/guides/kept-sets.md explains what they are for")
    return warned(
        f"the server returns none: {why}",
        f"turns are recorded without them, and importance ratios are biased: {advice}",
        log=f"server=<{url}>, error=<{why}> | the server returns no kept sets, so turns are "
        f"recorded without them, and importance ratios are biased: {advice}",
    )


def _dtype_name(value: Any) -> str | None:
    if not isinstance(value, str) or not value or value == "auto":
        return None
    name = value.removeprefix("torch.").lower()
    return _NAMES.get(name, name)


def _checkpoint_dtype(model_path: Any) -> str | None:
    config = model_config(model_path)
    parts = [part for part in (config, config.get("text_config")) if isinstance(part, dict)]
    found = [part[name] for part in parts for name in ("dtype", "torch_dtype") if part.get(name)]
    return _dtype_name(found[0]) if found else None


async def served_dtype(setup: Setup) -> tuple[str | None, str | None]:
    """Return the number format that the server computes in, and the expected one; None if unknown."""
    report = await setup.report()
    checkpoint = await asyncio.to_thread(_checkpoint_dtype, report.model.get("model_path"))
    served = _dtype_name(report.server.get("dtype"))
    if served is None and report.server.get("dtype") == "auto":
        served = checkpoint if checkpoint != "float32" else "float16"  # what "auto" means in SGLang
    return served, _dtype_name(setup.dtype) or checkpoint


async def dtype(setup: Setup) -> Finding:
    """Check that the server computes in the number format of the trainer."""
    report = await setup.report()
    served, expected = await served_dtype(setup)
    whose = "your trainer's" if setup.dtype else "the checkpoint's"
    if served is None:
        return skipped("the server does not report its number format")
    if expected is not None and served != expected:
        found = f"the server computes in {served}, {whose} format is {expected}"
        advice = (
            f"start the server with --dtype {expected}: in another format its logprobs are not those that training "
            "computes for the same weights"
        )
        wider = served == "float32" and not setup.dtype
        return passed(f"{found} (more precise)") if wider else failed(found, advice)
    lossy = {
        name: report.server[name]
        for name in ("quantization", "kv_cache_dtype")
        if report.server.get(name) not in (None, "auto", "", served)
    }
    if lossy:
        listed = ", ".join(f"{name}={value}" for name, value in lossy.items())
        return warned(
            f"{served}, with {listed}",
            "sampled logprobs are those of the quantised model: correct for it in training (importance sampling), or "
            f"start the server without {' and '.join('--' + name.replace('_', '-') for name in lossy)}",
        )
    return passed(f"{served}" + (f", as {whose}" if expected else ""))


async def logprobs(setup: Setup) -> Finding:
    """Sample a short turn and let the engine score it again."""
    await setup.require_sampling()
    prompt = await setup.fresh_prompt()
    sampling = {"max_new_tokens": _SAMPLED, "temperature": 1.0, "ignore_eos": True}
    turn = await setup.client.generate(prompt, sampling, routing_key=setup.fresh_key())
    if len(prompt) < 2 or not len(turn):
        return skipped("no prompt to sample from")
    try:
        again = (await setup.client.score([*prompt, *turn.token_ids], len(prompt))).logprobs
    except (LedgerError, EngineError) as error:
        return failed(
            f"the engine does not score a prompt: {error!s:.200}",
            "update SGLang (0.5 or newer), and start it without --disable-logprob or a proxy that removes fields",
        )
    differences = np.abs(again - np.asarray(turn.logprobs))
    largest, mean = float(differences.max()), float(differences.mean())
    served, _ = await served_dtype(setup)
    found = f"scored again, {len(turn)} tokens differ by {largest:.2g} at most ({mean:.2g} on average)"
    if largest <= TOLERANCE:
        return passed(found)
    narrow = served in ("float16", "bfloat16")
    if narrow and mean <= _MEAN_16_BIT and largest <= _LARGEST_16_BIT:
        return passed(f"{found}, as expected in {served}")
    if served is None and mean <= _MEAN_16_BIT and largest <= _LARGEST_16_BIT:
        return warned(
            f"{found}; the number format of the server is unknown",
            "start the server with --dtype float32 to compare exactly; in 16 bits such differences are normal",
        )
    return failed(
        found,
        "sampled logprobs are not those of the model: check that all workers have the same weights, model and --dtype, "
        "that no weight update is running, and that no proxy or custom logit processor changes them",
    )


async def return_logprob(setup: Setup) -> Finding:
    """Check that logprobs come for sampled tokens only, and that sampling does not distort them."""
    await setup.require_sampling()
    prompt = await setup.fresh_prompt()
    body = {
        "input_ids": prompt,
        "sampling_params": {"max_new_tokens": 4, "temperature": 1.0, "ignore_eos": True},
        "return_logprob": True,
    }
    answer = await setup.client.control.answer_to(body)
    meta: Mapping[str, Any] = answer.get("meta_info") or {}
    sampled, scored = len(answer.get("output_ids") or ()), len(meta.get("output_token_logprobs") or ())
    if sampled != scored or not sampled:
        return failed(
            f"{sampled} sampled tokens, {scored} logprobs",
            "use SGLang 0.5 or newer without a proxy that removes fields: every sampled token needs its logprob",
        )
    prompts = len(meta.get("input_token_logprobs") or ())
    if prompts > 1:
        return warned(
            f"the server also returns logprobs of {prompts} prompt tokens",
            "update SGLang: prompt logprobs make it compute the whole prompt again instead of using its prefix cache. "
            "Requests of other clients should not set logprob_start_len below the length of the prompt",
        )
    given = setup.sampling
    cut = [f"{name}={given[name]}" for name, neutral in _NEUTRAL.items() if given.get(name, neutral) != neutral]
    if cut:
        return warned(
            f"one logprob per sampled token, of the full distribution; you sample with {', '.join(cut)}",
            "train over the same kept sets, or sample with top_p=1, top_k=-1, min_p=0: otherwise the ratio of new to "
            "old probability is biased",
        )
    extra = setup.options.get("extra") or {}
    if extra.get("top_logprobs_num"):
        return warned(
            f"one logprob per sampled token, and extra requests top_logprobs_num={extra['top_logprobs_num']}",
            "remove it unless you use it: answers grow by that factor, and nothing in a ledger records it",
        )
    return passed("one logprob per sampled token, none of the prompt")


async def prefix_cache(setup: Setup) -> Finding:
    """Check that the second turn of a conversation finds the first one in the prefix cache."""
    await setup.require_sampling()
    if len(await setup.known_ids()) < 2:
        return skipped("the server does not answer /tokenize, so there is nothing to make prompts of")
    prompt, key, page = await setup.fresh_prompt(), setup.fresh_key(), await setup.page_size()
    sampling = {"max_new_tokens": 8, "temperature": 1.0, "ignore_eos": True}
    first = await setup.client.generate(prompt, sampling, routing_key=key)
    before = [*prompt, *first.token_ids]
    second = await setup.client.generate(
        [*before, *await setup.fresh_prompt(16)], {**sampling, "max_new_tokens": 1}, routing_key=key
    )
    cached = second.cached_tokens
    if cached is None:
        return warned(
            "the server does not report cached tokens",
            "update SGLang; without the report you cannot see whether turns are prefilled again and again",
        )
    # The last sampled token was never fed to the model, and a cache holds whole pages.
    if cached >= len(before) - page:
        return passed(f"turn 2 found {cached} of {len(before)} tokens of turn 1 in the cache")
    report = await setup.report()
    if report.server.get("disable_radix_cache"):
        return warned(
            f"turn 2 found {cached} of {len(before)} tokens in the cache: the cache is off",
            "start the server without --disable-radix-cache: every turn prefills the whole conversation again",
        )
    return warned(
        f"turn 2 found only {cached} of {len(before)} tokens of turn 1 in the cache",
        "behind a router, turns must stay on one worker (see the line router); on one server, its cache is too small "
        "(--mem-fraction-static, --max-total-tokens) or was flushed",
    )


async def stop_tokens(setup: Setup) -> Finding:
    """Check that the token that ends a turn is among the sampled tokens."""
    await setup.require_sampling()
    advice = (
        "the end-of-turn token must be returned, or the policy is never trained to end its turns: use SGLang's own "
        "/generate (0.5 or newer), without a proxy that removes the stop token from output_ids"
    )
    prompt, key = await setup.fresh_prompt(), setup.fresh_key()
    greedy = {"max_new_tokens": _SAMPLED, "temperature": 0.0}
    try:
        free = await setup.client.generate(prompt, {**greedy, "ignore_eos": True}, routing_key=key)
        ids = list(free.token_ids)
        stop = max(set(ids), key=ids.index)  # the token that occurs first as late as possible
        turn = await setup.client.generate(prompt, {**greedy, "stop_token_ids": [stop]}, routing_key=key)
    except MalformedResponseError as error:
        return failed(f"the counts of an answer that was stopped do not agree: {error!s:.200}", advice)
    return _stopped(turn, advice)


def _stopped(turn: Generation, advice: str) -> Finding:
    if turn.finish_reason is not FinishReason.STOP or not isinstance(turn.finish_detail, int):
        return skipped("the probe did not end with a stop token")
    if not len(turn) or turn.token_ids[-1] != turn.finish_detail:
        return failed(
            f"the server stopped at token {turn.finish_detail} but does not return it: it trims stop tokens", advice
        )
    return passed("a turn ends with its stop token")


async def abort(setup: Setup) -> Finding:
    """Start a long request and abort it by its id."""
    facts = await setup.require_sampling()
    prompt = await setup.fresh_prompt(32)
    room = (facts.context or 2048) - len(prompt) - 16
    rid = f"doctor-abort-{os.urandom(8).hex()}"
    wanted = max(1, min(_ABORT_TOKENS, room))
    sampling = {"max_new_tokens": wanted, "temperature": 1.0, "ignore_eos": True}
    body = {"rid": rid, "input_ids": prompt, "sampling_params": sampling}
    control = setup.client.control
    request = asyncio.ensure_future(control.answer_to(body))
    refused = ""
    try:
        until = asyncio.get_running_loop().time() + setup.seconds / 2
        await asyncio.wait({request}, timeout=_ABORT_AFTER)
        while not request.done() and asyncio.get_running_loop().time() < until:
            results = await control.abort(rid)
            refused = next((result.message for result in results if not result.ok), refused)
            await asyncio.wait({request}, timeout=_ABORT_AGAIN)
        if not request.done():
            detail = f" ({refused})" if refused else ""
            return failed(
                f"the request was not ended by /abort_request{detail}",
                "this machine must reach every worker (the router does not forward aborts): open their ports, and use "
                "SGLang 0.5 or newer. Otherwise cancelled episodes keep decoding on the engine",
            )
        try:
            answer = request.result()
        except (ContextOverflowError, EngineError) as error:
            return failed(f"the request failed: {error!s:.200}", "check the log of the server")
    finally:
        if not request.done():
            request.cancel()
            with suppress(EngineError, asyncio.TimeoutError):
                await asyncio.wait_for(control.abort(rid), _LAST_ABORT)
            await asyncio.wait({request})
    meta = answer.get("meta_info") or {}
    reason, count = (meta.get("finish_reason") or {}).get("type"), len(answer.get("output_ids") or ())
    if reason == "abort":
        return passed(f"a request of {wanted} tokens was ended after {count}")
    return skipped(f"the request ended by itself after {count} tokens, before the abort arrived")
