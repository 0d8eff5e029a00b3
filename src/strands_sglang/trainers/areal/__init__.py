"""AReaL: a Strands agent as a rollout workflow, `StrandsWorkflow`.

AReaL is imported when `StrandsWorkflow` is first used, not when this package is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strands_sglang.trainers.areal.workflow import StrandsWorkflow

__all__ = ["StrandsWorkflow"]


def __getattr__(name: str) -> Any:
    if name == "StrandsWorkflow":
        from strands_sglang.trainers.areal.workflow import StrandsWorkflow

        return StrandsWorkflow
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
