"""Run any Strands agent on SGLang and get training-ready, token-exact trajectories."""

from typing import TYPE_CHECKING

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
from strands_sglang.loop_limiter import (
    LoopLimiter,
    LoopLimitReachedError,
    MaxMessagesReachedError,
    MaxToolCallsReachedError,
    MaxToolIterationsReachedError,
)
from strands_sglang.model import SGLangModel
from strands_sglang.provider.episode import Episode
from strands_sglang.provider.policy import ArgumentCheck, FailedCallPolicy, RewritePolicy
from strands_sglang.provider.published import Rollout
from strands_sglang.published import get_client, get_client_from_slime_args, get_tokenizer
from strands_sglang.published_errors import (
    SGLangClientError,
    SGLangConnectionError,
    SGLangContextLengthError,
    SGLangDecodingError,
    SGLangHTTPError,
    SGLangThrottledError,
)
from strands_sglang.rollout.sync import rollout_sync
from strands_sglang.tokens import Join, Origin, Segment, TokenManager, TokenTree, Trajectory, Turn
from strands_sglang.tool_parsers import get_tool_parser

if TYPE_CHECKING:  # for type checkers the function; when it runs the package, which can be called as the function
    from strands_sglang.rollout.run import rollout

__all__ = [
    "SGLangClient",
    "SGLangModel",
    "rollout",
    "rollout_sync",
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
    "get_client",
    "get_client_from_slime_args",
    "get_tokenizer",
    "get_tool_parser",
    "Rollout",
    "LoopLimiter",
    "LoopLimitReachedError",
    "MaxToolIterationsReachedError",
    "MaxToolCallsReachedError",
    "MaxMessagesReachedError",
    "SGLangClientError",
    "SGLangHTTPError",
    "SGLangContextLengthError",
    "SGLangThrottledError",
    "SGLangConnectionError",
    "SGLangDecodingError",
    "__version__",
]
