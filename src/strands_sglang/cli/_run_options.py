"""The options of `rollout` and `eval`: everything that the function `rollout` takes, as command line options.

Invariant: an option that is not given is not passed on, so that the defaults are those of the function.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from strands_sglang._checks import did_you_mean
from strands_sglang.cli._command import (
    NOT_BELOW_0,
    NOT_NEGATIVE,
    POSITIVE,
    function_option,
    import_function,
    json_object,
    option,
    section,
)
from strands_sglang.errors import ConfigurationError

if TYPE_CHECKING:
    from strands_sglang.engine import SGLangClient
    from strands_sglang.runs import MaxStaleness

API_KEY = "STRANDS_SGLANG_API_KEY"  # environment variable: an option would be visible to other users

RUN = "What is run"  # title of options on the help page

LIMITS = {
    "max_turns": "turns of an episode",
    "max_tool_calls": "tool calls of an episode",
    "max_new_tokens": "tokens sampled in one turn",
    "max_episode_tokens": "tokens sampled in an episode",
    "max_response_tokens": "tokens of a branch after its first prompt",
    "max_context_tokens": "tokens of prompt and turn together",
    "tool_timeout": "seconds of one tool call",
    "episode_timeout": "seconds of an episode",
}

TRACKERS = ("wandb", "mlflow", "tensorboard")  # the built-in trackers. Listed here because their module imports much

_PLAIN = (
    "samples_per_task",
    "concurrency",
    "workers",
    "stop_after_groups",
    "min_samples_per_task",
    "directory",
    "seed",
)


def task_params(*, required: bool) -> list[click.Parameter]:
    """Return the parameters that say what is run."""
    tasks = click.Argument(["tasks"], metavar="TASKS" if required else "[TASKS]", required=required)
    experiment = section(
        RUN,
        function_option("--agent", "build function: build(task, model) returns an agent", required=required),
        function_option("--reward", "reward function: reward(episode) returns a number"),
        function_option("--models", "function that returns the other models of an episode, by name"),
        option("--base-url", "address of the SGLang server or router", metavar="URL"),
        function_option("--client", "function that returns the engine, in place of --base-url"),
        option("--tokenizer", "the model's tokenizer: a name or path", metavar="NAME", required=required),
        option("-n --samples-per-task", "episodes of each task (default: 1)", POSITIVE),
        option("--concurrency", "episodes that run at once (default: 256)", POSITIVE),
        option("--workers", "Ray processes (default: 0, run in this process)", NOT_NEGATIVE),
        option("--seed", "seed of the run, for a server with deterministic inference", int),
    )
    file = section(
        "Tasks",
        option("--prompt-key", "key of the prompt in a task", default="prompt", metavar="KEY"),
        option("--answer-key", "key of the answer in a task", default="answer", metavar="KEY"),
        option("--id-key", "key of the id in a task", default="id", metavar="KEY"),
        option("--first", "only the first N tasks", POSITIVE),
    )
    return [tasks, *experiment, *file]


def model_params() -> list[click.Parameter]:
    """Return the parameters for limits, sampling and the model; `model_arguments` reads them."""
    limits: list[click.Parameter] = [
        option(f"--{name.replace('_', '-')}", f"limit of {what}", float if name.endswith("timeout") else int)
        for name, what in LIMITS.items()
    ]
    sampling = section(
        "Sampling",
        option("--temperature", "sampling temperature", NOT_BELOW_0, metavar="X"),
        option("--sampling-params", "further sampling parameters of SGLang", json_object, metavar="JSON"),
        option("--model-options", "further arguments of SGLangModel", json_object, metavar="JSON"),
    )
    return [*section("Limits", *limits), *sampling]


def model_arguments(given: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """Return `limits`, `sampling_params` and the other arguments of the model, checked for the function they go to."""
    from strands_sglang.runs import Limits

    arguments: dict[str, Any] = dict(given["model_options"] or {})
    check_model_options(arguments, function)
    sampling = {**(arguments.pop("sampling_params", None) or {}), **(given["sampling_params"] or {})}
    if given["temperature"] is not None:
        sampling["temperature"] = given["temperature"]
    if sampling:
        arguments["sampling_params"] = sampling
    return {**arguments, "limits": Limits(**{name: given[name] for name in LIMITS if given[name] is not None})}


def check_model_options(options: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raise ConfigurationError if `--model-options` names an argument of the function itself, or of the client."""
    own = {*inspect.signature(function).parameters, "client", "base_url"}
    if wrong := sorted(own & set(options)):
        raise ConfigurationError(f"--model-options must contain settings of the model only, got {wrong[0]!r}")


def setting_params() -> list[click.Parameter]:
    """Return the parameters that say how it is run."""
    return [
        *model_params(),
        *section(
            "Progress",
            option("--progress", "display, on standard error", ["auto", "live", "lines", "none"], default="auto"),
            option(
                "--tracker",
                f"experiment tracker: {', '.join(TRACKERS)}, or MODULE:FUNCTION that returns one",
                metavar="NAME",
            ),
            function_option("--on-episode", "called with each episode that ends"),
            function_option("--on-metrics", "called with the metrics of the run"),
            option("--metrics-interval", "seconds between two reports of metrics (default: 10)", float),
        ),
        *section(
            "Failures and resuming",
            option("--preflight/--no-preflight", "check the server before the run (default: yes)", default=None),
            option(
                "--stop-if-first-fail",
                "stop if the first N episodes fail with the same error (default: 8; 0: never)",
                NOT_NEGATIVE,
            ),
            option("--reward-timeout", "seconds that scoring an episode may take", float),
            option(
                "--rerun-tool rerun_tools",
                "tool that is run again when an episode is resumed; can be repeated",
                metavar="NAME",
                multiple=True,
            ),
            option(
                "--allow-changed",
                "part of the experiment that may differ from the recorded run in the directory; can be repeated",
                ["agent", "reward", "settings", "model", "packages"],
                multiple=True,
            ),
            option(
                "--tool-arguments", "how the ledger records arguments of tools (default: record)", ["record", "digest"]
            ),
            option("--durability", "which crashes a written event survives (default: process)", ["process", "machine"]),
        ),
        *section(
            "Runtime",
            option("--client-options", "further arguments of SGLangClient", json_object, metavar="JSON"),
            option(
                "--prefix-warmup",
                "seconds that samples wait for the first one's prompt to be cached (default: 1; 0: none)",
                float,
            ),
            option(
                "--tune-runtime/--no-tune-runtime",
                "more tool threads and fewer garbage collections (default: yes)",
                default=None,
            ),
            option(
                "--fast-agents/--no-fast-agents",
                "run agents without the recursion of the Strands SDK's loop (default: yes)",
                default=None,
            ),
        ),
    ]


def group_params() -> list[click.Parameter]:
    """Return the parameters that say which groups are kept."""
    return section(
        "Groups",
        function_option("--filter", "function that says whether a group is kept; can be repeated", multiple=True),
        option("--stop-after-groups", "stop when N groups are kept", POSITIVE),
        option("--min-samples-per-task", "episodes that complete a task; its others are stopped", POSITIVE),
        option("--max-staleness", "weight updates after which a token is too old to be trained", NOT_NEGATIVE),
        option("--stale-action", "what happens to older groups (default: drop)", ["drop", "retry", "mask"]),
        function_option("--version-order", "function that returns the position of a weight version"),
    )


def rollout_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the function `rollout`; ConfigurationError for an invalid value or a missing function."""
    from strands_sglang.ledger.writer import Durability
    from strands_sglang.runs import RunOptions, rollout

    if given["tokenizer"] is None:
        raise ConfigurationError("--tokenizer must be given: the name or path of the model's tokenizer")
    options = {one.name: given[one.name] for one in fields(RunOptions) if given[one.name] not in (None, ())}
    if "durability" in options:
        options["durability"] = Durability(options["durability"])
    for name in ("prefix_warmup", "stop_if_first_fail"):
        if options.get(name) == 0:
            options[name] = None
    if given["on_metrics"] is not None:
        options["on_metrics"] = import_function(given["on_metrics"], "--on-metrics", "my_agent:on_metrics")
    arguments: dict[str, Any] = {name: given[name] for name in _PLAIN if given.get(name) is not None}
    arguments |= {
        "build": import_function(given["agent"], "--agent", "my_agent:build"),
        "tasks": read_tasks(given),
        "tokenizer": given["tokenizer"],
        "options": RunOptions(**options),
        "progress": given["progress"],
        **_engine(given),
        **model_arguments(given, rollout),
    }
    for name in ("reward", "on_episode"):
        if given[name] is not None:
            arguments[name] = import_function(given[name], f"--{name.replace('_', '-')}", f"my_agent:{name}")
    if given.get("models") is not None:
        arguments["models"] = other_models(given["models"])
    if given.get("filter"):
        arguments["filters"] = [import_function(one, "--filter", "my_agent:keep") for one in given["filter"]]
    if (rule := _max_staleness(given)) is not None:
        arguments["max_staleness"] = rule
    if (tracker := given["tracker"]) is not None:
        arguments["tracker"] = (
            import_function(tracker, "--tracker", "my_agent:tracker")() if ":" in tracker else tracker
        )
    return arguments


def _max_staleness(given: Mapping[str, Any]) -> MaxStaleness | None:
    from strands_sglang.runs import MaxStaleness

    names = {"max_staleness": "limit", "stale_action": "action", "version_order": "order"}
    fields = {field: given[name] for name, field in names.items() if given.get(name) is not None}
    if fields and "limit" not in fields:
        raise ConfigurationError("--stale-action and --version-order must be given with --max-staleness")
    if "order" in fields:
        fields["order"] = import_function(fields["order"], "--version-order", "my_agent:version_order")
    return MaxStaleness(**fields) if fields else None


def other_models(function: str) -> Any:
    """Return what the function of `--models` returns: the other models of an episode, by name."""
    return import_function(function, "--models", "my_agent:models")()


def _engine(given: Mapping[str, Any]) -> dict[str, Any]:
    if given["client"] is not None:
        if given["base_url"] is not None or given["client_options"]:
            raise ConfigurationError("--client must not be given together with --base-url or --client-options")
        return {"client": import_function(given["client"], "--client", "my_agent:engine")()}
    if given["base_url"] is None:
        raise ConfigurationError("--base-url must be given, such as http://localhost:30000")
    if not given["client_options"] and API_KEY not in os.environ:
        return {"base_url": given["base_url"]}
    return {"client": engine_client(given["base_url"], given["client_options"], given["concurrency"] or 256)}


def engine_client(base_url: str, options: Mapping[str, Any] | None, connections: int) -> SGLangClient:
    """Return a client with at most `connections`, unless the options name another number; the key is in `API_KEY`."""
    from strands_sglang.engine import SGLangClient

    arguments: dict[str, Any] = {"max_connections": connections, **(options or {})}
    known = inspect.signature(SGLangClient).parameters.keys() - {"base_url"}
    for name in arguments.keys() - known:
        raise ConfigurationError(
            f"--client-options has no {name!r}{did_you_mean(name, known)} Known: {', '.join(sorted(known))}"
        )
    if key := os.environ.get(API_KEY):
        arguments.setdefault("api_key", key)
    return SGLangClient(base_url, **arguments)


def read_tasks(given: Mapping[str, Any]) -> list[Any]:
    """Return the tasks of a JSON Lines file ("-": stdin), an object or a prompt per line; errors name the line."""
    from strands_sglang.runs import Task

    path = given["tasks"]
    name = "standard input" if path == "-" else str(path)
    keys = {given[f"{field}_key"]: field for field in ("prompt", "answer", "id")}
    tasks: list[Task] = []
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            if given["first"] is not None and len(tasks) == given["first"]:
                break
            try:
                value = json.loads(line)
                if isinstance(value, dict):
                    hidden = {field for key, field in keys.items() if key != field and key in value}
                    value = {keys.get(key, key): item for key, item in value.items() if key not in hidden}
                    if value.get("id") is not None:
                        value["id"] = str(value["id"])
                tasks.append(Task.of(value))
            except ValueError as error:  # ConfigurationError is one too
                raise ConfigurationError(
                    f"{name}, line {number}: {error}; each line must be a JSON object with {given['prompt_key']!r}, or "
                    "a JSON string"
                ) from error
    if not tasks:
        raise ConfigurationError(f"{name} has no tasks")
    return tasks


def _opened(path: str) -> AbstractContextManager[IO[str]]:
    if path == "-":
        return nullcontext(sys.stdin)
    try:
        return Path(path).open(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"TASKS must be a JSON Lines file, got {path!r}: {error.strerror}") from error
