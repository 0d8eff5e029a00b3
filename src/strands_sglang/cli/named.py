"""A function that was named on the command line: `function_named`.

Invariant: what cannot be had is said in words, with the option it was given with.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from strands_sglang.errors import ConfigurationError


def function_named(place: str, option: str, example: str) -> Callable[..., Any]:
    """Return the function that `module:name` names; modules of the working directory are found.

    Args:
        place: What was typed.
        option: The option it was typed behind.
        example: What could have been.

    Raises:
        ConfigurationError: There is no such function.
    """
    module, colon, name = place.partition(":")
    if not colon:
        raise ConfigurationError(f"{option} is MODULE:FUNCTION, such as {example}, not {place!r}")
    sys.path.insert(0, "")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"cannot import {module!r}: {error}") from error
    function = getattr(found, name, None)
    if not callable(function):
        raise ConfigurationError(f"{module} has no function {name!r}")
    chosen: Callable[..., Any] = function
    return chosen
