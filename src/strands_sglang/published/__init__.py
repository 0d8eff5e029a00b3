"""What earlier packages of this name have and programs written for them use: names and import paths.

`names` lists those that are not in `strands_sglang.__all__`. The earlier modules of `MODULES` are this one module,
under each of their names; type checkers do not see these paths.

Invariant: a name that was published is never renamed and never removed.
"""

from __future__ import annotations

from typing import Any

MODULES = ("client", "exceptions", "limiter", "sglang", "utils")


def __getattr__(name: str) -> Any:
    import strands_sglang

    return getattr(strands_sglang, name)
