"""`strands-sglang doctor`: checks a server, a tokenizer, an agent and this machine before a run.

Invariant: the exit code is 0 only if no check failed. Nothing is written and the server is not changed.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from typing import Any

from strands_sglang._terminal import escape_for_terminal
from strands_sglang.cli import _command as cli
from strands_sglang.cli._run_options import API_KEY, model_arguments, model_params
from strands_sglang.cli._wording import in_options

CHECKS = (
    *("server", "versions", "workers", "seeds", "sampling", "router", "tokenizer", "template", "soundness", "parser"),
    *("agent", "dtype", "logprobs", "return_logprob", "kept sets", "stop tokens", "prefix cache", "context"),
    *("weight version", "abort", "clock", "open files", "sandbox", "ray"),
)
"""Values of `--only`. Listed here because their module imports much."""
WARNED = 3  # exit code of --strict
_STYLES = {"PASS": "green", "WARN": "yellow", "FAIL": "red", "SKIP": "dim"}


def run(
    base_url: str,
    tokenizer: str,
    agent: str | None,
    concurrency: int,
    workers: int,
    dtype: str | None,
    worker_host: tuple[str, ...],
    timeout: float,
    only: tuple[str, ...],
    strict: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Check that a server or router, a tokenizer, your agent and this machine fit together, before you run episodes.
    Each line of the report passes, warns or fails; below a warning or failure it says what to do. About a hundred small
    requests are sent; no tool is run.

    Give the limits and options of your run, so that they are checked too. The server's API key is read from the
    environment variable STRANDS_SGLANG_API_KEY.
    """
    from strands_sglang._async import run_async
    from strands_sglang.doctor import Status, diagnose

    build = None if agent is None else cli.import_function(agent, "--agent", "my_agent:build")
    if not as_json and sys.stderr.isatty():
        waiting = f"checking {escape_for_terminal(base_url)}, for {timeout:g} seconds at most ..."
        print(waiting, file=sys.stderr, flush=True)
    report = run_async(
        diagnose(
            base_url,
            tokenizer,
            agent=build,
            concurrency=concurrency,
            workers=workers,
            dtype=dtype,
            api_key=os.environ.get(API_KEY) or None,
            worker_hosts=worker_host or None,
            timeout=timeout,
            only=only or None,
            **model_arguments(given, diagnose),
        )
    )
    code = WARNED if strict and report.status is Status.WARN else report.exit_code
    if as_json:
        print(cli.json_text(report.to_dict(), indent=2))
        return code
    paint = cli.Paint(cli.wants_colours())
    checks = tuple(
        replace(one, found=in_options(one.found, command), advice=in_options(one.advice, command))
        for one in report.checks
    )
    report = replace(report, checks=checks)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in report.text(width).splitlines():
        word = line[:4]
        print(paint(word, _STYLES[word], "bold") + line[4:] if word in _STYLES else line)
    return code


command = cli.Command(
    "doctor",
    callback=run,
    params=[
        cli.option("--base-url", "address of the SGLang server or router", metavar="URL", required=True),
        cli.option("--tokenizer", "the model's tokenizer: a name or path", metavar="NAME", required=True),
        cli.function_option("--agent", "build function: build(task, model) returns an agent; it is built and not run"),
        cli.option("--concurrency", "episodes that will run at once", cli.POSITIVE, default=1000),
        cli.option("--workers", "Ray processes that will be used", cli.NOT_NEGATIVE, default=0),
        cli.option(
            "--dtype",
            "number format in which your trainer computes logprobs, such as bfloat16 (default: the checkpoint's)",
            metavar="NAME",
        ),
        cli.option(
            "--worker-host",
            "host of the router's workers that may receive the API key; can be repeated",
            metavar="HOST",
            multiple=True,
        ),
        cli.option("--timeout", "seconds of each check", float, default=20.0),
        cli.option(
            "--only", f"only this check: {', '.join(CHECKS)}; can be repeated", CHECKS, metavar="CHECK", multiple=True
        ),
        *model_params(),
        cli.flag("--strict", "exit with 3 if there are warnings"),
        cli.json_option(),
    ],
    exit_codes={
        0: "no check failed",
        1: "a check failed: a run would not work, or would record something other than you expect",
        2: "invalid arguments",
        3: "with --strict: there are warnings: a run would work, but slower or with a risk",
    },
    examples=[
        "doctor --base-url http://localhost:30000 --tokenizer Qwen/Qwen3-8B",
        "doctor --base-url http://router:30000 --tokenizer Qwen/Qwen3-8B --agent my_agent:build \\\n"
        "      --max-context-tokens 32768 --concurrency 2048 --dtype bfloat16",
        "doctor --base-url http://localhost:30000 --tokenizer Qwen/Qwen3-8B --only router --only 'prefix cache' --json",
    ],
)
