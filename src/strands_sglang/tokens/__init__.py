"""Every token of an episode and where it came from: the tree, its turns and branches, and the flat trajectory.

Pure data: nothing here talks to an engine, to Strands or to a disk.
"""

from strands_sglang.tokens.manager import TokenManager
from strands_sglang.tokens.origin import Origin
from strands_sglang.tokens.prepared import PreparedTurn
from strands_sglang.tokens.segment import Segment
from strands_sglang.tokens.trajectory import Trajectory
from strands_sglang.tokens.tree import TokenTree
from strands_sglang.tokens.turn import Join, Turn, TurnPurpose, TurnStatus
from strands_sglang.tokens.versions import VersionSpan, joined_spans

__all__ = [
    "TokenManager",
    "TokenTree",
    "Turn",
    "TurnPurpose",
    "TurnStatus",
    "Join",
    "PreparedTurn",
    "Segment",
    "Origin",
    "Trajectory",
    "VersionSpan",
    "joined_spans",
]
