"""Run any Strands agent on SGLang and get training-ready, token-exact trajectories.

Every name is imported when it is first used, so that `import strands_sglang` stays fast.

Example:
    >>> from strands_sglang import SGLangClient, SGLangModel
    >>> model = SGLangModel(tokenizer=tokenizer, client=SGLangClient("http://localhost:30000"))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from strands_sglang._version import __version__

if TYPE_CHECKING:
    from strands_sglang import errors
    from strands_sglang.chat.soundness import Soundness, soundness
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
    from strands_sglang.exceptions import (
        SGLangClientError,
        SGLangConnectionError,
        SGLangContextLengthError,
        SGLangDecodingError,
        SGLangHTTPError,
        SGLangThrottledError,
    )
    from strands_sglang.limiter import (
        LoopLimiter,
        LoopLimitReachedError,
        MaxMessagesReachedError,
        MaxToolCallsReachedError,
        MaxToolIterationsReachedError,
        ToolIterationLimiter,
        ToolLimit,
        ToolLimiter,
    )
    from strands_sglang.model import SGLangModel
    from strands_sglang.proof import verify
    from strands_sglang.provider.config import ArgumentCheck, FailedCallPolicy, RewritePolicy, SGLangConfig
    from strands_sglang.provider.episode import EpisodeTokens
    from strands_sglang.provider.published_rollout import Rollout
    from strands_sglang.runs import (
        EndReason,
        Episode,
        Group,
        Limits,
        Reward,
        RunMetrics,
        RunOptions,
        RunResult,
        Task,
        replay,
        rollout_sync,
        score_run,
        teacher_logprobs,
    )
    from strands_sglang.runs.runner import rollout
    from strands_sglang.tokens import Join, Origin, Segment, TokenManager, TokenTree, Trajectory, Turn
    from strands_sglang.tool_parsers import get_tool_parser
    from strands_sglang.utils import get_client, get_client_from_slime_args, get_tokenizer

__all__ = [
    "__version__",
    "errors",
    "rollout",
    "Soundness",
    "soundness",
    "AbortPolicy",
    "FinishReason",
    "Generation",
    "GenerationChunk",
    "PauseMode",
    "SGLangClient",
    "TokenEngine",
    "VersionSpan",
    "SGLangClientError",
    "SGLangConnectionError",
    "SGLangContextLengthError",
    "SGLangDecodingError",
    "SGLangHTTPError",
    "SGLangThrottledError",
    "LoopLimiter",
    "LoopLimitReachedError",
    "MaxMessagesReachedError",
    "MaxToolCallsReachedError",
    "MaxToolIterationsReachedError",
    "ToolIterationLimiter",
    "ToolLimit",
    "ToolLimiter",
    "SGLangModel",
    "verify",
    "ArgumentCheck",
    "FailedCallPolicy",
    "RewritePolicy",
    "SGLangConfig",
    "EpisodeTokens",
    "Rollout",
    "EndReason",
    "Episode",
    "Group",
    "Limits",
    "Reward",
    "RunMetrics",
    "RunOptions",
    "RunResult",
    "Task",
    "replay",
    "rollout_sync",
    "score_run",
    "teacher_logprobs",
    "Join",
    "Origin",
    "Segment",
    "TokenManager",
    "TokenTree",
    "Trajectory",
    "Turn",
    "get_tool_parser",
    "get_client",
    "get_client_from_slime_args",
    "get_tokenizer",
]

_EXPORTS: dict[str, tuple[str, ...]] = {
    ".chat.soundness": ("Soundness", "soundness"),
    ".engine": (
        "AbortPolicy",
        "FinishReason",
        "Generation",
        "GenerationChunk",
        "PauseMode",
        "SGLangClient",
        "TokenEngine",
        "VersionSpan",
    ),
    ".exceptions": (
        "SGLangClientError",
        "SGLangConnectionError",
        "SGLangContextLengthError",
        "SGLangDecodingError",
        "SGLangHTTPError",
        "SGLangThrottledError",
    ),
    ".limiter": (
        "LoopLimiter",
        "LoopLimitReachedError",
        "MaxMessagesReachedError",
        "MaxToolCallsReachedError",
        "MaxToolIterationsReachedError",
        "ToolIterationLimiter",
        "ToolLimit",
        "ToolLimiter",
    ),
    ".model": ("SGLangModel",),
    ".proof": ("verify",),
    ".provider.config": ("ArgumentCheck", "FailedCallPolicy", "RewritePolicy", "SGLangConfig"),
    ".provider.episode": ("EpisodeTokens",),
    ".provider.published_rollout": ("Rollout",),
    ".runs": (
        "EndReason",
        "Episode",
        "Group",
        "Limits",
        "Reward",
        "RunMetrics",
        "RunOptions",
        "RunResult",
        "Task",
        "replay",
        "rollout_sync",
        "score_run",
        "teacher_logprobs",
    ),
    ".tokens": ("Join", "Origin", "Segment", "TokenManager", "TokenTree", "Trajectory", "Turn"),
    ".tool_parsers": ("get_tool_parser",),
    ".utils": ("get_client", "get_client_from_slime_args", "get_tokenizer"),
}
"""Public names by the module that they are imported from."""
_MODULES = ("errors", "rollout")
"""Public modules; `rollout` is the function of that name (see there)."""
_HOME = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in _HOME:
        value = getattr(import_module(_HOME[name], __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
