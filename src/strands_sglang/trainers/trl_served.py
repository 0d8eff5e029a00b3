"""Whether a server serves the model that a trainer is about to overwrite: `check_served`.

A server on another port, or one that somebody else started on this one, would take the weights without a word, and the
model that it served would be gone.

Invariant: only what the server says it serves is compared; what it does not say is not held against it.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

from strands_sglang.engine import SGLangClient
from strands_sglang.engine.probe import ServerFacts
from strands_sglang.errors import ConfigurationError
from strands_sglang.rollout.preflight import SECONDS
from strands_sglang.trainers.trl_link import EngineLink

_CACHED = re.compile(r"models--(?:.+--)?(?P<name>[^/]+)/snapshots/[^/]+$")
_OURS = re.compile(r"^weights-")  # saved by a training before


def check_served(link: EngineLink, trainer: Any) -> None:
    """See that the server behind a link serves the trainer's model.

    Raises:
        ConfigurationError: It serves another.
        EngineError: It cannot be reached, and never could.
    """
    client = link.client
    trained = name_of(trainer)
    if not isinstance(client, SGLangClient):
        return
    facts = link.run(_facts(client))
    if facts is None or facts.model_path is None or not trained:
        return
    served, meant = _short(facts.model_path), _short(trained)
    if served.lower() == meant.lower() or _OURS.match(served):
        return
    raise ConfigurationError(
        f"{client.base_url} serves {facts.model_path}, but the trainer trains {trained}, and would overwrite it: give "
        f"the base_url of the server that was started with --model-path {trained} (is another one on this port?); "
        "preflight=False if this one is meant"
    )


async def _facts(client: SGLangClient) -> ServerFacts | None:
    probe = client.probe(SECONDS)
    if not await probe.reach(client.first_contact or 0.0):
        return None
    return await probe.facts()


def name_of(trainer: Any) -> str:
    """Return what a trainer's model was loaded from; "": not known."""
    config = getattr(trainer.accelerator.unwrap_model(trainer.model), "config", None)
    name = getattr(config, "_name_or_path", None) or getattr(config, "name_or_path", None)
    return name if isinstance(name, str) else ""


def _short(path: str) -> str:
    """Return the name of a model, without the folder or the organisation that it comes from."""
    path = path.rstrip("/")
    found = _CACHED.search(path)
    return found["name"] if found else PurePath(path).name
