"""Checks a server, a tokenizer, an agent and this machine before a run: `diagnose` returns a `Report`.

All checks of `runs.checks` run at the same time; a run makes the quick ones by itself before it starts.

Invariant: every check that was requested is one line of the report, and ends within its time limit. A check that raises
or hangs is a line like any other, and changes no other line.
"""

from __future__ import annotations

import asyncio
import logging
import textwrap
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from strands_sglang._checks import check_int, check_number, did_you_mean
from strands_sglang._terminal import counted, escape_for_terminal
from strands_sglang.engine import SGLangClient
from strands_sglang.errors import ConfigurationError, EngineError
from strands_sglang.runs.checks import CHECKS
from strands_sglang.runs.checks.setup import Setup, Status, UnmetRequirement, failed, skipped
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.task import Task

__all__ = ["Check", "Report", "Status", "diagnose"]

logger = logging.getLogger(__name__)

_NAME_WIDTH = 15  # of the longest name of a check
_EXIT_CODES = {Status.SKIP: 0, Status.PASS: 0, Status.WARN: 0, Status.FAIL: 1}


@dataclass(frozen=True, slots=True)
class Check:
    """One line of a report.

    Example:
        ```python
        for check in report.checks:
            print(check.status.value, check.name, check.found, check.advice)
        ```
    """

    name: str
    status: Status
    found: str
    """What was found, or why it was not checked."""
    advice: str = ""
    """What to do; "" if there is nothing to do."""
    seconds: float = 0.0
    """Duration of the check in seconds, including facts that it waited for."""

    def to_dict(self) -> dict[str, Any]:
        """Return the check as plain data."""
        return {**asdict(self), "status": self.status.value, "seconds": round(self.seconds, 3)}


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of a diagnosis. `text` is for people, `to_dict` for programs.

    Example:
        ```python
        report = await diagnose("http://localhost:30000", "Qwen/Qwen3-8B")
        print(report.text())
        sys.exit(report.exit_code)
        ```
    """

    base_url: str
    """Address that was diagnosed."""
    checks: tuple[Check, ...] = field(default_factory=tuple)
    """The checks, in a fixed order."""

    def __getitem__(self, name: str) -> Check:
        """Return a check by its name."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"no check {name!r}; the report has {', '.join(check.name for check in self.checks)}")

    @property
    def status(self) -> Status:
        """The worst status of all checks."""
        return max((check.status for check in self.checks), key=list(Status).index, default=Status.SKIP)

    @property
    def exit_code(self) -> int:
        """0 if no check failed, warnings or not; 1 if one failed."""
        return _EXIT_CODES[self.status]

    def count(self, status: Status) -> int:
        """Return the number of checks with a status."""
        return sum(check.status is status for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "base_url": self.base_url,
            "status": self.status.value,
            "counts": {status.value: self.count(status) for status in Status},
            "checks": [check.to_dict() for check in self.checks],
        }

    def text(self, width: int | None = None) -> str:
        """Return the report as text: a line per check, advice below it.

        Args:
            width: Number of characters after which lines are wrapped; None: they are not.
        """
        lines = []
        indent = " " * (8 + _NAME_WIDTH)
        for check in self.checks:
            head = f"{check.status.value.upper()}  {check.name:<{_NAME_WIDTH}}  "
            lines += _wrapped(head, check.found, indent, width)
            if check.advice:
                lines += _wrapped(f"{indent}-> ", check.advice, f"{indent}   ", width)
        told = ((Status.FAIL, "failure"), (Status.WARN, "warning"))
        counts = [counted(self.count(status), noun) for status, noun in told if self.count(status)]
        passed = f"{self.count(Status.PASS)} passed, {self.count(Status.SKIP)} skipped"
        lines.append("")
        lines.append(f"{self.base_url}: {', '.join([*counts, passed])}")
        return "\n".join(map(escape_for_terminal, lines))


def _wrapped(first: str, text: str, others: str, width: int | None) -> list[str]:
    """Return a text as lines of at most a width.

    Args:
        first: Start of the first line.
        text: The text.
        others: Start of the other lines.
        width: The width; None: one line.
    """
    if width is None:
        return [first + text]
    escaped = escape_for_terminal(text)
    wide = max(width, len(others) + 20)
    return textwrap.wrap(escaped, wide, initial_indent=first, subsequent_indent=others, break_on_hyphens=False) or [
        first
    ]


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
    worker_hosts: Collection[str] | None = None,
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
        worker_hosts: Hosts of the router's workers that may receive them, as for `SGLangClient`.
        timeout: Upper bound on the duration of each check, in seconds. Checks run at the same time.
        only: Names of the checks to make; None: all.
        **model_options: Arguments of `SGLangModel`: `tool_parser`, `chat_template`, `sampling_params`, ...

    Returns:
        One line for each check of `runs.checks`, in its order.

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
    for name in ("tokenizer", "client", "base_url"):
        if name in model_options:
            raise ConfigurationError(f"options must be arguments of SGLangModel other than {name}, got {name}")
    for name in only or ():
        if name not in CHECKS:
            hint = did_you_mean(name, CHECKS)
            raise ConfigurationError(f"only must name checks ({', '.join(CHECKS)}), got {name!r}{hint}")
    client = SGLangClient(
        base_url, max_retries=0, api_key=api_key, headers=headers, worker_hosts=worker_hosts, max_connections=64
    )
    setup = Setup(
        client,
        tokenizer,
        model_options,
        limits or Limits(),
        build=agent,
        task=Task("Say hello.", id="doctor") if task is None else Task.of(task),
        concurrency=concurrency,
        workers=workers,
        dtype=dtype,
        seconds=timeout,
        token_seconds=timeout / 2,
    )
    try:
        lines = [_line(name, setup) for name in CHECKS if only is None or name in only]
        return Report(client.base_url, tuple(await asyncio.gather(*lines)))
    finally:
        await setup.close()
        await client.close()


async def _line(name: str, setup: Setup) -> Check:
    """Make one check within its time limit; whatever happens is a line of the report."""
    began = time.monotonic()
    try:
        found = await asyncio.wait_for(CHECKS[name](setup), setup.seconds)
    except UnmetRequirement as error:
        found = skipped(str(error))
    except asyncio.TimeoutError:
        found = failed(
            f"took longer than {setup.seconds:g} seconds",
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
