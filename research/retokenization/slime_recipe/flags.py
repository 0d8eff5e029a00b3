#!/usr/bin/env python3
"""Print slime's flags of an arm, one per line: `python flags.py render-engine`.

The tokens of an arm are made by `arm_agent.py`; what the loss does with the logprobs is slime's business. Every arm has
the same flags otherwise. Needs no slime.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from arms import ARMS, REWARDED, Old


def flags_of(name: str) -> list[str]:
    """Return slime's flags of an arm.

    Raises:
        KeyError: There is no such arm.
    """
    arm = ARMS[name]
    flags: list[str] = []
    if arm.old is Old.ENGINE:
        flags.append("--use-rollout-logprobs")  # without it, slime recomputes them with the actor
    if arm.weight_cap is not None:
        flags += ["--use-tis", "--tis-clip", f"{arm.weight_cap:g}"]
    if arm.kept:
        flags += ["--rollout-top-p", f"{arm.top_p:g}"]  # slime then scores over the kept sets
    return flags


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in REWARDED:
        sys.exit(f"usage: flags.py ARM, which is one of {', '.join(REWARDED)}")
    for flag in flags_of(sys.argv[1]):
        print(flag)
