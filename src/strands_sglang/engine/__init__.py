"""The `TokenEngine` protocol, and `SGLangClient`, its implementation for SGLang's native `/generate`."""

from strands_sglang.engine.client import SGLangClient
from strands_sglang.engine.control import ControlResult, EngineControl, ModelInfo, PauseMode, Worker
from strands_sglang.engine.protocol import (
    AbortPolicy,
    CancelSignal,
    FinishReason,
    Generation,
    PromptImage,
    RoutedExperts,
    SpecInfo,
    TokenEngine,
    TokenIds,
    VersionSpan,
)
from strands_sglang.engine.streaming import GenerationChunk

__all__ = [
    "SGLangClient",
    "TokenEngine",
    "TokenIds",
    "Generation",
    "PromptImage",
    "GenerationChunk",
    "FinishReason",
    "VersionSpan",
    "SpecInfo",
    "RoutedExperts",
    "AbortPolicy",
    "CancelSignal",
    "EngineControl",
    "ControlResult",
    "ModelInfo",
    "PauseMode",
    "Worker",
]
