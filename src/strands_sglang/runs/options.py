"""Options of a run that most runs do not need: `RunOptions`.

Invariant: every option is validated when the object is made, so that a run never starts with an invalid one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from strands_sglang._checks import check_int, check_number
from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.writer import Durability
from strands_sglang.runs.monitoring.metrics import RunMetrics
from strands_sglang.runs.recording.event_data import ToolArguments


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Less common options of `rollout`.

    Example:
        >>> options = RunOptions(reward_timeout=60, on_metrics=lambda metrics: tracker.log(metrics.to_dict()))
    """

    durability: Durability = Durability.PROCESS
    """Which failures a written event survives: a crash of the process, or of the machine."""
    rerun_tools: Collection[str] = ()
    """Names of tools that are run again when an episode is resumed, because they keep state in memory."""
    tool_arguments: ToolArguments | str = ToolArguments.RECORD
    """How the ledger records arguments of tool calls: "record", or "digest" if hooks pass secrets to tools; what the
    model sampled is recorded as tokens in either case."""
    reward_timeout: float | None = None
    """Seconds that scoring an episode may take; None: no limit."""
    prefix_warmup: float | None = 1.0
    """Seconds that the other samples of a task wait at most until the first turn of its first sample, so that
    their common prompt is in the engine's prefix cache; None: they start at once."""
    stop_if_first_fail: int | None = 8
    """The run stops if this many first episodes all fail with the same error class, because of the agent's code or
    because the engine rejects the requests; None: it never stops for this."""
    on_metrics: Callable[[RunMetrics], Any] | None = None
    """Called with a `RunMetrics` every `metrics_interval` seconds, and at the end; None: not called."""
    metrics_interval: float = 10.0
    preflight: bool = True
    """Whether to check the SGLang server before the run starts, for at most 5 seconds: that it answers, and that
    tokenizer, chat template, context length and sampling parameters fit it."""
    tune_runtime: bool = True
    """Whether the run changes settings of its processes while it runs: more threads for synchronous tools (the event
    loop's default executor), fewer garbage collections, and a limit of open files that allows for all connections.
    Executor and collector are restored at the end."""
    fast_agents: bool = True
    """Whether agents run inside `fast_agents`. Without, the SDK's own loop limits an invocation to about 300 turns."""

    def __post_init__(self) -> None:
        check_number("RunOptions.reward_timeout", self.reward_timeout)
        check_number("RunOptions.prefix_warmup", self.prefix_warmup)
        check_int("RunOptions.stop_if_first_fail", self.stop_if_first_fail)
        check_number("RunOptions.metrics_interval", self.metrics_interval, optional=False)
        for name in ("preflight", "tune_runtime", "fast_agents"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"RunOptions.{name} must be True or False, got {getattr(self, name)!r:.100}")
        tools = frozenset([self.rerun_tools] if isinstance(self.rerun_tools, str) else self.rerun_tools)
        object.__setattr__(self, "rerun_tools", tools)
        try:
            object.__setattr__(self, "tool_arguments", ToolArguments(self.tool_arguments))
        except ValueError:
            names = ", ".join(repr(one.value) for one in ToolArguments)
            raise ConfigurationError(
                f"RunOptions.tool_arguments must be one of {names}, got {self.tool_arguments!r:.100}"
            ) from None
