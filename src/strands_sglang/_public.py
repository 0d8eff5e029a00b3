"""The names of `strands_sglang.__all__`, each written once.

`as` marks a name as exported for type checkers. Names of one room that few programs need are imported from the room:
`strands_sglang.engine`, `strands_sglang.runs`, `strands_sglang.tokens`, `strands_sglang.provider.config`.
"""

from strands_sglang import errors as errors
from strands_sglang._strands_compat.fast_agents import fast_agents as fast_agents
from strands_sglang.chat.soundness import soundness as soundness
from strands_sglang.engine import Generation as Generation
from strands_sglang.engine import SGLangClient as SGLangClient
from strands_sglang.engine import TokenEngine as TokenEngine
from strands_sglang.model import SGLangModel as SGLangModel
from strands_sglang.proof import verify as verify
from strands_sglang.provider.config import SGLangConfig as SGLangConfig
from strands_sglang.provider.episode import EpisodeTokens as EpisodeTokens
from strands_sglang.rollout import rollout as rollout
from strands_sglang.runs import EndReason as EndReason
from strands_sglang.runs import Episode as Episode
from strands_sglang.runs import Group as Group
from strands_sglang.runs import Limits as Limits
from strands_sglang.runs import Reward as Reward
from strands_sglang.runs import RunOptions as RunOptions
from strands_sglang.runs import RunResult as RunResult
from strands_sglang.runs import Task as Task
from strands_sglang.runs import replay as replay
from strands_sglang.runs import rollout_sync as rollout_sync
from strands_sglang.runs import score_run as score_run
from strands_sglang.runs import teacher_logprobs as teacher_logprobs
from strands_sglang.tokens import TokenManager as TokenManager
from strands_sglang.tokens import TokenTree as TokenTree
from strands_sglang.tokens import Trajectory as Trajectory
from strands_sglang.tool_limits import ToolLimiter as ToolLimiter
from strands_sglang.tool_parsers import get_tool_parser as get_tool_parser
