"""SkyRL: a Strands agent as a generator, `StrandsGenerator`.

SkyRL is imported when `StrandsGenerator` is first used, not when this package is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strands_sglang.trainers.skyrl.generator import StrandsGenerator

__all__ = ["StrandsGenerator"]


def __getattr__(name: str) -> Any:
    if name == "StrandsGenerator":
        from strands_sglang.trainers.skyrl.generator import StrandsGenerator

        return StrandsGenerator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
