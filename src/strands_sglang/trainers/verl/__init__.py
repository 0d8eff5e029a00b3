"""verl: a Strands agent as an agent loop, `StrandsAgentLoop`.

verl is imported when `StrandsAgentLoop` is first used, not when this package is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strands_sglang.trainers.verl.agent_loop import StrandsAgentLoop

__all__ = ["StrandsAgentLoop"]


def __getattr__(name: str) -> Any:
    if name == "StrandsAgentLoop":
        from strands_sglang.trainers.verl.agent_loop import StrandsAgentLoop

        return StrandsAgentLoop
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
