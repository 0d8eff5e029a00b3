"""What the end of an episode says of its trajectories.

Invariant: the digest covers every array of a trajectory and the names its numbers stand for, in a fixed order and byte
order: two trajectories with the same digest are the same, whichever machine made them.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import orjson

from strands_sglang.ledger.event import DIGEST_BYTES
from strands_sglang.tokens import Trajectory


def trajectory_digest(trajectory: Trajectory) -> str:
    """Return the digest of everything a trainer eats of a trajectory, as 32 hex digits."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for values, kind in (
        (trajectory.token_ids, "<i4"),
        (trajectory.loss_mask, "i1"),
        (trajectory.logprobs, "<f8"),
        (trajectory.versions, "<i4"),
        (trajectory.turns, "<i4"),
        (trajectory.origins, "i1"),
    ):
        digest.update(values.astype(kind, copy=False).tobytes())
    digest.update(orjson.dumps([trajectory.version_names, trajectory.turn_ids]))
    return digest.hexdigest()


def trajectory_summary(trajectory: Trajectory) -> dict[str, Any]:
    """Return what the end of an episode says of one of its trajectories: an entry of `trajectories`."""
    trained = np.unique(trajectory.turns[trajectory.loss_mask == 1])
    return {
        "leaf": trajectory.branch,
        "trained": [trajectory.turn_ids[number] for number in trained],
        "tokens": len(trajectory),
        "loss": int(trajectory.loss_mask.sum(dtype=np.int64)),
        "digest": trajectory_digest(trajectory),
    }
