"""`strands-sglang bench`: throughput and latency of a server, measured with the bare client.

Invariant: prompts and outputs have the given numbers of tokens, whatever the model would answer. The exit code is 0
only if no request failed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from strands_sglang.cli._command import Command, int_list, json_object, json_option
from strands_sglang.errors import ConfigurationError

if TYPE_CHECKING:
    from strands_sglang.cli._bench_load import LevelResult, LoadPlan
    from strands_sglang.engine import SGLangClient

DONE, FAILED = 0, 1
"""Exit codes: every request was answered; some failed."""

_DESCRIPTION = """\
Measure a server or router: conversations of several turns, as an agent sends them, at several concurrencies. Prompts
are random tokens, so no tokenizer is needed, and outputs have a fixed length. Each turn sends the whole conversation
again: the share of prompt tokens served from the prefix cache shows whether turns find their history, and behind a
router, whether a conversation stays on its worker.

The server's API key is read from the environment variable STRANDS_SGLANG_API_KEY.
"""
_COLUMNS = (
    *(("concurrency", 11), ("turns", 7), ("failed", 6), ("output tok/s", 12), ("prompt tok/s", 12)),
    *(("turns/s", 8), ("p50 s", 8), ("p90 s", 8), ("p99 s", 8), ("first s", 8), ("cached", 6)),
)


def run(
    base_url: str,
    concurrency: tuple[int, ...],
    rounds: int,
    client_options: dict[str, Any] | None,
    seed: int | None,
    as_json: bool,
    **sizes: Any,
) -> int:
    """Measure a server; return the exit code.

    Raises:
        ConfigurationError: An argument is invalid, or does not fit the server.
        EngineError: The server cannot be used.
    """
    from strands_sglang._run_async import run_async
    from strands_sglang.cli._bench_load import LoadPlan
    from strands_sglang.cli._output import json_text
    from strands_sglang.cli._run_options import engine_client

    plan = LoadPlan(**sizes)
    if plan.shared_tokens > plan.prompt_tokens:
        raise ConfigurationError(
            f"--shared-tokens must be at most --prompt-tokens ({plan.prompt_tokens}), got {plan.shared_tokens}"
        )
    client = engine_client(base_url, client_options, max(concurrency))
    results = run_async(_measure(client, plan, concurrency, rounds, seed, show=not as_json))
    if as_json:
        about = {"base_url": client.base_url, "plan": sizes, "rounds": rounds}
        print(json_text({**about, "levels": [one.to_dict() for one in results]}, indent=2))
    return FAILED if any(one.failures for one in results) else DONE


async def _measure(
    client: SGLangClient, plan: LoadPlan, levels: tuple[int, ...], rounds: int, seed: int | None, *, show: bool
) -> list[LevelResult]:
    """Measure each level; print its line as soon as it is done."""
    import random

    from strands_sglang._terminal import escape_for_terminal
    from strands_sglang.cli._bench_load import LoadPlan, run_level, token_pool

    seed = random.SystemRandom().getrandbits(63) if seed is None else seed
    results = []
    async with client:
        pool = await token_pool(client)
        context = await client.max_model_len()
        if context is not None and plan.longest > context:
            raise ConfigurationError(
                f"a conversation must fit into the server's context of {context:,} tokens, got {plan.longest:,}: lower "
                "--prompt-tokens, --output-tokens, --turn-tokens or --turns"
            )
        if show:
            print(_head(client.base_url, plan), flush=True)
        warm = LoadPlan(plan.prompt_tokens, plan.output_tokens, 1, 0, plan.shared_tokens, plan.temperature)
        await run_level(client, warm, pool, 1, 1, seed - 1)
        for number, level in enumerate(levels):
            result = await run_level(client, plan, pool, level, level * rounds, seed + number)
            results.append(result)
            if show:
                print(_row(result), flush=True)
            if result.error:
                message = f"{result.failures:,} failed at concurrency {level}: {result.error}"
                print(f"strands-sglang: {escape_for_terminal(message)}", file=sys.stderr)
    return results


def _head(url: str, plan: LoadPlan) -> str:
    from strands_sglang._terminal import counted, escape_for_terminal

    shared = f", {plan.shared_tokens:,} of them shared" if plan.shared_tokens else ""
    about = (
        f"{escape_for_terminal(url)}  conversations of {counted(plan.turns, 'turn')}: prompt of "
        f"{plan.prompt_tokens:,} tokens{shared}, {plan.output_tokens:,} sampled in each turn, {plan.turn_tokens:,} new "
        "ones between turns"
    )
    return f"{about}\n\n" + "  ".join(name.rjust(width) for name, width in _COLUMNS)


def _row(result: LevelResult) -> str:
    from strands_sglang.cli._output import number

    facts = result.to_dict()
    turn, cached = facts["turn_seconds"], facts["cached_share"]
    cells = (
        f"{result.concurrency:,}",
        f"{facts['turns']:,}",
        f"{result.failures:,}",
        f"{facts['output_tokens_per_second']:,.0f}",
        f"{facts['prompt_tokens_per_second']:,.0f}",
        f"{facts['turns_per_second']:,.2f}",
        *(number(turn[name], 3) for name in ("p50", "p90", "p99")),
        number(facts["first_turn_seconds"], 3),
        "-" if cached is None else f"{cached:.0%}",
    )
    return "  ".join(cell.rjust(width) for cell, (_, width) in zip(cells, _COLUMNS, strict=True))


def _count(name: str, default: int, help: str, *, least: int = 1) -> click.Option:
    return click.Option(
        [name], type=click.IntRange(min=least), default=default, show_default=True, metavar="N", help=help
    )


command = Command(
    "bench",
    callback=run,
    help=_DESCRIPTION,
    params=[
        click.Option(
            ["--base-url"],
            default="http://localhost:30000",
            show_default=True,
            metavar="URL",
            help="address of the server or router",
        ),
        click.Option(
            ["--concurrency"],
            type=int_list,
            default="1,8,64",
            show_default=True,
            metavar="N,N,...",
            help="conversations at once, one measurement each",
        ),
        _count("--rounds", 2, "conversations of each of the concurrent ones"),
        _count("--turns", 4, "turns of a conversation"),
        _count("--prompt-tokens", 1024, "tokens of the first prompt"),
        _count("--output-tokens", 128, "tokens sampled in each turn"),
        _count("--turn-tokens", 128, "new tokens between two turns: a tool's result", least=0),
        _count("--shared-tokens", 0, "tokens at the start of all prompts: a system prompt", least=0),
        click.Option(
            ["--temperature"], type=float, metavar="X", default=1.0, show_default=True, help="sampling temperature"
        ),
        click.Option(["--seed"], type=int, metavar="N", help="seed of the prompts (default: another one each time)"),
        click.Option(["--client-options"], type=json_object, metavar="JSON", help="further arguments of SGLangClient"),
        json_option(),
    ],
    exit_codes={
        0: "every request was answered",
        1: "some requests failed",
        2: "invalid arguments, or the server cannot be used",
    },
    examples=[
        "bench",
        "bench --base-url http://router:30000 --concurrency 64,256,1024 --prompt-tokens 8192 --output-tokens 512",
        "bench --turns 1 --concurrency 1 --json",
    ],
)
"""The command."""
