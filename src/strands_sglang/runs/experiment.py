"""What makes a run one experiment (`experiment_of`), and what else is recorded of where it came from (`origin`).

A call on the directory of a recorded run must be the same experiment: the same agent, reward, settings, served model
and packages (`resume.PreviousRun.check`). Every episode records the experiment it was run as.

What may change between the calls of one run, and is not compared: tasks, samples per task, concurrency, workers,
address, machine, command, commit, weight versions, patch versions of packages, and settings that change how a turn is
run and not what is sampled (`_OPERATIONAL`).
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import subprocess
import sys
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import orjson
from strands.models import Model

from strands_sglang._json import dump_bytes
from strands_sglang._version import __version__
from strands_sglang.engine import is_server
from strands_sglang.errors import ConfigurationError, EngineError
from strands_sglang.runs.function_source import digest_of, function_source
from strands_sglang.runs.workers.spec import RunSpec

logger = logging.getLogger(__name__)

_SECONDS = 5.0  # to ask the server for its model
_PACKAGES = ("strands-agents", "transformers")
_OPERATIONAL = ("audit_share", "alarm_after", "deadline", "model_id", "streaming")
_MAX_TEXT = 200  # characters of a setting that is recorded whole with every episode
_SECRET = re.compile(r"api.?key|auth|secret|password|[-_.]token$|client[-_]options", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=://)[^/\s@]+@")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the `repr` of an object: differs in every process


class Part(str, Enum):
    """A part of an experiment. Another one is refused, unless `RunOptions.allow_changed` names it."""

    AGENT = "agent"
    REWARD = "reward"
    SETTINGS = "settings"
    """Sampling parameters, limits, and other options of the model."""
    MODEL = "model"
    """The served model, by the name that the server gives it; weight versions are no difference."""
    PACKAGES = "packages"
    """Minor versions of this package, the Strands SDK and transformers."""


def experiment_of(run_spec: RunSpec, model: str | None = None) -> dict[str, str]:
    """Return each part of a run's experiment as text; `model`: the served one (`served_model`), None: unknown."""
    parts = {
        Part.AGENT: function_source(run_spec.build),
        Part.REWARD: None if run_spec.reward is None else function_source(run_spec.reward),
        Part.SETTINGS: _settings(run_spec),
        Part.MODEL: model,
        Part.PACKAGES: ", ".join(f"{name} {_minor(number)}" for name, number in _packages().items()),
    }
    return {part.value: text for part, text in parts.items() if text}


def origin(client: Any) -> dict[str, Any]:
    """Return where a run comes from: command, commit and versions. It is recorded once and never compared."""
    command = client.redacted(_command()) if is_server(client) else _command()
    return {"command": command, "python": sys.version.split()[0], "packages": _packages(), "commit": _commit()}


def difference(recorded: str, now: str) -> str:
    """Return how a part differs, for people: of settings, only those that do."""
    try:
        was, given = _flat(json.loads(recorded)), _flat(json.loads(now))
    except ValueError:
        return f"must be the one of the recorded run ({recorded}), got {now}"
    names = sorted(name for name in {*was, *given} if was.get(name) != given.get(name))
    told = (f"{name} {json.dumps(was.get(name))}, got {json.dumps(given.get(name))}" for name in names)
    return f"must be those of the recorded run: {'; '.join(told)}"


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        if not name:
            raise ValueError("no settings")
        return {name: value}
    return {path: one for key, inner in value.items() for path, one in _flat(inner, f"{name}.{key}".strip(".")).items()}


def _settings(run_spec: RunSpec) -> str:
    settings = run_spec.settings()
    settings.setdefault("sampling_params", settings.pop("params", None))
    kept = {name: value for name, value in settings.items() if name not in _OPERATIONAL}
    kept["models"] = {name: _described(model) for name, model in run_spec.models.items()}
    return json.dumps(_compact(kept), sort_keys=True)


def _described(model: Any) -> Any:
    """Return class and settings of another model, without what may hold secrets; of a function, its source."""
    if not isinstance(model, Model):
        return function_source(model)
    config: Any = orjson.loads(dump_bytes(model.get_config()))
    given = config if isinstance(config, dict) else {}
    return {"class": type(model).__name__, **{name: given[name] for name in given if not _SECRET.search(name)}}


def _compact(value: Any) -> Any:
    """Return plain data without what is not set, and with a digest in place of a long text."""
    if isinstance(value, dict):
        return {name: found for name, one in value.items() if (found := _compact(one)) not in (None, {})}
    if not isinstance(value, str):
        return value
    text = _ADDRESS.sub("", value)
    return text if len(text) <= _MAX_TEXT else f"{len(text)} characters, {digest_of(text)}"


async def served_model(client: Any) -> str | None:
    """Return the name of the served model; of several workers, all of their names; None: it is not reported."""
    if not is_server(client):
        return None
    probe = client.probe(_SECONDS)
    try:
        reports = await probe.reports() if await probe.reach(0.0) else []
    except (EngineError, ConfigurationError):  # a run without preflight may start before its server does
        reports = []
    # Not from `report.model`: what that says changes with every update of the weights.
    names = {report.server.get("served_model_name") for report in reports}
    found = ", ".join(sorted(name for name in names if isinstance(name, str)))
    if not found:
        logger.warning("server=<%s> | served model is unknown and was not compared", client.base_url)
    return found or None


def _command() -> str:
    """Return the command line of this process without what may hold secrets.

    That is passwords in addresses, values of options and of `name=value` that are called so, JSON, and `python -c`.
    """
    words = list(sys.orig_argv)
    if sys.argv[:1] == ["-c"]:  # also as part of another option, such as -uc
        code = next((n for n, word in enumerate(words, 1) if re.fullmatch("-[A-Za-z]*c", word)), len(words))
        if code < len(words):
            words[code] = "***"
    for number, word in enumerate(words):
        name, given, _ = word.partition("=")
        if (given or word.startswith("-")) and _SECRET.search(name):
            words[number : number + (1 if given else 2)] = [f"{name}=***"] if given else [name, "***"]
        elif word.startswith(("{", "[")) and _SECRET.search(word):
            words[number] = "***"
    return _LOGIN.sub("***@", shlex.join(words))


def _packages() -> dict[str, str]:
    found = {"strands-sglang": __version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _minor(number: str) -> str:
    return ".".join(number.split(".")[:2])


def _commit() -> str | None:
    """Return the git commit of the working directory, with "+" if files were changed since; None: there is none."""
    try:
        head, changed = (
            subprocess.run(
                ["git", *words], capture_output=True, text=True, timeout=5, check=True, cwd=os.getcwd()
            ).stdout
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.strip() + ("+" if changed.strip() else "")
