"""Where tokens come from: the `TokenEngine` protocol, and `SGLangClient`, the engine behind SGLang's `/generate`."""

from strands_sglang.engine.client import SGLangClient
from strands_sglang.engine.control import ControlResult, EngineControl, ModelInfo, PauseMode
from strands_sglang.engine.fleet import Worker
from strands_sglang.engine.generation import FinishReason, Generation, SpecInfo, VersionSpan
from strands_sglang.engine.protocol import AbortPolicy, CancelSignal, TokenEngine, TokenIds
from strands_sglang.engine.routed_experts import RoutedExperts
from strands_sglang.engine.stream import GenerationChunk

__all__ = [
    "SGLangClient",
    "TokenEngine",
    "TokenIds",
    "Generation",
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
