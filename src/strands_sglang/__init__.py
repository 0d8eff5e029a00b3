"""Run any Strands agent on SGLang and get training-ready, token-exact trajectories."""

from strands_sglang._version import __version__
from strands_sglang.engine import (
    AbortPolicy,
    FinishReason,
    Generation,
    GenerationChunk,
    PauseMode,
    SGLangClient,
    TokenEngine,
    VersionSpan,
)

__all__ = [
    "SGLangClient",
    "TokenEngine",
    "Generation",
    "GenerationChunk",
    "FinishReason",
    "VersionSpan",
    "AbortPolicy",
    "PauseMode",
    "__version__",
]
