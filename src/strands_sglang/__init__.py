"""Run any Strands agent on SGLang and get training-ready, token-exact trajectories."""

from strands_sglang._version import __version__
from strands_sglang.chat.proved import soundness
from strands_sglang.chat.verdict import Soundness
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
from strands_sglang.limits import ToolIterationLimiter, ToolLimit, ToolLimiter
from strands_sglang.model import SGLangModel
from strands_sglang.provider.episode import Episode
from strands_sglang.provider.policy import ArgumentCheck, FailedCallPolicy, RewritePolicy
from strands_sglang.tokens import Join, Origin, Segment, TokenManager, TokenTree, Trajectory, Turn

__all__ = [
    "SGLangClient",
    "SGLangModel",
    "ToolLimiter",
    "ToolIterationLimiter",
    "ToolLimit",
    "TokenManager",
    "Episode",
    "TokenTree",
    "Trajectory",
    "Turn",
    "Segment",
    "Origin",
    "Join",
    "RewritePolicy",
    "FailedCallPolicy",
    "ArgumentCheck",
    "Soundness",
    "soundness",
    "TokenEngine",
    "Generation",
    "GenerationChunk",
    "FinishReason",
    "VersionSpan",
    "AbortPolicy",
    "PauseMode",
    "__version__",
]
