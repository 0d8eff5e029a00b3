"""What a GRPO trainer's arguments mean for the engine: sampling, limits, and what cannot work.

Invariant: the engine samples as the trainer scores: at the same temperature, within the same number of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from strands_sglang.errors import ConfigurationError
from strands_sglang.rollout import Limits

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "temperature": (),
    "top_p": (None, 1.0),
    "top_k": (None, 0, -1),
    "min_p": (None, 0.0),
    "repetition_penalty": (None, 1.0),
}
"""Sampling arguments of the trainer's, and the values of each that change nothing."""


def check_trainer(trainer: Any) -> None:
    """Look a trainer over before anything runs.

    Raises:
        ConfigurationError: It is set up for something that this cannot do.
    """
    if getattr(trainer, "tools", None):
        raise ConfigurationError(
            "the trainer has tools of its own: it would call them again on what agents did, and drop our mask. Give "
            "the tools to the agent that `build` makes, and none to the trainer"
        )
    if getattr(trainer, "environment_factories", None):
        raise ConfigurationError("the trainer has an environment_factory: agents bring their own tools; give only one")
    if getattr(trainer.args, "generation_kwargs", None):
        raise ConfigurationError(
            "generation_kwargs are for TRL's own generation: give sampling_params= in SGLang's words to trl_rollout"
        )


def sampling_of(args: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's sampling parameters.

    Args:
        args: The trainer's arguments.
        given: The user's further ones.

    Raises:
        ConfigurationError: The two say different things.
    """
    sampling = dict(given)
    for name, neutral in _NEUTRAL.items():
        value = getattr(args, name, None)
        if name in sampling and sampling[name] != value and not (sampling[name] in neutral and value in neutral):
            raise ConfigurationError(
                f"sampling_params has {name}={sampling[name]!r}, the trainer {value!r}: set it in GRPOConfig alone, so "
                "that tokens are sampled as they are scored"
            )
        if value is not None and value not in neutral:
            sampling[name] = value
    return sampling


def limits_within(limits: Limits, longest: int | None) -> Limits:
    """Return the limits of an episode whose completion, all turns and tool results together, has at most `longest`."""
    if longest is None:
        return limits
    return replace(limits, response=min(longest, limits.response or longest))
