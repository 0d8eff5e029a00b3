"""`diagnose`: runs all checks at the same time and collects a report.

Invariant: a check ends within its time limit. A check that raises, hangs or is cancelled by its limit is a line of the
report, and changes no other line.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from strands_sglang._checks import check_int, check_number, did_you_mean
from strands_sglang.doctor import machine_checks, sampling_checks, server_checks, template_checks
from strands_sglang.doctor.report import Check, Finding, Report, failed, skipped
from strands_sglang.doctor.subject import Subject, UnmetRequirement, check_options
from strands_sglang.engine import SGLangClient
from strands_sglang.errors import ConfigurationError, EngineError
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.task import Task

logger = logging.getLogger(__name__)

CheckFunction = Callable[[Subject], Awaitable[Finding]]

CHECKS: dict[str, CheckFunction] = {
    "server": server_checks.server,
    "versions": server_checks.versions,
    "workers": server_checks.workers,
    "sampling": sampling_checks.sampling,
    "router": server_checks.router,
    "tokenizer": template_checks.tokenizer,
    "template": template_checks.template,
    "soundness": template_checks.soundness,
    "parser": template_checks.parser,
    "agent": template_checks.agent,
    "dtype": sampling_checks.dtype,
    "logprobs": sampling_checks.logprobs,
    "return_logprob": sampling_checks.return_logprob,
    "stop tokens": sampling_checks.stop_tokens,
    "prefix cache": sampling_checks.prefix_cache,
    "context": server_checks.context,
    "weight version": server_checks.weight_version,
    "abort": sampling_checks.abort,
    "clock": server_checks.clock,
    "open files": machine_checks.open_file_limit,
    "sandbox": machine_checks.sandbox,
    "ray": machine_checks.ray,
}
"""All checks by name, in the order of a report."""


async def diagnose(
    base_url: str,
    tokenizer: Any,
    *,
    agent: Callable[..., Any] | None = None,
    task: Task | str | Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    concurrency: int = 1000,
    workers: int = 0,
    dtype: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 20.0,
    only: Collection[str] | None = None,
    **model_options: Any,
) -> Report:
    """Check a server or router, a tokenizer, an agent and this machine, and say what to do.

    About a hundred small requests are sent. Nothing is written, no tool is run, and the server is not changed.

    Args:
        base_url: Address of the server or router.
        tokenizer: The model's tokenizer, or the name or path to load it from.
        agent: The function that builds an agent from a task and a model, as for `rollout`. It is called once.
        task: Task that the agent is built for; None: a greeting.
        limits: Limits of an episode, as for `rollout`.
        concurrency: Number of episodes that will run at the same time.
        workers: Number of Ray workers that will be used; 0: none.
        dtype: Number format in which your trainer computes logprobs, such as "bfloat16"; None: the checkpoint's.
        api_key: Sent to the server as a bearer token.
        headers: Further headers for every request.
        timeout: Upper bound on the duration of each check, in seconds. Checks run at the same time.
        only: Names of the checks to make; None: all.
        **model_options: Arguments of `SGLangModel`: `tool_parser`, `chat_template`, `sampling_params`, ...

    Returns:
        One check per line of `CHECKS`.

    Raises:
        ConfigurationError: An argument is invalid. A server that is missing or wrong is in the report instead.

    Example:
        ```python
        report = await diagnose("http://localhost:30000", "Qwen/Qwen3-8B", agent=build)
        print(report.text())
        ```
    """
    check_int("concurrency", concurrency, optional=False)
    check_int("workers", workers, minimum=0, optional=False)
    check_number("timeout", timeout, optional=False, finite=True)
    check_options(model_options)
    for name in only or ():
        if name not in CHECKS:
            raise ConfigurationError(f"only must name checks ({', '.join(CHECKS)}), got {name!r}{_hint(name)}")
    client = SGLangClient(base_url, max_retries=0, api_key=api_key, headers=headers, max_connections=64)
    subject = Subject(
        client,
        tokenizer,
        dict(model_options),
        limits or Limits(),
        agent,
        Task("Say hello.", id="doctor") if task is None else Task.of(task),
        concurrency,
        workers,
        dtype,
        timeout,
    )
    try:
        made = [run_check(name, check, subject) for name, check in CHECKS.items() if only is None or name in only]
        return Report(client.base_url, tuple(await asyncio.gather(*made)))
    finally:
        await subject.close()


async def run_check(name: str, check: CheckFunction, subject: Subject) -> Check:
    """Run one check within its time limit; whatever happens is a line of the report.

    Args:
        name: Its name.
        check: The function.
        subject: What is diagnosed.
    """
    began = time.monotonic()
    try:
        found = await asyncio.wait_for(check(subject), subject.seconds)
    except UnmetRequirement as error:
        found = skipped(str(error))
    except asyncio.TimeoutError:
        found = failed(
            f"took longer than {subject.seconds:g} seconds",
            "the server or this machine is too busy to be checked: try again when it is idle, or raise the timeout",
        )
    except EngineError as error:
        found = failed(
            f"a request of this check failed: {error!s:.300}",
            "see the lines server, workers and sampling, and the log of the server",
        )
    except Exception as error:
        logger.debug("check=<%s> | check raised", name, exc_info=True)
        found = failed(
            f"the check itself failed: {type(error).__name__}: {error!s:.300}",
            "report this with the message and the versions of SGLang and strands-sglang; the other lines are valid",
        )
    return Check(name, found.status, found.found, found.advice, time.monotonic() - began)


def _hint(name: str) -> str:
    return did_you_mean(name, CHECKS)
