"""The `TokenEngine` protocol: `SGLangClient` implements it for `/generate`, `BaseEngine` (`base.py`) is for others."""

from strands_sglang.engine.base import BaseEngine
from strands_sglang.engine.client import SGLangClient
from strands_sglang.engine.control import ControlResult, EngineControl, ModelInfo, PauseMode, Worker
from strands_sglang.engine.probe import ServerEngine, is_server
from strands_sglang.engine.protocol import (
    AbortPolicy,
    CancelSignal,
    Capability,
    FinishReason,
    Generation,
    GenerationChunk,
    Prefill,
    PromptImage,
    RoutedExperts,
    ScoringEngine,
    SpecInfo,
    StreamingEngine,
    TokenEngine,
    TokenIds,
    VersionSpan,
    can,
    scores,
    streams,
)

__all__ = [
    "SGLangClient",
    "TokenEngine",
    "StreamingEngine",
    "ScoringEngine",
    "ServerEngine",
    "BaseEngine",
    "Capability",
    "can",
    "streams",
    "scores",
    "is_server",
    "TokenIds",
    "Generation",
    "Prefill",
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
