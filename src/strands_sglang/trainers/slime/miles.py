"""Miles, a fork of slime: `miles_rollout`.

Miles passes a `GenerateFnInput` (sample, sampling parameters, arguments, rollout state with the abort flag) to a
function whose first parameter is named `input`, and reads `samples` of the result. A function of slime's form runs in
Miles too, but could not see an abort; `slime_rollout` refuses Miles' samples for that reason.

    generate = miles_rollout(build_agent, reward=score)      # --custom-generate-function-path my.module.generate

Invariant: Miles is never imported, and nothing is read but the documented fields of its input; an input without them is
refused with their names.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from strands_sglang.errors import ConfigurationError
from strands_sglang.trainers.slime.generate import SampleRunner
from strands_sglang.trainers.slime.host import AbortFlag
from strands_sglang.trainers.slime.samples import SessionField

_TYPES_MODULE = "miles.rollout.base_types"
_INPUT_FIELDS = ("args", "sample", "sampling_params", "state")


@dataclass(frozen=True, slots=True)
class GenerateOutput:
    """What Miles reads of a generate function's result, used if Miles' own `GenerateFnOutput` is not loaded."""

    samples: Any


class MilesGenerate(Protocol):
    """The function that Miles calls for every sample. Miles inspects the name of its parameter."""

    def __call__(self, input: Any) -> Awaitable[Any]:
        """Run the episode of a sample."""
        ...


def miles_rollout(build: Callable[..., Any], **options: Any) -> MilesGenerate:
    """Make the function that Miles calls for every sample; the arguments are those of `slime_rollout`.

    Example:
        >>> generate = miles_rollout(build_agent, reward=score, limits=Limits(max_turns=10))
    """
    runner = SampleRunner(build, session_field=SessionField.MILES, **options)

    async def generate(input: Any) -> Any:
        _check_input(input)
        samples = await runner.run(
            input.args,
            input.sample,
            input.sampling_params,
            AbortFlag(input.state),
            evaluation=bool(getattr(input, "evaluation", False)),
        )
        kind = getattr(sys.modules.get(_TYPES_MODULE), "GenerateFnOutput", GenerateOutput)
        return kind(samples=samples)

    return generate


def _check_input(given: Any) -> None:
    missing = [name for name in _INPUT_FIELDS if not hasattr(given, name)]
    if not missing and not hasattr(given.state, "aborted"):
        missing = ["state.aborted"]
    if missing:
        raise ConfigurationError(
            f"input must be Miles' GenerateFnInput with {', '.join(_INPUT_FIELDS)} and state.aborted, got a "
            f"{type(given).__name__} without {', '.join(missing)}: this version of Miles is not supported; in slime, "
            "use slime_rollout"
        )
