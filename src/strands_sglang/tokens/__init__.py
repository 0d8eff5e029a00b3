"""Every token of an episode and its origin: the tree, its turns and branches, and flat trajectories.

Pure data: nothing here uses an engine, Strands or the disk.
"""

from strands_sglang.tokens.arrays import VersionSpan, joined_spans
from strands_sglang.tokens.images import ImageSize, ImageSpan, compact, expand
from strands_sglang.tokens.kept_sets import KeptSets
from strands_sglang.tokens.manager import TokenManager
from strands_sglang.tokens.teacher import TeacherLogprobs
from strands_sglang.tokens.trajectory import Trajectory
from strands_sglang.tokens.tree import TokenTree
from strands_sglang.tokens.turn import Join, Origin, PreparedTurn, Segment, Turn, TurnPurpose, TurnStatus

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
    "ImageSpan",
    "ImageSize",
    "expand",
    "compact",
    "KeptSets",
    "TeacherLogprobs",
    "joined_spans",
]
